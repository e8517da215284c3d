"""A sweep over a broker from the command line, on the real engine."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aio_pika
import pytest
from support.broker import VirtualHost, free_port
from support.commands import TIMEOUT_SECONDS, Finished, Spica, WriteConfig, small_sweep
from support.served import served

from spica_async.bus.topology import requests_queue
from spica_async.engine.versions import engine_fingerprint

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
FOUR = {
    "search_space__agg_max_num_batched_tokens": [8192, 16384],
    "search_space__agg_max_num_seqs": [256, 512],
    "sweep__max_rounds": 9,
}
LONG = {
    "search_space__agg_max_num_batched_tokens": [8192, 16384, 32768],
    "search_space__agg_max_num_seqs": [256, 512, 1024],
    "workload__num_request_ratio": 400,
    "sweep__max_rounds": 9,
    "sweep__parallel_evals": 1,
}


def one_error(tmp_path: Path, finished: Finished, code: int, *words: str) -> None:
    assert finished.code == code
    assert finished.stdout == ""
    assert "Traceback" not in finished.stderr
    assert finished.stderr.count("error:") == 1, finished.stderr
    for word in words:
        assert word in finished.stderr
    assert not (tmp_path / "results").exists()


@contextmanager
def worker(url: str, log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker with one slot, which has drained when the context ends."""
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "workers", "--slots", "1", *arguments],
            env=os.environ | {"SPICA_BUS": url},
            stderr=stderr,
        ) as running,
    ):
        try:
            yield running
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(timeout=60)
            finally:
                running.kill()


def queues(vhost: VirtualHost) -> str:
    return vhost.node.ctl("list_queues", "--vhost", vhost.name, "name")


def test_a_wrong_url_is_bad_input(spica: Spica, write_config: WriteConfig, tmp_path: Path) -> None:
    finished = spica("run", write_config(small_sweep()), "--bus", "http://mq")

    one_error(tmp_path, finished, 2, "--bus", "amqp://")


def test_an_evaluation_may_not_take_longer_than_the_broker_waits(
    spica: Spica, write_config: WriteConfig, tmp_path: Path
) -> None:
    config = write_config(small_sweep(sweep__max_eval_seconds=1501.0))

    finished = spica("run", config, "--bus", "amqp://mq")

    one_error(tmp_path, finished, 2, "sweep.max_eval_seconds", "1501", "1500", "consumer_timeout")


def test_wrong_credentials_are_told_at_once(
    spica: Spica, write_config: WriteConfig, tmp_path: Path, broker_vhost: VirtualHost
) -> None:
    url = broker_vhost.node.url(user="ann", password="hunter2", vhost=broker_vhost.name)

    finished = spica("run", write_config(small_sweep()), "--bus", url)

    one_error(tmp_path, finished, 1, f"amqp://ann@127.0.0.1:{broker_vhost.node.port}", "refused")
    assert "unreachable" not in finished.stderr
    assert "hunter2" not in finished.stderr


@pytest.mark.slow
def test_an_absent_broker_is_shown_and_then_given_up(
    spica: Spica, write_config: WriteConfig, tmp_path: Path
) -> None:
    finished = spica("run", write_config(small_sweep()), "--bus", f"amqp://127.0.0.1:{free_port()}")

    one_error(tmp_path, finished, 1, "broker: unreachable", "trying again", "no connection in 30 s")


def test_a_trace_that_cannot_be_served_is_told_before_anything_is_planned(
    spica: Spica, write_config: WriteConfig, tmp_path: Path, broker_vhost: VirtualHost
) -> None:
    line = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    (tmp_path / "trace.jsonl").write_text(json.dumps(line) + "\n")
    config = write_config(small_sweep() | {"workload": {"trace_path": "trace.jsonl"}})

    finished = spica("run", config, "--bus", broker_vhost.url, "--trace-host", "203.0.113.1")

    one_error(tmp_path, finished, 2, "--trace-host 203.0.113.1", "cannot listen")
    assert "facts about" not in finished.stderr


def test_slots_of_its_own_do_without_other_workers(
    spica: Spica, write_config: WriteConfig, tmp_path: Path, broker_vhost: VirtualHost
) -> None:
    config = write_config(small_sweep())

    finished = spica("run", config, "--bus", broker_vhost.url, "--slots", "1", "--json")

    assert finished.code == 0, finished.stderr
    result = json.loads(finished.stdout)
    assert result["tally"]["feasible"] == result["tally"]["attempts"] == 1
    (folder,) = (path for path in (tmp_path / "results").iterdir() if path.is_dir())
    # What had no limit of its own has that of the broker.
    assert "max_eval_seconds: 1500.0" in (folder / "config.yaml").read_text()
    # The sweep's own queues are gone, the shared ones stay.
    assert set(queues(broker_vhost).split()) - {"name"} == {
        "spica.dead",
        requests_queue(engine_fingerprint()).name,
    }


async def test_a_queue_that_somebody_made_otherwise_ends_the_sweep(
    spica_process: Spica, write_config: WriteConfig, broker_vhost: VirtualHost
) -> None:
    name = requests_queue(engine_fingerprint()).name
    async with await aio_pika.connect(broker_vhost.url) as connection:
        channel = await connection.channel()
        await channel.declare_queue(name, durable=True)

    finished = spica_process("run", write_config(small_sweep()), "--bus", broker_vhost.url)

    assert finished.code == 1
    assert finished.stderr.count("error:") == 1, finished.stderr
    assert name in finished.stderr
    assert "inequivalent arg" in finished.stderr


def documented_rights() -> dict[str, dict[str, str]]:
    """Service to its rights, as the page for operators has them."""
    found = re.findall("^rabbitmqctl set_permissions .*$", OPERATIONS.read_text(), re.MULTILINE)
    words = [shlex.split(line)[2:] for line in found]
    return {
        service: {"configure": configure, "write": write, "read": read}
        for service, configure, write, read in words
    }


@pytest.mark.slow
def test_the_documented_rights_are_enough(
    spica: Spica, write_config: WriteConfig, tmp_path: Path, broker_vhost: VirtualHost
) -> None:
    node, vhost = broker_vhost.node, broker_vhost.name
    urls: dict[str, str] = {}
    for service, rights in documented_rights().items():
        node.add_user(service, "secret", vhost=vhost, **rights)
        urls[service] = node.url(user=service, password="secret", vhost=vhost)
    assert set(urls) == {"coordinator", "daemon", "worker", "operator"}
    declared = spica("topology", "declare", "--bus", urls["operator"])
    assert declared.code == 0, declared.stdout
    for service in ("coordinator", "daemon", "worker"):
        checked = spica("topology", "check", "--bus", urls[service], "--json")
        standings = [finding["standing"] for finding in json.loads(checked.stdout)["findings"]]
        assert standings == ["exists"] * 5

    log = tmp_path / "worker.log"
    with worker(urls["worker"], log, "--name", "least"):
        config = write_config(small_sweep(**FOUR))
        finished = spica("run", config, "--bus", urls["coordinator"], "--json")
        with served(tmp_path, "--bus", urls["daemon"]) as daemon:
            submitted = spica("submit", config, "--daemon", daemon.url, "--watch")

    assert submitted.code == 0, submitted.stderr
    assert finished.code == 0, finished.stderr
    result = json.loads(finished.stdout)
    assert result["tally"]["feasible"] == 4
    # It has heard of the worker by its events.
    assert "workers: 1" in finished.stderr
    told = log.read_text() + finished.stderr
    assert "refused" not in told.lower()
    assert "worker.sweep_cancelled" in told
    left = set(queues(broker_vhost).split()) - {"name"}
    assert left == {"spica.dead", "spica.commands", requests_queue(engine_fingerprint()).name}


@pytest.mark.slow
def test_an_interruption_keeps_what_was_found_and_leaves_nothing_behind(
    write_config: WriteConfig, tmp_path: Path, broker_vhost: VirtualHost
) -> None:
    command = ["run", write_config(small_sweep(**LONG)), "--json", "--bus", broker_vhost.url]
    with (
        worker(broker_vhost.url, tmp_path / "worker.log") as working,
        subprocess.Popen(
            [sys.executable, "-m", "spica_async", *command],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as running,
    ):
        assert running.stderr is not None
        for line in running.stderr:
            if "agg round" in line:
                break
        running.send_signal(signal.SIGINT)
        stdout, _ = running.communicate(timeout=TIMEOUT_SECONDS)
        # It goes on, for others.
        assert working.poll() is None

    assert running.returncode == 130
    result = json.loads(stdout)
    assert result["status"] == "interrupted"
    # The one that ran may have ended within the grace.
    assert len(result["ranking"]) in {1, 2}
    assert "worker.sweep_cancelled" in (tmp_path / "worker.log").read_text()
    assert "spica.results" not in queues(broker_vhost)
