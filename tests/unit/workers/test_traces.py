import asyncio
import errno
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]  # no types are published for it
import pytest
from structlog.testing import capture_logs
from support.trace_loads import NOWHERE, files_in, load_of, open_cache

from schemas.messages import TraceLoad
from spica_async.errors import InputError
from workers.cached_files import cached_path, evict, keep, sha256
from workers.fetch import shown
from workers.traces import TraceCache, TraceUnavailableError

CONTENT = b'{"timestamp": 0}\n' * 100


@pytest.fixture
def stored() -> Iterator[str]:
    """The URL of `CONTENT` in a storage that fsspec reads."""
    yield store("trace", CONTENT)
    fsspec.filesystem("memory").store.clear()


def store(name: str, content: bytes) -> str:
    fsspec.filesystem("memory").pipe_file(f"/bucket/{name}", content)
    return f"memory://bucket/{name}"


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def content_of(cache: TraceCache, load: TraceLoad) -> bytes:
    async with cache.use(load) as path:
        return path.read_bytes()


async def failure_of(cache: TraceCache, load: TraceLoad) -> str:
    with pytest.raises(TraceUnavailableError) as caught:
        await content_of(cache, load)
    return str(caught.value)


async def test_a_trace_that_lies_at_its_path_is_used_where_it_lies(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(CONTENT)
    cache = open_cache(tmp_path / "cache")
    async with cache.use(load_of(CONTENT, path=trace)) as path:
        assert path == trace
    assert files_in(cache.folder) == {}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read through for their digests."""
    found: list[Path] = []

    def noted(path: Path) -> str:
        found.append(path)
        return sha256(path)

    monkeypatch.setattr("workers.traces.sha256", noted)
    return found


async def test_a_file_at_its_path_is_read_through_once_until_it_changes(
    tmp_path: Path, reads: list[Path]
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(CONTENT)
    cache = open_cache(tmp_path / "cache")
    load = load_of(CONTENT, path=trace)
    for _ in range(3):
        await content_of(cache, load)
    assert reads == [trace]
    trace.write_bytes(CONTENT[::-1])
    os.utime(trace, ns=(0, 1))
    assert "is not this trace" in await failure_of(cache, load)


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[::-1]], ids=["size", "digest"])
async def test_another_file_at_its_path_is_passed_over(
    tmp_path: Path, content: bytes, stored: str
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(content)
    cache = open_cache(tmp_path / "cache")
    assert await content_of(cache, load_of(CONTENT, path=trace, sources=[stored])) == CONTENT
    assert len(files_in(cache.folder)) == 1


@pytest.mark.parametrize("path", ["", "/", "/dev/zero", "nul\0byte", "x" * 5000])
async def test_a_path_that_is_no_file_is_an_unavailable_trace(tmp_path: Path, path: str) -> None:
    cache = open_cache(tmp_path)
    assert "no sources to fetch it from" in await failure_of(cache, load_of(CONTENT, path=path))


async def test_a_fetched_trace_is_kept(tmp_path: Path, stored: str, reads: list[Path]) -> None:
    load = load_of(CONTENT, sources=[stored])
    cache = open_cache(tmp_path)
    assert await content_of(cache, load) == CONTENT
    assert files_in(tmp_path) == {f"{load.sha256}.jsonl": CONTENT}
    fsspec.filesystem("memory").store.clear()
    assert await content_of(cache, load) == CONTENT
    assert reads == []
    assert await content_of(open_cache(tmp_path), load) == CONTENT
    assert reads == [tmp_path / f"{load.sha256}.jsonl"]


async def test_sources_are_tried_in_their_order_and_all_are_named_in_the_end(
    tmp_path: Path,
) -> None:
    sources = [
        "memory://bucket/absent",
        store("other", CONTENT[::-1]),
        store("longer", CONTENT + b"x"),
        store("shorter", CONTENT[:-1]),
        "s3://bucket/trace",
        "carrier-pigeon://loft/trace",
    ]
    cache = open_cache(tmp_path, schemes=("memory", "s3", "carrier-pigeon"))
    message = await failure_of(cache, load_of(CONTENT, sources=sources))
    trace, *problems = message.split("; ")
    assert trace.endswith(f"of 1,700 bytes: {NOWHERE}: no such file or directory")
    digests = load_of(CONTENT[::-1]).sha256[:12], load_of(CONTENT).sha256[:12]
    assert problems == [
        "memory://bucket/absent: not there",
        "memory://bucket/other: has SHA-256 {}..., the trace has {}...".format(*digests),
        "memory://bucket/longer: longer than the trace's 1,700 bytes",
        "memory://bucket/shorter: ended after 1,699 of 1,700 bytes",
        "s3://bucket/trace: a package is not installed here: Install s3fs to access S3",
        "carrier-pigeon://loft/trace: Protocol not known: carrier-pigeon",
    ]
    assert files_in(tmp_path) == {}


async def test_an_empty_trace_arrives_whole(tmp_path: Path) -> None:
    assert await content_of(open_cache(tmp_path), load_of(b"", sources=[store("none", b"")])) == b""


@pytest.mark.parametrize("damage", [CONTENT[:-1], CONTENT[::-1]], ids=["size", "digest"])
async def test_a_damaged_file_is_fetched_again(tmp_path: Path, stored: str, damage: bytes) -> None:
    load = load_of(CONTENT, sources=[stored])
    await content_of(open_cache(tmp_path), load)
    (tmp_path / f"{load.sha256}.jsonl").write_bytes(damage)
    with capture_logs() as logs:
        assert await content_of(open_cache(tmp_path), load) == CONTENT
    assert [entry["event"] for entry in logs] == ["worker.trace_damaged", "worker.trace_fetched"]


async def test_a_damaged_file_whose_source_is_gone_is_not_used(tmp_path: Path, stored: str) -> None:
    load = load_of(CONTENT, sources=[stored])
    cache = open_cache(tmp_path)
    await content_of(cache, load)
    fsspec.filesystem("memory").store.clear()
    (tmp_path / f"{load.sha256}.jsonl").write_bytes(CONTENT[::-1])
    assert "memory://bucket/trace: not there" in await failure_of(cache, load)
    assert files_in(tmp_path) == {}


async def test_a_folder_that_was_cleared_away_is_made_again(tmp_path: Path, stored: str) -> None:
    cache = open_cache(tmp_path / "cache")
    (tmp_path / "cache").rmdir()
    assert await content_of(cache, load_of(CONTENT, sources=[stored])) == CONTENT


def test_abandoned_downloads_are_removed_and_younger_ones_left(tmp_path: Path) -> None:
    old, young, other = tmp_path / "old.part", tmp_path / "young.part", tmp_path / "other"
    for path in (old, young, other):
        path.touch()
        yesterday = time.time() - 24 * 3600
        os.utime(path, (yesterday, time.time() if path == young else yesterday))
    TraceCache(tmp_path)
    assert set(files_in(tmp_path)) == {"young.part", "other"}


def test_a_folder_that_cannot_be_used_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"^--trace-cache: .*/file/cache: not a directory$"):
        TraceCache(tmp_path / "file" / "cache")


def test_without_the_users_own_there_is_one_for_as_long_as_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with capture_logs() as logs:
        cache = TraceCache()
    folder = cache.folder
    assert folder.is_dir()
    assert [(entry["event"], entry["error"]) for entry in logs] == [
        ("trace_cache.not_kept", "not a directory")
    ]
    with pytest.warns(ResourceWarning, match="Implicitly cleaning up"):
        del cache
    assert not folder.exists()


@pytest.mark.parametrize("function", ["write", "fsync"])
async def test_a_full_disk_is_said_to_be_full(
    tmp_path: Path, stored: str, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    def fail(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def draft(**options: Any) -> Iterator[Any]:
        with tempfile.NamedTemporaryFile(**options) as file:
            monkeypatch.setattr(file, "write", fail)
            yield file

    if function == "write":
        monkeypatch.setattr("workers.traces.NamedTemporaryFile", draft)
    else:
        monkeypatch.setattr(os, "fsync", fail)
    cache = open_cache(tmp_path)
    load = load_of(CONTENT, sources=[stored, stored])
    message = await failure_of(cache, load)
    assert message.endswith(f"; {tmp_path}: no space left on device")
    assert files_in(tmp_path) == {}
    monkeypatch.undo()
    assert await content_of(cache, load) == CONTENT


async def test_a_trace_larger_than_the_bound_is_used_and_then_evicted(
    tmp_path: Path, stored: str
) -> None:
    cache = open_cache(tmp_path, max_bytes=len(CONTENT) - 1)
    load = load_of(CONTENT, sources=[stored])
    async with cache.use(load) as path, cache.use(load):
        async with cache.use(load):
            pass
        assert path.read_bytes() == CONTENT
    assert files_in(tmp_path) == {}


async def test_eviction_that_fails_is_logged_and_spoils_no_evaluation(
    tmp_path: Path, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_cache(tmp_path, max_bytes=0)

    def fail(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with capture_logs() as logs:
        async with cache.use(load_of(CONTENT, sources=[stored])) as path:
            monkeypatch.setattr(Path, "unlink", fail)
    assert path.exists()
    assert [entry["event"] for entry in logs][-1] == "worker.trace_eviction_failed"


async def test_no_descriptor_is_left_open(
    tmp_path: Path, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: Path) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    cache = open_cache(tmp_path)
    await content_of(cache, load_of(CONTENT, sources=[stored]))
    before = open_descriptors()
    for _ in range(3):
        await content_of(cache, load_of(CONTENT, sources=[stored]))
        await failure_of(cache, load_of(b"other", sources=[stored]))
        (tmp_path / f"{load_of(CONTENT).sha256}.jsonl").write_bytes(b"damaged")
    assert open_descriptors() == before
    monkeypatch.setattr("workers.traces.sha256", unreadable)
    await content_of(cache, load_of(CONTENT, sources=[stored]))
    message = await failure_of(open_cache(tmp_path), load_of(CONTENT, sources=[stored]))
    assert message.endswith(f"{tmp_path}: input/output error")
    assert open_descriptors() == before


def test_a_draft_that_has_got_its_place_is_not_evicted_before_it_is_closed(tmp_path: Path) -> None:
    path = cached_path(tmp_path, load_of(CONTENT).sha256)
    draft = tmp_path / "draft"
    draft.write_bytes(CONTENT)
    with draft.open("rb") as file:
        assert keep(file.fileno(), str(draft), path)
        assert not keep(file.fileno(), str(draft), path)
        evict(tmp_path, 0)
        assert path.exists()
    evict(tmp_path, 0)
    assert not path.exists()


async def test_a_cancelled_use_leaves_the_trace_to_be_evicted(tmp_path: Path, stored: str) -> None:
    cache = open_cache(tmp_path, max_bytes=0)
    is_used = asyncio.Event()

    async def use() -> None:
        async with cache.use(load_of(CONTENT, sources=[stored])):
            is_used.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    async with asyncio.timeout(10):
        await is_used.wait()
    assert len(files_in(tmp_path)) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert files_in(tmp_path) == {}


async def test_a_storage_that_quotes_the_url_gives_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(url: str, _: str) -> None:
        raise PermissionError(f"may not read {url}")

    monkeypatch.setattr(fsspec, "open", fail)
    load = load_of(CONTENT, sources=["s3://user:secret@bucket/trace?secret"])
    message = await failure_of(open_cache(tmp_path), load)
    assert message.endswith("; s3://bucket/trace: may not read s3://bucket/trace")
    assert "secret" not in message


async def test_a_chain_of_urls_is_not_followed_and_gives_nothing_away(tmp_path: Path) -> None:
    here = tmp_path / "trace.jsonl"
    here.write_bytes(CONTENT)
    load = load_of(CONTENT, sources=[f"simplecache::file://{here}?secret"])
    with capture_logs() as logs:
        message = await failure_of(open_cache(tmp_path / "cache"), load)
    assert message.endswith("; a chain of URLs: only a single URL is taken, without ::")
    assert "secret" not in f"{message} {logs}"


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://user:secret@host:81/a/b?X-Amz-Signature=secret#secret", "https://host:81/a/b"),
        ("s3://bucket/key", "s3://bucket/key"),
        ("/a/path?secret", "/a/path"),
        ("http://[secret", "a source whose URL cannot be read"),
        ("simplecache::http://user:secret@host/a?secret", "a chain of URLs"),
        ("http::s3://user:secret@bucket/a", "a chain of URLs"),
        ("https://[fd00::1]:81/a::b?secret", "https://[fd00::1]:81/a::b"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, public: str) -> None:
    assert shown(url) == public


def test_what_downloads_and_serves_is_imported_when_it_is_needed() -> None:
    script = (
        "import sys, workers.traces, spica_async.traces.serve;"
        "print({'httpx2', 'fsspec', 'tenacity'} & sys.modules.keys())"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, check=True)
    assert done.stdout == b"set()\n"
