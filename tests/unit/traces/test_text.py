"""Traces that are compressed, marked, or something else."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from spica_async.traces import text
from spica_async.traces.check import TraceError, check_trace, normal_copy, read_requests

LINE = json.dumps({"timestamp": 5, "input_length": 1024, "output_length": 8, "hash_ids": [1, 2]})
PLAIN = f"{LINE}\n{LINE}\n".encode()


def zstd(content: bytes) -> bytes:
    return bytes(pa.compress(content, codec="zstd", asbytes=True))


COMPRESSED: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd}


@pytest.mark.parametrize("compress", COMPRESSED.values(), ids=COMPRESSED)
def test_a_compressed_trace_is_read_and_copied_plain(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    # The name does not matter, and there may be several parts.
    path = tmp_path / "trace.jsonl"
    path.write_bytes(compress(PLAIN) + compress(PLAIN))

    facts = check_trace(path)

    assert facts.requests == len(list(read_requests(path))) == 4
    assert not facts.is_normal
    copy = normal_copy(path, tmp_path / "copies")
    assert copy.read_bytes() == PLAIN * 2
    assert check_trace(copy).is_normal
    assert check_trace(copy).sha256 == facts.sha256


@pytest.mark.parametrize("compress", COMPRESSED.values(), ids=COMPRESSED)
def test_a_bad_line_of_a_compressed_trace_is_named(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(compress(PLAIN + b"bad\n"))
    with pytest.raises(TraceError, match="line 3: not JSON"):
        check_trace(path)


@pytest.mark.parametrize("compress", COMPRESSED.values(), ids=COMPRESSED)
def test_a_compressed_trace_that_was_cut_short(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "trace"
    whole = compress(b"".join(LINE.replace("5", str(n)).encode() + b"\n" for n in range(9000)))
    for length in (len(whole) - 1, len(whole) // 2, 12):
        path.write_bytes(whole[:length])
        with pytest.raises(TraceError, match="trace: cut short: it ends in the middle"):
            check_trace(path)


@pytest.mark.parametrize("compress", COMPRESSED.values(), ids=COMPRESSED)
def test_compressed_data_that_is_damaged(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(compress(PLAIN) + b"and more")
    with pytest.raises(TraceError, match="its compressed data is damaged: "):
        check_trace(path)


@pytest.mark.parametrize("compress", COMPRESSED.values(), ids=COMPRESSED)
def test_a_trace_that_swells_beyond_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(text, "_ALWAYS_DECOMPRESSED_BYTES", 1000)
    path = tmp_path / "trace"
    path.write_bytes(compress(PLAIN * 50_000))
    with pytest.raises(TraceError, match=r"compressed beyond reason; allowed: [0-9,]+ bytes"):
        check_trace(path)


def test_blank_lines_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_MOST_BLANK_LINES", 3)
    path = tmp_path / "trace"
    path.write_bytes(b"\n\n \n" + PLAIN)
    assert check_trace(path).requests == 2
    path.write_bytes(PLAIN + b"\n\n\n\n")
    with pytest.raises(TraceError, match="line 6: blank; allowed: 3 blank lines"):
        check_trace(path)


@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
@pytest.mark.parametrize("compress", [bytes, *COMPRESSED.values()], ids=["plain", *COMPRESSED])
def test_a_byte_order_mark_is_dropped(
    tmp_path: Path, compress: Callable[[bytes], bytes], ends: bytes
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(compress(b"\xef\xbb\xbf" + PLAIN.replace(b"\n", ends)))
    assert (check_trace(path).requests, check_trace(path).is_normal) == (2, False)
    assert normal_copy(path, tmp_path / "copies").read_bytes() == PLAIN


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-32-be"])
def test_other_encodings_are_named(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(("\ufeff" + PLAIN.decode()).encode(encoding))
    if encoding in {"utf-16", "utf-32"}:  # These bring a mark of their own.
        path.write_bytes(PLAIN.decode().encode(encoding))
    named = encoding[:6].upper()
    with pytest.raises(TraceError, match=f"trace: encoded in {named}; allowed: UTF-8"):
        check_trace(path)


def test_other_compressions_are_named(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("trace.jsonl", PLAIN)
    contents = {
        "bzip2": bz2.compress(PLAIN),
        "xz": lzma.compress(PLAIN),
        "zip": (tmp_path / "zip").read_bytes(),
    }
    for name, content in contents.items():
        path.write_bytes(content)
        with pytest.raises(TraceError, match=f"trace: {name}; allowed: JSON lines, plain or in"):
            check_trace(path)


@pytest.mark.parametrize("outer", [*COMPRESSED.values(), b"\xef\xbb\xbf".__add__])
@pytest.mark.parametrize("inner", [*COMPRESSED, "bzip2"])
def test_what_is_compressed_twice_or_behind_a_mark_is_named(
    tmp_path: Path, outer: Callable[[bytes], bytes], inner: str
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(outer({**COMPRESSED, "bzip2": bz2.compress}[inner](PLAIN)))
    with pytest.raises(TraceError, match=f"trace: {inner} within it; allowed: JSON lines, plain"):
        check_trace(path)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_other_encodings_without_a_mark_are_named(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(PLAIN.decode().encode(encoding))
    with pytest.raises(TraceError, match="trace: encoded in UTF-16 or UTF-32, or no text"):
        check_trace(path)
