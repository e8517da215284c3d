"""Reads the lines of a trace, plain or compressed, within bounds."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

from spica_async.errors import printable

# Bounds what one line may take of memory; a million ids, half a billion input tokens, fit in it.
_MAX_LINE_BYTES: Final = 16 * 1024 * 1024
# Bound what little can be made much of: traces shrink to a tenth or so.
_MOST_TIMES_COMPRESSED: Final = 100
_ALWAYS_DECOMPRESSED_BYTES: Final = 256 * 2**20
_MOST_BLANK_LINES: Final = 1_000_000

_LONGEST_PATH: Final = 300

_UTF8_MARK: Final = b"\xef\xbb\xbf"
# The longer ones first, for one begins with another.
_OTHER_MARKS: Final = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_COMPRESSIONS: Final = ((_GZIP, "gzip"), (_ZSTD, "zstd"))
_OTHER_ARCHIVES: Final = (
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"PK\x03\x04", "zip"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"PAR1", "parquet"),
)


class TraceError(ValueError):
    """A trace that cannot be replayed: which file, which line (from 1, if it is one), and why."""

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        super().__init__(path, line, problem)
        self.path = path
        self.line = line
        self.problem = problem

    def __str__(self) -> str:
        path = printable(str(self.path), _LONGEST_PATH)
        where = path if self.line is None else f"{path}, line {self.line}"
        return f"{where}: {self.problem}"


@dataclass(slots=True)
class TraceText:
    """The lines of a trace.

    Attributes:
        path: where it lies.
        is_plain: whether the file holds these lines and nothing else: no compression, and, once
            the first line was read, no byte order mark.
    """

    path: Path
    is_plain: bool
    _file: IO[bytes]
    _most_bytes: int | None

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield each line with its number from 1; an end of line belongs to its line.

        Raises:
            TraceError: if a line is too long, or the file is damaged or swells beyond reason.
        """
        number = size = blank = 0
        try:
            while line := self._file.readline(_MAX_LINE_BYTES + 1):
                number += 1
                if number == 1:
                    line = self._without_mark(line)
                size += len(line)
                blank += line.isspace()
                self._check(number, line, size, blank)
                yield number, line
        except EOFError:
            raise TraceError(self.path, None, _CUT) from None
        except (zlib.error, OSError) as error:
            problem = _damage(error)
            raise TraceError(self.path, None, problem) from error

    def _check(self, number: int, line: bytes, size: int, blank: int) -> None:
        if len(line) > _MAX_LINE_BYTES:
            problem = f"too long; allowed: {_MAX_LINE_BYTES} bytes a line"
        elif blank > _MOST_BLANK_LINES:
            problem = f"blank; allowed: {_MOST_BLANK_LINES:,} blank lines"
        elif self._most_bytes is not None and size > self._most_bytes:
            problem = (
                f"the file is compressed beyond reason; allowed: {self._most_bytes:,} bytes of"
                f" text, {_MOST_TIMES_COMPRESSED} times its own"
            )
        else:
            return
        raise TraceError(self.path, number, problem)

    def _without_mark(self, line: bytes) -> bytes:
        for mark, name in _OTHER_MARKS:
            if line.startswith(mark):
                raise TraceError(self.path, None, f"encoded in {name}; allowed: UTF-8")
        if line.startswith(_UTF8_MARK):
            self.is_plain = False
            line = line.removeprefix(_UTF8_MARK)
        for magic, name in (*_OTHER_ARCHIVES, *_COMPRESSIONS):
            if line.startswith(magic):
                problem = f"{name} within it; allowed: JSON lines, plain or once in gzip or zstd"
                raise TraceError(self.path, None, problem)
        # A brace is an ASCII character, which has a zero beside it in these.
        if b"\0" in line[:4]:
            problem = "encoded in UTF-16 or UTF-32, or no text; allowed: UTF-8"
            raise TraceError(self.path, None, problem)
        return line


_CUT: Final = "cut short: it ends in the middle of its compressed data"


@contextmanager
def open_trace(path: Path) -> Iterator[TraceText]:
    """Open a trace, whose first bytes show whether it is plain text, gzip or zstd.

    Raises:
        TraceError: if it is something else, or cannot be read.
    """
    try:
        if path.exists() and not path.is_file():
            raise TraceError(path, None, "not a regular file; allowed: a JSONL file")
        file = path.open("rb")
    except OSError as error:
        raise TraceError(path, None, f"cannot be read: {error.strerror}") from error
    with file:
        yield _opened(path, file)


def _opened(path: Path, file: IO[bytes]) -> TraceText:
    try:
        head = file.read(8)
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
    except OSError as error:
        raise TraceError(path, None, f"cannot be read: {error.strerror}") from error
    for magic, name in _OTHER_ARCHIVES:
        if head.startswith(magic):
            raise TraceError(path, None, f"{name}; allowed: JSON lines, plain or in gzip or zstd")
    most = max(_ALWAYS_DECOMPRESSED_BYTES, _MOST_TIMES_COMPRESSED * size)
    if head.startswith(_GZIP):
        # Buffered, since it reads lines by bytes of its own otherwise.
        inflated = io.BufferedReader(cast("io.RawIOBase", gzip.GzipFile(fileobj=file)))
        return TraceText(path, is_plain=False, _file=inflated, _most_bytes=most)
    if head.startswith(_ZSTD):
        # It reports a file that was cut short; the zstandard package's reader does not.
        from pyarrow import input_stream  # noqa: PLC0415  # heavy, and seldom needed

        inflated = io.BufferedReader(input_stream(file, compression="zstd"))
        return TraceText(path, is_plain=False, _file=inflated, _most_bytes=most)
    return TraceText(path, is_plain=True, _file=file, _most_bytes=None)


def _damage(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    # Arrow's word for it.
    if "Truncated" in str(error):
        return _CUT
    return f"its compressed data is damaged: {error}"
