"""The options that commands share, and what a broker is used with."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import typer
from support.broker import free_port
from typer.testing import CliRunner

from schemas.messages import TraceLoad
from spica_async.bus.broker_options import BrokerOptions
from spica_async.cli.options import SweepFlags, flattened
from spica_async.errors import InputError
from spica_async.service.trace_offers import offered, trace_server


def broker(url: str, **flags: Any) -> BrokerOptions:
    options = SweepFlags(bus=url, **flags).broker()
    assert options is not None
    return options


def test_variables_stand_in_for_options() -> None:
    seen: list[SweepFlags] = []
    app = typer.Typer()

    @app.command()
    @flattened
    def take(*, flags: SweepFlags) -> None:
        seen.append(flags)

    variables = {"SPICA_BUS": "amqp://elsewhere", "SPICA_JOURNAL": "sqlite:///there"}
    for arguments in ([], ["--bus", "amqp://here", "--trace-url", "a:1", "--trace-url", "a:2"]):
        assert CliRunner().invoke(app, arguments, env=variables).exit_code == 0
    CliRunner().invoke(app, env={"SPICA_BUS": ""})

    assert seen == [
        SweepFlags(bus="amqp://elsewhere", journal="sqlite:///there"),
        SweepFlags(bus="amqp://here", journal="sqlite:///there", trace_url=["a:1", "a:2"]),
        SweepFlags(),
    ]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--ca", Path("ca.pem")),
        ("--cert", Path("cert.pem")),
        ("--key", Path("key.pem")),
        ("--hard-limit-seconds", 60.0),
        ("--trace-host", "localhost"),
        ("--trace-port", 8080),
        ("--trace-url", ["s3://traces/one.jsonl"]),
    ],
)
def test_an_option_that_means_nothing_without_a_broker(option: str, value: Any) -> None:
    name = option[2:].replace("-", "_")

    assert SweepFlags(trace_url=[]).broker() is None
    with pytest.raises(InputError, match=f"^{option}: .* --bus"):
        SweepFlags(**{name: value}).broker()


def test_what_a_broker_is_used_with() -> None:
    plain = broker("amqp://elsewhere")
    full = broker("amqp://mq", hard_limit_seconds=60.0, trace_port=8080, trace_url=["s3://a/b"])

    assert (plain.address.host, plain.hard_limit_seconds, plain.trace_port) == (
        "elsewhere",
        1500,
        0,
    )
    assert (full.address.host, full.hard_limit_seconds, full.trace_port) == ("mq", 60, 8080)
    assert full.trace_urls == ("s3://a/b",)
    with pytest.raises(InputError, match=r"^--trace-url: here: "):
        broker("amqp://mq", trace_url=["here"])


@pytest.mark.parametrize(
    "url",
    [
        "simplecache::http://user:secret@host/trace?secret",
        "zip://trace.jsonl::s3://bucket/traces.zip?secret",
        "http::s3://user:secret@bucket/trace",
    ],
)
def test_a_chain_of_urls_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(InputError, match=r"^--trace-url: .*::") as caught:
        broker("amqp://mq", trace_url=["s3://a/b", url])
    assert "secret" not in str(caught.value)


def test_a_scheme_that_workers_do_not_fetch_by_themselves_is_noted() -> None:
    urls = ["https://host/a", "abfs://a/b", "s3://a/b", "abfs://a/c"]
    options = broker("amqp://mq", trace_url=urls)
    assert options.notes == [
        "--trace-url: workers fetch abfs:// only with abfs in their --trace-schemes"
    ]


def test_an_address_of_ipv6_is_no_chain_of_urls() -> None:
    options = broker("amqp://mq", trace_url=["http://[fd00::1]:8080/trace"])
    assert options.trace_urls == ("http://[fd00::1]:8080/trace",)


async def test_a_trace_is_offered_from_here_and_from_where_the_user_says(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("{}\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    trace = TraceLoad(path=str(path), sha256=digest, size_bytes=3, requests=1, total_tokens=1)
    here = broker("amqp://127.0.0.1", trace_url=["s3://traces/one.jsonl"])
    anywhere = broker("amqp://203.0.113.1")
    options = broker("amqp://203.0.113.1", trace_host="127.0.0.2", trace_port=free_port())

    async with offered(None, here) as nothing:
        assert nothing is None
    async with offered(trace, here) as given, httpx.AsyncClient(trust_env=False) as session:
        assert given is not None
        first, own = given.sources
        assert (first.url, first.token) == ("s3://traces/one.jsonl", None)
        assert re.fullmatch(rf"http://127\.0\.0\.1:\d+/traces/{digest}", own.url)
        assert own.token is not None
        login = {"Authorization": f"Bearer {own.token.get_secret_value()}"}
        answer = await session.get(own.url, headers=login)
        assert answer.text == "{}\n"
    async with offered(trace, anywhere) as given:
        assert given is not None
        (own,) = given.sources
        assert "127.0.0.1" not in own.url
        assert "0.0.0.0" not in own.url
    async with offered(trace, options) as given:
        assert given is not None
        (own,) = given.sources
        assert own.url == f"http://127.0.0.2:{options.trace_port}/traces/{digest}"


async def test_several_traces_are_offered_at_the_one_port_of_a_daemon(tmp_path: Path) -> None:
    options = broker("amqp://127.0.0.1", trace_port=free_port())
    traces: list[TraceLoad] = []
    for text in ("{}\n", "[]\n"):
        path = tmp_path / f"trace-{len(traces)}.jsonl"
        path.write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        trace = TraceLoad(path=str(path), sha256=digest, size_bytes=3, requests=1, total_tokens=1)
        traces.append(trace)

    async with (
        trace_server(options) as server,
        offered(traces[0], options, server) as first,
        offered(traces[1], options, server) as second,
        httpx.AsyncClient(trust_env=False) as session,
    ):
        for given, text in ((first, "{}\n"), (second, "[]\n")):
            assert given is not None
            (own,) = given.sources
            assert own.url == f"http://127.0.0.1:{options.trace_port}/traces/{given.sha256}"
            assert own.token is not None
            login = {"Authorization": f"Bearer {own.token.get_secret_value()}"}
            answer = await session.get(own.url, headers=login)
            assert answer.text == text
