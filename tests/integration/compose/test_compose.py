"""The compose file and the image's recipe, without a container engine.

The services' own commands run as processes on this machine, with the environment, the volumes and
the broker's address mapped to what a test has.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.broker import SCRIPTS, VirtualHost
from support.commands import TIMEOUT_SECONDS, small_sweep

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SETTINGS = {"SPICA_BUS_PASSWORD": "s3cret", "SPICA_SWEEP": "sweep.yaml"}

VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)(?::([-?])([^}]*))?\})")


def filled_in(value: str, settings: Mapping[str, str]) -> str:
    """The value with its variables as Compose fills them in."""

    def fill(found: re.Match[str]) -> str:
        dollar, name, operator, word = found.groups()
        if dollar:
            return "$"
        if settings.get(name):
            return settings[name]
        if operator == "-":
            return str(word)
        raise KeyError(f"{name}: {word}")

    return VARIABLE.sub(fill, value)


def environment(service: str, **changes: str) -> dict[str, str]:
    """A service's environment, on top of what a process on this machine needs."""
    given = SERVICES[service]["environment"]
    own = {name: filled_in(value, SETTINGS) for name, value in given.items()}
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
    return kept | own | changes


def command(words: list[str], places: Mapping[str, str] | None = None) -> list[str]:
    """A command with this machine's program and folders in place of the image's."""
    program, *arguments = (filled_in(word, SETTINGS) for word in words)
    for there, here in (places or {}).items():
        arguments = [re.sub(f"^{there}(?=/|$)", here, argument) for argument in arguments]
    return [str(BIN / program), *arguments]


def seconds(duration: str) -> int:
    found = re.fullmatch(r"(\d+)s", duration)
    assert found is not None
    return int(found[1])


def test_the_services_fit_together() -> None:
    assert set(SERVICES) == {"broker", "coordinator", "worker"}
    for service in SERVICES.values():
        for needed, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "healthcheck" in SERVICES[needed]
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (ROOT / source).is_dir()
        assert service["healthcheck"]["test"][0] == "CMD"
    for name in ("coordinator", "worker"):
        service = SERVICES[name]
        assert (ROOT / service["build"] / "Dockerfile").is_file()
        assert service["cap_drop"] == ["ALL"]
        assert "broker" in service["depends_on"]
    sweep = "/sweeps/${SPICA_SWEEP:-quickstart.yaml}"
    assert sweep in SERVICES["coordinator"]["command"]
    assert (ROOT / "examples" / filled_in(sweep, {}).removeprefix("/sweeps/")).is_file()


def test_no_secret_has_a_default() -> None:
    for service in SERVICES.values():
        for name, value in service["environment"].items():
            if "PASS" in name:
                with pytest.raises(KeyError, match=r"put it into .env"):
                    filled_in(value, {})


def test_a_service_has_more_time_to_end_than_it_takes() -> None:
    from spica_async.cli.options import DEFAULT_GRACE_SECONDS
    from workers.settings import DEFAULT_DRAIN_SECONDS

    for name, takes in (("coordinator", DEFAULT_GRACE_SECONDS), ("worker", DEFAULT_DRAIN_SECONDS)):
        assert seconds(SERVICES[name]["stop_grace_period"]) >= takes + 10


@contextmanager
def running(service: str, log: Path, places: Mapping[str, str], **changes: str) -> Iterator[Any]:
    """The service's command as a process, ended as Compose ends it."""
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            command(SERVICES[service]["command"], places),
            env=environment(service, **changes),
            cwd=log.parent,
            stderr=stderr,
            stdout=subprocess.PIPE,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=seconds(SERVICES[service]["stop_grace_period"]))
            finally:
                process.kill()


@pytest.mark.slow
def test_a_sweep_gets_through_with_the_services_own_commands(
    broker_vhost: VirtualHost, tmp_path: Path
) -> None:
    node, vhost = broker_vhost.node, broker_vhost.name
    user, password = (environment("worker")[f"SPICA_BUS_{name}"] for name in ("USER", "PASSWORD"))
    assert SERVICES["broker"]["environment"]["RABBITMQ_DEFAULT_USER"] == user
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    node.add_user(user, password, vhost=vhost, **everything)
    assert environment("worker")["SPICA_BUS"] == "amqp://broker"
    bus = {"SPICA_BUS": f"amqp://127.0.0.1:{node.port}/{vhost}"}

    places = {"/sweeps": str(tmp_path / "sweeps"), "/results": str(tmp_path / "results")}
    (tmp_path / "sweeps").mkdir()
    document = small_sweep(search_space__agg_max_num_seqs=[256, 512])
    (tmp_path / "sweeps" / "sweep.yaml").write_text(yaml.safe_dump(document))

    replicas = SERVICES["worker"]["deploy"]["replicas"]
    assert replicas == 2
    with ExitStack() as stack:
        workers = [
            stack.enter_context(running("worker", tmp_path / f"worker-{n}.log", places, **bus))
            for n in range(replicas)
        ]
        log = tmp_path / "coordinator.log"
        with running("coordinator", log, places, **bus) as coordinator:
            stdout, _ = coordinator.communicate(timeout=TIMEOUT_SECONDS)
        assert coordinator.returncode == 0, log.read_text()
        assert "2 feasible" in stdout.decode()
        for service in ("coordinator", "worker"):
            check = command(SERVICES[service]["healthcheck"]["test"][1:])
            subprocess.run(check, env=environment(service, **bus), check=True)
    assert [worker.returncode for worker in workers] == [0] * replicas

    (folder,) = (path for path in (tmp_path / "results").iterdir() if path.is_dir())
    records = [json.loads(line) for line in (folder / "candidates.jsonl").read_text().splitlines()]
    assert len(records) == 2
    logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert SETTINGS["SPICA_BUS_PASSWORD"] not in logs


@pytest.mark.slow
def test_the_brokers_health_check_is_a_command_of_the_broker(broker_vhost: VirtualHost) -> None:
    kind, program, *arguments = SERVICES["broker"]["healthcheck"]["test"]
    assert kind == "CMD"
    # As `ctl` does, with another of the package's scripts.
    broker_vhost.node.run([str(SCRIPTS / program), *arguments])


def recipe() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line)]


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps a path at the top out of the build, its last match counting."""
    verdict = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if line and not line.startswith("#") and fnmatch.fnmatchcase(path, pattern):
            verdict = not line.startswith("!")
    return verdict


def test_the_image_is_built_from_what_is_there() -> None:
    sources: set[str] = set()
    for instruction, rest in recipe():
        if instruction == "COPY" and not rest.startswith("--from="):
            sources.update(rest.split()[:-1])
    assert {"schemas", "spica_async", "workers", "requirements.lock"} <= sources
    for source in sources:
        assert (ROOT / source).exists()
        assert not ignored(source)
    for other in (".git", ".env", ".venv", "tests", "results"):
        assert ignored(other)


def test_the_image_has_what_is_locked_and_its_user_is_nobody_special() -> None:
    instructions = recipe()
    runs = [rest for instruction, rest in instructions if instruction == "RUN"]
    (installs,) = (run for run in runs if "--requirements pyproject.toml" in run)
    assert "--require-hashes --constraint requirements.lock" in installs
    (builds,) = (run for run in runs if "uv build" in run)
    assert "--require-hashes --build-constraint requirements.lock" in builds
    users = [rest for instruction, rest in instructions if instruction == "USER"]
    assert users[-1] == "10001"
    assert f"--uid {users[-1]}" in "".join(runs)
    assert not [rest for _, rest in instructions if "index" in rest]


def test_the_images_programs_run() -> None:
    ((_, default),) = (found for found in recipe() if found[0] == "CMD")
    helps = [json.loads(default)]
    for service in ("coordinator", "worker"):
        words = SERVICES[service]["command"]
        module = words[:3] if words[1] == "-m" else words[:1]
        helps.append([*module, "--help"])
    for words in helps:
        program, *arguments = command(words)
        assert shutil.which(program), program
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=True)
        assert "--bus" in done.stdout or "run" in done.stdout
