"""The worker as a process, on a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.broker import BrokerNode, VirtualHost

from schemas.messages import EvaluationCompleted, EvaluationRequest, EvaluationRequested
from spica_async.bus.address import BrokerAddress
from spica_async.bus.port import Delivery, Message
from spica_async.bus.rabbitmq.bus import RabbitBus
from spica_async.bus.topology import declare, requests_queue, results_queue
from spica_async.engine.model_files import pack
from spica_async.engine.versions import OWN_DATA, engine_fingerprint
from spica_async.processes.groups import live_members
from workers.settings import ChildSettings

REQUESTS = requests_queue("engine")
RESULTS = results_queue("test")
WAIT_SECONDS = 60
MakeRequest = Callable[..., EvaluationRequest]
Marked = Callable[[str], list[str]]
Until = Callable[[Callable[[], Any]], Awaitable[Any]]

# As `spica_async.cli.worker`, with other children.
PROGRAM = """
import json, sys
from pathlib import Path
from spica_async.bus.address import BrokerAddress
from spica_async.errors import SpicaError
from spica_async.cli.logs import log_to_stderr
from workers.program import run_program
from workers.settings import WorkerOptions
from workers.settings import ChildSettings

url, children, options = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
log_to_stderr(as_json=True)
children = ChildSettings(**(children | {"import_paths": tuple(children["import_paths"])}))
address = BrokerAddress.from_options(url)
options = WorkerOptions(engine_fingerprint="engine", children=children, **options)
try:
    sys.exit(run_program(address, options))
except SpicaError as error:
    sys.exit(f"error: {error}")
"""


class Program:
    """A worker's process and what it has logged so far."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def events(self) -> list[str]:
        return re.findall(r'"event": "([^"]*)"', self.log)

    def signal(self, *numbers: signal.Signals) -> None:
        for number in numbers:
            self.process.send_signal(number)

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, WAIT_SECONDS)


StartProgram = Callable[..., Program]


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def start(*arguments: str, cwd: Path | None = None, **environment: str) -> Program:
        log = tmp_path / f"program-{len(programs)}.log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=cwd,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), **environment},
            )
        programs.append(Program(process, log))
        return programs[-1]

    yield start
    for program in programs:
        program.process.kill()
        assert program.process.communicate()[0] == b"", "a worker has nothing to say on stdout"


@pytest.fixture
def start(
    start_process: Callable[..., Program], settings: ChildSettings, broker_vhost: VirtualHost
) -> StartProgram:
    """Starts a worker with children that do what they are told."""

    def start(
        *, evaluator: str = settings.evaluator, cwd: Path | None = None, **options: Any
    ) -> Program:
        children = {
            "evaluator": evaluator,
            "warm_up": None,
            "import_paths": settings.import_paths,
            "term_grace_seconds": settings.term_grace_seconds,
            "restart_pause_seconds": settings.restart_pause_seconds,
        }
        options = {"name": "here", "slots": 1} | options
        arguments = (broker_vhost.url, json.dumps(children), json.dumps(options))
        return start_process("-c", PROGRAM, *arguments, cwd=cwd)

    return start


@pytest.fixture
async def bus(broker_vhost: VirtualHost) -> AsyncIterator[RabbitBus]:
    address = BrokerAddress.from_options(broker_vhost.url)
    async with RabbitBus.open(address, name="test", private_queues="spica.results.test") as bus:
        await declare(bus, REQUESTS, RESULTS)
        yield bus


async def send(bus: RabbitBus, *requests: EvaluationRequest) -> None:
    for request in requests:
        envelope = EvaluationRequested(
            id=request.evaluation_id, source="spica/coordinator/test", data=request
        )
        await bus.publish(REQUESTS.name, Message.of(envelope, RESULTS.name))


async def take(bus: RabbitBus, queue: str, count: int) -> list[Delivery]:
    async with (
        asyncio.timeout(WAIT_SECONDS),
        bus.consume(queue, prefetch=max(1, count)) as consumer,
    ):
        taken = [await anext(consumer) for _ in range(count)]
        for delivery in taken:
            await delivery.ack()
        return taken


async def receive(bus: RabbitBus, count: int) -> list[str]:
    """The ids of so many results, in their order."""
    return [
        EvaluationCompleted.model_validate_json(delivery.message.body).data.evaluation_id
        for delivery in await take(bus, RESULTS.name, count)
    ]


async def left(bus: RabbitBus) -> dict[str, int]:
    """Take the requests that wait, and tell how often each came back before."""
    count = (await bus.queue_status(REQUESTS.name)).ready
    taken = await take(bus, REQUESTS.name, count)
    return {delivery.message.message_id: delivery.delivery_count for delivery in taken}


def children_of(program: Program) -> list[int]:
    return [child.pid for child in psutil.Process(program.pid).children()]


def all_gone(groups: list[int]) -> bool:
    return not any(any(live_members(group)) for group in groups)


class TestSignals:
    async def test_a_first_signal_drains(
        self,
        *,
        bus: RabbitBus,
        start: StartProgram,
        request_to: MakeRequest,
        until: Until,
        marked: Marked,
        marks: Path,
    ) -> None:
        running, waiting = request_to("wait_for", mark="go"), request_to("succeed")
        await send(bus, running, waiting)
        async with bus.subscribe("worker.left") as goodbyes:
            worker = start()
            await until(lambda: marked("run-*"))
            worker.signal(signal.SIGTERM)
            await until(lambda: "worker.draining" in worker.events)
            (marks / "go").touch()
            assert await worker.ended() == 0
            async with asyncio.timeout(WAIT_SECONDS):
                await anext(goodbyes)
        assert await receive(bus, 1) == [running.evaluation_id]
        assert await left(bus) == {waiting.evaluation_id: 0}

    async def test_what_outlasts_the_grace_is_given_back(
        self,
        *,
        bus: RabbitBus,
        start: StartProgram,
        request_to: MakeRequest,
        until: Until,
        marked: Marked,
    ) -> None:
        stuck = request_to("hang_with_grandchild")
        await send(bus, stuck)
        worker = start(drain_seconds=0.1)
        await until(lambda: marked("grandchild-*"))
        children = children_of(worker)
        worker.signal(signal.SIGINT)
        assert await worker.ended() == 0
        assert all_gone(children)
        assert await left(bus) == {stuck.evaluation_id: 1}

    @pytest.mark.parametrize("at_once", [True, False])
    async def test_a_second_signal_stops_at_once(
        self,
        *,
        bus: RabbitBus,
        start: StartProgram,
        request_to: MakeRequest,
        until: Until,
        marked: Marked,
        at_once: bool,
    ) -> None:
        stuck = request_to("hang_with_grandchild")
        await send(bus, stuck)
        worker = start(drain_seconds=3600)
        await until(lambda: marked("grandchild-*"))
        children = children_of(worker)
        worker.signal(signal.SIGTERM)
        if not at_once:
            await until(lambda: "worker.draining" in worker.events)
        worker.signal(signal.SIGINT)
        # The two may be taken in either order when they come together.
        assert await worker.ended() in ({128 + signal.SIGINT, 128 + signal.SIGTERM})
        assert all_gone(children)
        assert await left(bus) == {stuck.evaluation_id: 1}

    async def test_a_signal_while_there_is_no_broker_ends_it(
        self, start_process: Callable[..., Program], until: Until
    ) -> None:
        worker = start_process("-m", "workers", "--bus", "amqp://127.0.0.1:1", "--json-logs")
        await until(lambda: "worker.bus" in worker.events)
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0

    async def test_a_killed_worker_loses_its_children_and_no_request(
        self,
        *,
        bus: RabbitBus,
        start: StartProgram,
        request_to: MakeRequest,
        until: Until,
        marked: Marked,
        marks: Path,
    ) -> None:
        request = request_to("wait_for", mark="go")
        await send(bus, request)
        killed = start(name="killed")
        await until(lambda: marked("run-*"))
        children = children_of(killed)
        killed.signal(signal.SIGKILL)
        await killed.ended()
        await until(lambda: all_gone(children))
        (marks / "go").touch()
        start(name="next")
        assert await receive(bus, 1) == [request.evaluation_id]


class TestBroker:
    async def test_a_lost_connection_costs_no_second_evaluation(
        self,
        *,
        bus: RabbitBus,
        broker: BrokerNode,
        start: StartProgram,
        request_to: MakeRequest,
        until: Until,
        marked: Marked,
        marks: Path,
    ) -> None:
        request = request_to("wait_for", mark="go")
        await send(bus, request)
        worker = start(slots=2)
        await until(lambda: marked("run-*"))
        assert await asyncio.to_thread(broker.close_connections, "spica-worker") == 2
        await until(lambda: worker.events.count("worker.bus") >= 3)
        (marks / "go").touch()
        # The first slot's, and that of the second one for the request that came again.
        assert await receive(bus, 2) == [request.evaluation_id] * 2
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        assert len(marked("run-*")) == 1
        assert await left(bus) == {}

    async def test_a_broker_that_takes_nothing_is_told_of_and_waited_for(
        self,
        *,
        bus: RabbitBus,
        broker: BrokerNode,
        start: StartProgram,
        request_to: MakeRequest,
        until: Until,
        marked: Marked,
        marks: Path,
    ) -> None:
        request = request_to("wait_for", mark="go")
        await send(bus, request)
        worker = start()
        await until(lambda: marked("run-*"))
        await asyncio.to_thread(broker.set_memory_alarm, on=True)
        (marks / "go").touch()
        await until(lambda: '"state": "blocked"' in worker.log)
        await asyncio.to_thread(broker.set_memory_alarm, on=False)
        assert await receive(bus, 1) == [request.evaluation_id]
        assert len(marked("run-*")) == 1

    async def test_wrong_credentials_end_it_at_once_and_are_not_told(
        self, start_process: Callable[..., Program], broker_vhost: VirtualHost
    ) -> None:
        url = broker_vhost.url.replace("guest:guest", "guest:secret-of-mine")
        worker = start_process("-m", "workers", SPICA_BUS=url)
        assert await worker.ended() == 1
        assert "secret-of-mine" not in worker.log
        [line] = [line for line in worker.log.splitlines() if line.startswith("error: ")]
        assert "ACCESS_REFUSED" in line
        assert "Traceback" not in worker.log

    async def test_queues_that_may_not_be_declared_must_be_there(
        self, start_process: Callable[..., Program], broker_vhost: VirtualHost
    ) -> None:
        broker, vhost = broker_vhost.node, broker_vhost.name
        own = "^spica\\.worker\\..*"
        broker.add_user("plain", "pw", vhost=vhost, configure=own, write=".*", read=".*")
        worker = start_process(
            "-m", "workers", SPICA_BUS=broker.url(user="plain", password="pw", vhost=vhost)
        )
        assert await worker.ended() == 1
        assert re.search("^error: .*spica.* does not exist", worker.log, re.MULTILINE)


async def test_a_model_is_the_coordinator_s_whatever_the_workers_have(
    *, bus: RabbitBus, start: StartProgram, request_to: MakeRequest, tmp_path: Path
) -> None:
    model = pack({"config.json": '{"layers": 64}'})
    for host, layers in (("one", 16), ("other", None)):
        folder = tmp_path / host / "mine"
        folder.parent.mkdir()
        if layers is not None:
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps({"layers": layers}))
        start(name=host, cwd=folder.parent)
    # Each is for one worker, since neither ends before the other has begun.
    asked = [
        request_to("meet_and_read_model", own=own, mark=mark, model_name="mine")
        for own, mark in (("a", "b"), ("b", "a"))
    ]
    await send(bus, *(request.model_copy(update={"model": model}) for request in asked))
    results = [
        EvaluationCompleted.model_validate_json(delivery.message.body).data
        for delivery in await take(bus, RESULTS.name, 2)
    ]
    assert {result.worker for result in results} == {"one", "other"}
    assert {result.model_sha256 for result in results} == {model.sha256}
    assert [(result.measurement.report or {}).get("layers") for result in results] == [64, 64]


class TestCommand:
    async def test_children_that_cannot_start_end_it_with_one_line(
        self, bus: RabbitBus, start: StartProgram
    ) -> None:
        worker = start(evaluator="no_such_module:evaluate", slots=2)
        assert await worker.ended() == 1
        [line] = [line for line in worker.log.splitlines() if line.startswith("error: ")]
        assert "no replay can be started" in line
        assert "No module named 'no_such_module'" in line

    async def test_bad_options_are_told_in_one_message(
        self, start_process: Callable[..., Program]
    ) -> None:
        worker = start_process("-m", "workers", SPICA_BUS="")
        assert await worker.ended() == 2
        assert re.fullmatch("error: --bus: .*\n", worker.log)

    async def test_it_works_for_its_own_engine_and_is_light_while_idle(
        self, start_process: Callable[..., Program], broker_vhost: VirtualHost, bus: RabbitBus
    ) -> None:
        async with bus.subscribe("worker.heartbeat") as heartbeats:
            worker = start_process("-m", "workers", "--slots", "1", "--bus", broker_vhost.url)
            async with asyncio.timeout(WAIT_SECONDS):
                async for event in heartbeats:
                    if b'"state":"ready"' in event.message.body:
                        break
        status = await bus.queue_status(requests_queue(engine_fingerprint()).name)
        assert status.consumers == 1
        assert psutil.Process(worker.pid).memory_info().rss < 150 * 2**20

    async def test_with_performance_data_of_its_own_it_works_for_those_who_have_the_same(
        self,
        *,
        start_process: Callable[..., Program],
        broker_vhost: VirtualHost,
        bus: RabbitBus,
        tmp_path: Path,
    ) -> None:
        queues = set()
        for name, content in (("one", "1"), ("same", "1"), ("other", "2")):
            (tmp_path / name).mkdir()
            (tmp_path / name / "table").write_text(content)
            async with bus.subscribe("worker.heartbeat") as heartbeats:
                worker = start_process(
                    *("-m", "workers", "--slots", "1", "--bus", broker_vhost.url),
                    AICONFIGURATOR_SYSTEMS_PATH=str(tmp_path / name),
                )
                async with asyncio.timeout(WAIT_SECONDS):
                    status = json.loads((await anext(heartbeats)).message.body)["data"]
            worker.process.kill()
            queues.add((status["engine_fingerprint"], status["versions"][OWN_DATA]))
        assert len(queues) == 2
        assert engine_fingerprint() not in dict(queues)

    @pytest.mark.slow
    async def test_an_idle_worker_takes_less_than_a_hundredth_of_a_core(
        self, start: StartProgram, bus: RabbitBus
    ) -> None:
        async with bus.subscribe("worker.heartbeat") as heartbeats:
            worker = start()
            async with asyncio.timeout(WAIT_SECONDS):
                await anext(heartbeats)
                await anext(heartbeats)
        process = psutil.Process(worker.pid)
        before = process.cpu_times()
        await asyncio.sleep(30)
        after = process.cpu_times()
        assert after.user + after.system - before.user - before.system <= 0.3
