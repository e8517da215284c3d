"""What the tutorial has its readers type and write is what the programs take."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from spica_async.cli.app import app
from spica_async.cli.worker import app as worker_app
from spica_async.config.load import load_config
from spica_async.traces.synth import SynthConfig, write_trace

PAGE = (Path(__file__).parents[3] / "docs" / "tutorial.md").read_text(encoding="utf-8")
PROGRAMS = {"spica-async": get_command(app), "spica-worker": get_command(worker_app)}
COMMANDS = re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)
FILES = dict(re.findall(r"^`(\S+)`\n```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def programs_commands() -> list[str]:
    shown = [*COMMANDS, *re.findall(r"`(spica-[^`]* [^`]*)`", PAGE)]
    return [line for line in shown if line.split()[0] in PROGRAMS]


@pytest.mark.parametrize("line", programs_commands())
def test_every_command_is_one_of_the_programs(line: str) -> None:
    typed = re.split(r" (?:\d?>|&)", line)[0]
    program, *arguments = shlex.split(typed)
    command: Any = PROGRAMS[program]
    while hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_context(program, arguments)


def test_the_sweep_can_be_read_beside_the_files_that_it_names(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    config = load_config(tmp_path / "sweep.yaml")
    assert set(FILES) == {"my-model/config.json", "sweep.yaml"}
    assert json.loads(FILES["my-model/config.json"])["architectures"] == ["LlamaForCausalLM"]
    assert str(config.search_space.model_name) in {"./my-model", str(tmp_path / "my-model")}
    assert Path(str(config.workload.trace_path)).name == "trace.jsonl"


def test_the_trace_is_the_one_that_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    assert "$ spica-async trace synth trace.jsonl --seed 7 --requests 600 --duration 300\n" in PAGE
    write_trace(path, SynthConfig(seed=7, requests=600, duration_seconds=300))
    assert f"\n{path.read_text().splitlines()[0]}\n" in PAGE
