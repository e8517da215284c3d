from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from support.engine_samples import GLM, MINIMAX

from spica_async.engine import facts, runtime


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize(
    ("model", "is_moe", "max_context", "gigabytes"),
    [
        ("Qwen/Qwen3-32B", False, 40960, 65.5),
        ("Qwen/Qwen3-32B-FP8", False, 40960, 34.4),
        (MINIMAX, True, 196608, 228.7),
        (GLM, True, 202752, 774.3),
    ],
)
def test_a_model_s_facts_count_quantised_weights(
    model: str,
    is_moe: bool,  # noqa: FBT001  # a parameter of the test
    max_context: int,
    gigabytes: float,
) -> None:
    found = facts.model_facts(model)
    assert (found.is_moe, found.max_context) == (is_moe, max_context)
    assert found.weight_bytes == pytest.approx(gigabytes * 1e9, rel=0.01)


@pytest.mark.usefixtures("_no_network")
def test_an_unknown_model_is_one_clear_error_without_a_network() -> None:
    with pytest.raises(facts.UnknownModelError, match="'no/such-model' is unknown"):
        facts.model_facts("no/such-model")


def test_a_folder_that_is_not_named_from_the_root_is_an_unknown_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for name in ("mine", f"../{tmp_path.name}/mine"):
        with pytest.raises(facts.UnknownModelError, match="is unknown"):
            facts.model_facts(name)


@pytest.mark.usefixtures("_no_network")
def test_a_folder_is_a_model(tmp_path: Path) -> None:
    shipped = Path(str(runtime.load("aisimulate_core").__file__)).parent / "model_configs"
    config = json.loads((shipped / "Qwen--Qwen3-8B_config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = facts.model_facts(str(tmp_path))
    shipped_facts = facts.model_facts("Qwen/Qwen3-8B")
    assert found.weight_bytes == shipped_facts.weight_bytes


def test_a_folder_with_an_unknown_architecture_is_an_unknown_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["NoSuchForCausalLM"]}))
    with pytest.raises(facts.UnknownModelError, match="cannot be modelled"):
        facts.model_facts(str(tmp_path))


def test_hardware() -> None:
    found = facts.hardware_facts("b200_sxm")
    assert (found.gpus_per_node, found.vram_bytes) == (8, 180 * 2**30)


def test_an_unknown_sku_names_the_known_ones() -> None:
    with pytest.raises(facts.UnknownSkuError, match="h100_sxm, h200_sxm") as caught:
        facts.hardware_facts("h300")
    assert all(sku in str(caught.value) for sku in facts.known_skus())
    with pytest.raises(facts.UnknownSkuError):
        facts.backend_version("h300", "vllm")


def test_known_skus_are_systems_and_nothing_else() -> None:
    known = facts.known_skus()
    assert {"h200_sxm", "b200_sxm", "gb200", "l4"} <= set(known)
    assert all(facts.hardware_facts(sku).vram_bytes > 2**33 for sku in known)


def test_backend_versions() -> None:
    found = {name: facts.backend_version("h200_sxm", name) for name in ("vllm", "sglang", "trtllm")}
    assert found == {"vllm": "0.24.0", "sglang": "0.5.14", "trtllm": "1.3.0rc20"}


@pytest.mark.parametrize(("sku", "backend"), [("l4", "vllm"), ("b60", "sglang")])
def test_an_unmeasured_backend_is_a_missing_database(sku: str, backend: str) -> None:
    with pytest.raises(facts.NoPerfDatabaseError, match=f"{backend} on {sku}"):
        facts.backend_version(sku, backend)


def _moe(weight_bytes: int, *, is_moe: bool = True) -> facts.ModelFacts:
    return facts.ModelFacts("m", "a", is_moe, 1, weight_bytes)


def test_wide_ep_is_for_experts_that_a_node_cannot_hold_twice() -> None:
    node = facts.HardwareFacts("s", gpus_per_node=8, vram_bytes=100)
    assert not facts.needs_wide_ep(_moe(400), node)
    assert facts.needs_wide_ep(_moe(401), node)
    assert not facts.needs_wide_ep(_moe(401, is_moe=False), node)
    real = facts.model_facts(GLM)
    assert facts.needs_wide_ep(real, facts.hardware_facts("h200_sxm"))
