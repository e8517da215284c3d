"""The trace cache against HTTP servers that err in every way."""

import asyncio
import gzip
from pathlib import Path

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs
from support.scripted_http import answer, answer_until_close, scripted_server
from support.trace_loads import NOWHERE, files_in, load_of, open_cache

from schemas.messages import TraceLoad, TraceSource
from workers.traces import TraceCache, TraceUnavailableError

CONTENT = bytes(range(256)) * 1000
OTHER = CONTENT[::-1]
TOKEN = "a-token-that-nobody-else-knows"


async def content_of(cache: TraceCache, load: TraceLoad) -> bytes:
    async with cache.use(load) as path:
        return path.read_bytes()


async def failure_of(cache: TraceCache, load: TraceLoad) -> str:
    with pytest.raises(TraceUnavailableError) as caught:
        await content_of(cache, load)
    assert files_in(cache.folder) == {}
    _, _, problem = str(caught.value).partition(f"{NOWHERE}: no such file or directory; ")
    return problem


def redirect(url: str) -> bytes:
    return answer_until_close(b"", f"302 Found\r\nLocation: {url}\r\nContent-Length: 0")


def digest_of(content: bytes) -> str:
    return f"{load_of(content).sha256[:12]}..."


@pytest.mark.parametrize(
    "failures",
    [
        [b"HTTP/1.1 503 Not Now\r\n\r\n"],
        [answer(b"", "500 Oops"), answer(b"", "429 Slowly")],
        [answer(CONTENT[:1000], length=len(CONTENT))],
        [answer_until_close(CONTENT[:-1])],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n"],
        [b"not HTTP at all\r\n\r\n"],
    ],
    ids=["503", "500 and 429", "cut short", "truncated", "chunks cut short", "no HTTP"],
)
async def test_what_may_pass_is_tried_again(tmp_path: Path, failures: list[bytes]) -> None:
    async with scripted_server(*failures, answer(CONTENT)) as server:
        cache = open_cache(tmp_path)
        with capture_logs() as logs:
            assert await content_of(cache, load_of(CONTENT, sources=[server.url])) == CONTENT
    events = [entry["event"] for entry in logs]
    assert events == ["worker.trace_retried"] * len(failures) + ["worker.trace_fetched"]


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (answer(b"", "404 Not Found"), "404 Not Found"),
        (answer(b"", "401 Unauthorized"), "401 Unauthorized"),
        (answer(b"", "410 Gone"), "410 Gone"),
        (answer(b"", "304 Not Modified"), "304 Not Modified"),
        (answer(CONTENT + b"x"), "has 256,001 bytes, the trace has 256,000"),
        (answer_until_close(CONTENT * 40), "longer than the trace's 256,000 bytes"),
        (answer(OTHER), f"has SHA-256 {digest_of(OTHER)}, the trace has {digest_of(CONTENT)}"),
    ],
    ids=["404", "401", "410", "304", "length", "endless", "digest"],
)
async def test_what_will_not_pass_is_tried_once(tmp_path: Path, reply: bytes, problem: str) -> None:
    async with scripted_server(reply) as server:
        cache = open_cache(tmp_path)
        message = await failure_of(cache, load_of(CONTENT, sources=[server.url]))
    assert message == f"{server.url}: {problem}"
    assert len(server.requests) == 1


async def test_a_source_that_stays_down_is_given_up_for_the_next(tmp_path: Path) -> None:
    async with (
        scripted_server(answer(b"", "503 Not Now")) as down,
        scripted_server(answer(OTHER)) as wrong,
        scripted_server(answer(CONTENT)) as good,
    ):
        load = load_of(CONTENT, sources=[down.url, wrong.url, good.url])
        assert await content_of(open_cache(tmp_path), load) == CONTENT
    assert [len(server.requests) for server in (down, wrong, good)] == [4, 1, 1]


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:1/trace", "http://nobody.invalid/trace", "http://", "http://[::1/trace"],
    ids=["refused", "unknown host", "no host", "unreadable"],
)
async def test_a_source_that_cannot_be_reached_is_an_unavailable_trace(
    tmp_path: Path, url: str
) -> None:
    with pytest.raises(TraceUnavailableError):
        await content_of(open_cache(tmp_path), load_of(CONTENT, sources=[url]))


async def test_an_encoding_that_nobody_asked_for_is_undone(tmp_path: Path) -> None:
    packed = gzip.compress(CONTENT)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n"
    async with scripted_server(head.encode() + packed) as server:
        load = load_of(CONTENT, sources=[server.url])
        assert await content_of(open_cache(tmp_path), load) == CONTENT
    assert "Accept-Encoding: identity\r\n" in server.requests[0]


async def test_the_token_goes_to_its_source_and_nowhere_else(tmp_path: Path) -> None:
    async with (
        scripted_server(answer(b"", "403 Forbidden")) as elsewhere,
        scripted_server(redirect(elsewhere.url)) as server,
    ):
        source = TraceSource(url=f"{server.url}?key={TOKEN}", token=SecretStr(TOKEN))
        with capture_logs() as logs:
            message = await failure_of(open_cache(tmp_path), load_of(CONTENT, sources=[source]))
    assert f"Authorization: Bearer {TOKEN}\r\n" in server.requests[0]
    assert TOKEN not in elsewhere.requests[0]
    assert message == f"{server.url}: 403 Forbidden"
    assert TOKEN not in str(logs)


async def test_no_error_gives_away_what_is_secret_in_a_url(tmp_path: Path) -> None:
    async with scripted_server(b"not HTTP at all\r\n\r\n") as server:
        host = server.url.removeprefix("http://").partition("/")[0]
        async with scripted_server(redirect(f"/?{TOKEN}")) as circle:
            urls = [
                f"http://user:{TOKEN}@{host}/trace?{TOKEN}",
                f"{circle.url}?{TOKEN}",
                f"http://user:{TOKEN}@:x/trace",
                f"http://user:{TOKEN}@/trace",
            ]
            with capture_logs() as logs:
                message = await failure_of(open_cache(tmp_path), load_of(CONTENT, sources=urls))
    problems = message.split("; ")
    assert len(problems) == len(urls)
    assert problems[0].startswith(f"{server.url}: no answer in HTTP: ")
    assert problems[1] == f"{circle.url}: redirects without end"
    assert TOKEN not in f"{message} {logs}"


async def test_many_who_want_a_trace_at_once_fetch_it_once(tmp_path: Path) -> None:
    async with scripted_server(answer(CONTENT)) as server:
        cache = open_cache(tmp_path)
        load = load_of(CONTENT, sources=[server.url])
        contents = await asyncio.gather(*(content_of(cache, load) for _ in range(8)))
    assert contents == [CONTENT] * 8
    assert len(server.requests) == 1


async def test_many_who_wait_for_a_trace_share_its_failure(tmp_path: Path) -> None:
    async with scripted_server(answer(b"", "404 Not Found")) as server:
        cache = open_cache(tmp_path)
        load = load_of(CONTENT, sources=[server.url])
        messages = await asyncio.gather(*(failure_of(cache, load) for _ in range(8)))
        assert messages == [f"{server.url}: 404 Not Found"] * 8
        assert len(server.requests) == 1
        await failure_of(cache, load)
        assert len(server.requests) == 2


async def test_who_waits_for_a_failure_still_tries_sources_of_its_own(tmp_path: Path) -> None:
    async with (
        scripted_server(answer(b"", "404 Not Found")) as bad,
        scripted_server(answer(CONTENT)) as good,
    ):
        cache = open_cache(tmp_path)
        with_bad, with_good = (load_of(CONTENT, sources=[source.url]) for source in (bad, good))
        outcomes = await asyncio.gather(
            content_of(cache, with_bad), content_of(cache, with_good), return_exceptions=True
        )
    assert isinstance(outcomes[0], TraceUnavailableError)
    assert outcomes[1] == CONTENT


async def test_one_who_is_cancelled_leaves_the_trace_to_those_who_wait(tmp_path: Path) -> None:
    async with scripted_server(b"", answer(CONTENT)) as server:
        cache = open_cache(tmp_path)
        load = load_of(CONTENT, sources=[server.url])
        first = asyncio.create_task(content_of(cache, load))
        second = asyncio.create_task(content_of(cache, load))
        await server.got_request.wait()
        first.cancel()
        assert await second == CONTENT
        with pytest.raises(asyncio.CancelledError):
            await first
    assert list(files_in(tmp_path)) == [f"{load.sha256}.jsonl"]


async def test_a_cancelled_download_leaves_nothing(tmp_path: Path) -> None:
    async with scripted_server(b"") as server:
        load = load_of(CONTENT, sources=[server.url])
        task = asyncio.create_task(content_of(open_cache(tmp_path), load))
        await server.got_request.wait()
        assert len(files_in(tmp_path)) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert files_in(tmp_path) == {}


async def test_silence_is_bounded(tmp_path: Path) -> None:
    async with scripted_server(b"") as server:
        cache = open_cache(tmp_path, fetch_seconds=0.2)
        load = load_of(CONTENT, sources=[server.url])
        outcomes = await asyncio.gather(
            *(content_of(cache, load) for _ in range(3)), return_exceptions=True
        )
    assert {type(outcome) for outcome in outcomes} == {TraceUnavailableError}
    assert all(str(outcome).endswith("not fetched within 0.2 s") for outcome in outcomes)
    assert files_in(tmp_path) == {}
