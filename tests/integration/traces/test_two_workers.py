"""Workers of one host as processes, on one cache folder."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.scripted_http import answer, scripted_server
from support.trace_loads import files_in, load_of, open_cache

from schemas.messages import TraceLoad

ROOT = Path(__file__).parents[3]
CONTENT = bytes(range(256)) * 4000
WORKER = """
import asyncio, sys
from pathlib import Path
import structlog
from schemas.messages import TraceLoad
from workers.traces import TraceCache

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

async def main():
    cache = TraceCache(Path(sys.argv[1]), max_bytes=int(sys.argv[2]))
    async with cache.use(TraceLoad.model_validate_json(sys.stdin.readline())) as path:
        print(path.read_bytes() == bytes(range(256)) * 4000, flush=True)
        sys.stdin.readline()

asyncio.run(main())
"""


@asynccontextmanager
async def worker(folder: Path, load: TraceLoad, max_bytes: int) -> AsyncIterator[Process]:
    """A process that uses the trace until a line comes."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WORKER, str(folder), str(max_bytes)),
        cwd=ROOT,
        stdin=PIPE,
        stdout=PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(load.model_dump_json().encode() + b"\n")
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def says_that_it_has_the_trace(process: Process) -> bool:
    assert process.stdout is not None
    return await process.stdout.readline() == b"True\n"


async def test_two_that_fetch_one_trace_at_once_both_get_it_whole(tmp_path: Path) -> None:
    async with scripted_server(answer(CONTENT)) as server:
        load = load_of(CONTENT, sources=[server.url])
        async with (
            worker(tmp_path, load, 10**9) as first,
            worker(tmp_path, load, 10**9) as second,
        ):
            assert await says_that_it_has_the_trace(first)
            assert await says_that_it_has_the_trace(second)
        assert len(server.requests) <= 2
    assert files_in(tmp_path) == {f"{load.sha256}.jsonl": CONTENT}


async def test_nobody_evicts_what_another_uses_until_it_is_killed(tmp_path: Path) -> None:
    async with scripted_server(answer(CONTENT)) as server, scripted_server(answer(b"x")) as small:
        load = load_of(CONTENT, sources=[server.url])
        cache = open_cache(tmp_path, max_bytes=len(CONTENT))
        async with worker(tmp_path, load, max_bytes=len(CONTENT)) as process:
            assert await says_that_it_has_the_trace(process)
            for _ in range(2):
                async with cache.use(load_of(b"x", sources=[small.url])):
                    assert files_in(tmp_path)[f"{load.sha256}.jsonl"] == CONTENT
            assert f"{load.sha256}.jsonl" in files_in(tmp_path)
            process.send_signal(signal.SIGKILL)
            await process.wait()
            async with cache.use(load_of(b"x", sources=[small.url])) as path:
                assert files_in(tmp_path) == {path.name: b"x"}
