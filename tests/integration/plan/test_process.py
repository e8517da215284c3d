"""The planning process when it, or the one that started it, ends before the plan is made."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs
from support.commands import small_sweep

from schemas.config import SmartSearchConfig
from spica_async.engine.model_files import core_folder, own_model
from spica_async.errors import InputError, SpicaError
from spica_async.plan.process import PlanLimits, make_plan

CONFIG = SmartSearchConfig.model_validate(small_sweep())
# Starts a plan, with the folder of the stand-in first in its path, and waits for it.
PARENT = """
import asyncio, sys
from schemas.config import SmartSearchConfig
from spica_async.plan.process import make_plan

sys.path.insert(0, sys.argv[1])
config = SmartSearchConfig.model_validate_json(sys.stdin.read())
asyncio.run(make_plan(config, None, lambda _: None))
"""
FakeCore = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _details_are_kept_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def fake_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCore:
    """Writes a stand-in for the engine's core, which does this once the child imports it.

    It is imported, since nothing is known of the engine's answers yet.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write(source: str) -> Path:
        folder = tmp_path / "instead"
        folder.mkdir()
        (folder / "aisimulate_core.py").write_text(source)
        return folder

    return write


def text_of(path: str) -> str:
    return Path(path).read_text()


async def test_a_child_that_dies_has_its_last_words_told(
    fake_core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "import os, sys\nsys.stderr.write('one\\nthe core is broken\\n'); "
    monkeypatch.syspath_prepend(str(fake_core(words + "sys.stderr.flush(); os._exit(3)")))
    with pytest.raises(SpicaError) as refusal:
        await make_plan(CONFIG, None, lambda _: None)
    told, _, kept = str(refusal.value).partition(" (details in ")
    assert told == "the planning process exited with status 3: the core is broken"
    assert text_of(kept.removesuffix(")")) == "one\nthe core is broken\n"


async def test_a_child_that_is_killed_says_nothing(
    fake_core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    monkeypatch.syspath_prepend(str(fake_core(killed)))
    with pytest.raises(SpicaError, match=r"^the planning process was ended by SIGKILL$"):
        await make_plan(CONFIG, None, lambda _: None)


def test_the_child_ends_with_its_parent_whatever_it_is_doing(
    fake_core: FakeCore, tmp_path: Path
) -> None:
    folder = fake_core(
        "import pathlib, time\npathlib.Path(__file__).with_name('mark').touch()\ntime.sleep(600)"
    )
    config = tmp_path / "config.json"
    config.write_text(json.dumps(small_sweep()))
    program = [sys.executable, "-c", PARENT, str(folder)]
    with config.open() as stdin, subprocess.Popen(program, stdin=stdin) as parent:
        try:
            while not (folder / "mark").exists():
                assert parent.poll() is None
                time.sleep(0.01)
            (child,) = psutil.Process(parent.pid).children()
        finally:
            parent.kill()
    try:
        child.wait(timeout=30)
    finally:
        if child.is_running():
            child.kill()


async def test_a_plan_that_outgrows_its_memory_is_refused(
    fake_core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    grows = "import time\nheld = bytearray(600 * 2**20)\ntime.sleep(600)"
    monkeypatch.syspath_prepend(str(fake_core(grows)))
    limits = PlanLimits(memory_bytes=500 * 2**20)
    with pytest.raises(InputError) as refusal:
        await make_plan(CONFIG, None, lambda _: None, limits)
    assert re.fullmatch(
        r"the sweep is too large to be planned: it took \d{3} MiB of memory, 500 MiB allowed,"
        r" at: facts about .* on .*",
        str(refusal.value),
    )


async def test_a_plan_that_takes_too_long_is_refused(
    fake_core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(fake_core("import time\ntime.sleep(600)")))
    with pytest.raises(InputError, match=r"^the sweep is too large to be planned: it took more"):
        await make_plan(CONFIG, None, lambda _: None, PlanLimits(seconds=0.1))


GARBAGE = {
    "no object": b"[1, 2]",
    "no JSON": b"not JSON",
    "a pickle": pickle.dumps(("plan", "something")),
    "no plan": b'{"plan": {"branches": 1}}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("payload", GARBAGE.values(), ids=GARBAGE)
async def test_what_is_no_answer_is_not_believed(
    fake_core: FakeCore, monkeypatch: pytest.MonkeyPatch, payload: bytes
) -> None:
    words = len(payload).to_bytes(4, "big") + payload
    # Where the answers go: the process that runs this has moved its channel there.
    source = f"import os\nfor one in range(3, 9):\n    try:\n        os.write(one, {words!r})\n"
    monkeypatch.syspath_prepend(str(fake_core(source + "    except OSError:\n        pass\n")))
    with pytest.raises(SpicaError, match=r"^the planning process wrote garbage"):
        await make_plan(CONFIG, None, lambda _: None)


async def test_a_backend_that_cannot_offload_is_left_out_of_a_plan() -> None:
    document = small_sweep(
        search_space__backend=["sglang", "vllm"],
        search_space__num_g2_blocks=100,
        search_space__kv_bytes_per_token=1024,
    )
    plan = await make_plan(SmartSearchConfig.model_validate(document), None, lambda _: None)
    (branch,) = plan.branches
    assert branch.backend.entries == ("vllm",)
    reasons = {dropped.what: dropped.reason for dropped in plan.dropped}
    assert "supported only for backend" in reasons["agg sglang agg tp 2"]


async def test_the_engine_is_asked_once_and_not_even_loaded_again(
    fake_core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = small_sweep(
        search_space__parallel_configs=[],
        search_space__deployment_mode=["agg", "disagg"],
        search_space__gpu_budget=32,
        search_space__decode_gpu_memory_utilization=0.4,
    )
    config = SmartSearchConfig.model_validate(document)
    first = await make_plan(config, None, lambda _: None)
    assert first.seeds
    assert first.dropped
    monkeypatch.syspath_prepend(str(fake_core("raise SystemExit('loaded again')")))
    second = await make_plan(config, None, lambda _: None)
    assert second == first


async def test_performance_data_of_the_user_is_asked_every_time(
    fake_core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AICONFIGURATOR_SYSTEMS_PATH", "default")
    await make_plan(CONFIG, None, lambda _: None)
    monkeypatch.syspath_prepend(str(fake_core("raise SystemExit('loaded again')")))
    with pytest.raises(SpicaError, match="loaded again"):
        await make_plan(CONFIG, None, lambda _: None)


async def test_what_the_child_warns_of_is_logged_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with capture_logs() as said:
        await make_plan(CONFIG, None, lambda _: None)
    warned = {entry["event"]: entry for entry in said}
    assert {"plan.answers_not_kept", "tables_not_prepared"} <= warned.keys()
    assert warned["plan.answers_not_kept"]["log_level"] == "warning"
    assert warned["plan.answers_not_kept"]["path"].startswith(str(tmp_path))
    assert [len(str(value).splitlines()) for entry in said for value in entry.values()] == (
        [1] * sum(map(len, said))
    )


def planned_with(model: str) -> SmartSearchConfig:
    return SmartSearchConfig.model_validate(small_sweep(search_space__model_name=model))


async def test_a_model_of_the_user_is_known_by_what_it_holds(
    fake_core: FakeCore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shipped = core_folder() / "model_configs" / "Qwen--Qwen3-32B_config.json"
    folders = [tmp_path / name for name in ("first", "second", "third")]
    for folder in folders:
        folder.mkdir()
        shutil.copy(shipped, folder / "config.json")
    layers = json.loads(shipped.read_text())
    (folders[2] / "config.json").write_text(json.dumps(layers | {"num_hidden_layers": 16}))
    first = await make_plan(planned_with(str(folders[0])), None, lambda _: None)
    assert first.model_files == own_model(str(folders[0]))
    assert first.model.model == str(folders[0])
    third = await make_plan(planned_with(str(folders[2])), None, lambda _: None)
    assert third.model_files != first.model_files
    assert third.model.weight_bytes < first.model.weight_bytes / 2
    monkeypatch.syspath_prepend(str(fake_core("raise SystemExit('loaded again')")))
    second = await make_plan(planned_with(str(folders[1])), None, lambda _: None)
    assert second.model_files == first.model_files
    assert second.capacity == first.capacity
    (folders[1] / "hf_quant_config.json").write_text("{}")
    with pytest.raises(SpicaError, match="loaded again"):
        await make_plan(planned_with(str(folders[1])), None, lambda _: None)


async def test_no_folder_stands_in_for_a_model_that_ships_with_the_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = await make_plan(CONFIG, None, lambda _: None)
    assert plan.model_files is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # Nothing is known any more.
    namesake = tmp_path / CONFIG.search_space.model_name
    namesake.mkdir(parents=True)
    (namesake / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    again = await make_plan(CONFIG, None, lambda _: None)
    assert again.model_files is None
    assert (again.model, again.capacity) == (plan.model, plan.capacity)


async def test_a_model_that_cannot_be_read_is_the_input_s_fault(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"^search_space\.model_name: .*config\.json: not a UTF-8"):
        await make_plan(planned_with(str(tmp_path)), None, lambda _: None)


async def test_what_is_said_of_a_model_names_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchForCausalLM"]}')
    with pytest.raises(InputError, match="cannot be modelled") as caught:
        await make_plan(planned_with(str(tmp_path)), None, lambda _: None)
    assert str(tmp_path) in str(caught.value)
    assert "/models/" not in str(caught.value)


async def test_what_is_said_beside_a_configuration_is_looked_at_in_the_user_s_folder(
    tmp_path: Path,
) -> None:
    shutil.copy(
        core_folder() / "model_configs" / "Qwen--Qwen3-32B_config.json", tmp_path / "config.json"
    )
    # It does not travel, since the engine does not read it.
    (tmp_path / "quantize_config.json").write_text('{"bits": 4}')
    with pytest.raises(InputError, match=r"^search_space\.model_name: .*: quantize_config\.json: "):
        await make_plan(planned_with(str(tmp_path)), None, lambda _: None)
