"""Model folders: each published one is what its id is; what cannot be read is said in a line."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spica_async.engine import facts, runtime

LLAMA = "meta-llama/Meta-Llama-3.1-70B"
FILES = ("config.json", "hf_quant_config.json", "preprocessor_config.json")

Write = Callable[..., str]


def shipped(model: str, name: str) -> Path:
    folder = Path(str(runtime.load("aisimulate_core").__file__)).parent / "model_configs"
    return folder / f"{model.replace('/', '--')}_{name}"


def shipped_config(model: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(shipped(model, "config.json").read_text())
    return config


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A folder with Llama's configuration, changed; `files` stand beside it."""

    def folder(
        changes: dict[str, Any] | bytes, model: str = LLAMA, **files: dict[str, Any] | list[Any]
    ) -> str:
        body = changes
        if isinstance(changes, dict):
            config = {**shipped_config(model), **changes}
            body = json.dumps({k: v for k, v in config.items() if v != "missing"}).encode()
        assert isinstance(body, bytes)
        (tmp_path / "config.json").write_bytes(body)
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return str(tmp_path)

    return folder


def refusal(folder: str) -> str:
    with pytest.raises(facts.UnknownModelError) as raised:
        facts.model_facts(folder)
    text = str(raised.value)
    assert "\n" not in text
    assert text.startswith(f"model {folder!r} cannot be modelled: ")
    return text.removeprefix(f"model {folder!r} cannot be modelled: ")


def test_a_folder_is_what_its_id_is_for_every_model_that_ships(tmp_path: Path) -> None:
    different = []
    for number, model in enumerate(facts.known_models()):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in FILES:
            if shipped(model, name).exists():
                shutil.copy(shipped(model, name), folder / name)
        by_id, by_folder = facts.model_facts(model), facts.model_facts(str(folder))
        if by_id.weight_bytes != by_folder.weight_bytes or (
            by_id.max_context,
            by_id.is_moe,
            by_id.extension,
        ) != (by_folder.max_context, by_folder.is_moe, by_folder.extension):
            different.append(model)
    assert different == []


@pytest.mark.parametrize("inline", [{}, {"quantization_config": None}, {"quantization_config": {}}])
def test_quantisation_may_stand_beside_the_configuration(
    write: Write, inline: dict[str, Any]
) -> None:
    model = "nvidia/Llama-3.1-70B-Instruct-FP8"
    sidecar = json.loads(shipped(model, "hf_quant_config.json").read_text())
    assert "quantization_config" not in shipped_config(model)

    found = facts.model_facts(write(inline, model, hf_quant_config=sidecar))

    assert found.weight_bytes == facts.model_facts(model).weight_bytes
    assert found.weight_bytes == pytest.approx(72.7e9, rel=0.01)


def test_a_cache_alone_may_be_quantised(write: Write) -> None:
    sidecar = {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    found = facts.model_facts(write({}, hf_quant_config=sidecar))
    assert found.weight_bytes == facts.model_facts(LLAMA).weight_bytes


def test_what_a_folder_says_is_shown_readably(write: Write) -> None:
    odd = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "\0\ud800"}}
    assert r"\x00\ud800" in refusal(write({}, hf_quant_config=odd))
    unknown = refusal(write({"quantization_config": {"quant_method": "\x1b" + "x" * 5000}}))
    assert unknown.isprintable()
    assert len(unknown) < 500


def test_a_long_complaint_of_the_engine_is_cut(write: Write) -> None:
    model = "deepseek-ai/DeepSeek-V4-Flash"
    ratios = shipped_config(model)["compress_ratios"]
    ratios[5] = "x" * 10_000
    assert len(refusal(write({"compress_ratios": ratios}, model))) < 3000


def test_more_experts_than_there_can_be(write: Write) -> None:
    found = refusal(write({"n_shared_experts": 1e300}, "deepseek-ai/DeepSeek-V3"))
    assert found.startswith("config.json: n_shared_experts: a whole number from 0 to ")


def compressed(bits: int, kind: str) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": bits, "type": kind}}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("quantization", "gigabytes"),
    [
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, 72.7),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 72.7),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 42.7),
        (compressed(4, "int"), 38.4),
        (compressed(8, "float"), 72.7),
    ],
    ids=str,
)
def test_quantisation_that_the_engine_knows(
    write: Write, quantization: dict[str, Any], gigabytes: float
) -> None:
    found = facts.model_facts(write({"quantization_config": quantization}))
    assert found.weight_bytes == pytest.approx(gigabytes * 1e9, rel=0.01)


@pytest.mark.parametrize(
    "quantization",
    [
        *(
            {"quant_method": method, "bits": 4}
            for method in ("awq", "gptq", "fbgemm_fp8", "bitsandbytes", "hqq", "quark", "torchao")
        ),
        compressed(8, "int"),
        compressed(4, "float"),
        {"quant_method": "compressed-tensors", "config_groups": None},
        {"quant_method": "mxfp4"},
        {"quant_method": "mixed_precision"},
        {"bits": 4},
        ["awq"],
        "awq",
    ],
    ids=str,
)
def test_quantisation_that_it_does_not_know_is_named(write: Write, quantization: object) -> None:
    found = refusal(write({"quantization_config": quantization}))
    assert found.startswith("config.json: quantization_config: ")


@pytest.mark.parametrize(
    ("files", "where"),
    [
        ({"hf_quant_config": [1]}, "hf_quant_config.json: "),
        (
            {"hf_quant_config": {"quantization": {"quant_algo": "W4A16_AWQ"}}},
            "hf_quant_config.json",
        ),
        (
            {"hf_quant_config": {"quantization": {"quant_algo": "MIXED_PRECISION"}}},
            "hf_quant_config",
        ),
        ({"hf_quant_config": {"quant_algo": "FP8"}}, "hf_quant_config.json: quantization: "),
        ({"hf_quant_config": {"quantization": {"quant_method": "fp8"}}}, "hf_quant_config.json: "),
        ({"quantize_config": {"bits": 4}}, "quantize_config.json: "),
        ({"quant_config": {"w_bit": 4}}, "quant_config.json: "),
    ],
    ids=str,
)
def test_files_that_the_engine_would_overlook_are_named(
    write: Write, files: dict[str, Any], where: str
) -> None:
    assert refusal(write({}, **files)).startswith(where)


def test_an_old_key_that_the_engine_would_overlook_is_named(write: Write) -> None:
    found = refusal(write({"compression_config": compressed(8, "float")}))
    assert found.startswith("config.json: compression_config: ")


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b'"x"', b"\x00\xff", b'{"a":' * 5000, b"{} {}", b"\xef\xbb\xbf{}"],
    ids=lambda body: repr(body[:10]),
)
def test_what_is_no_json_object(write: Write, body: bytes) -> None:
    assert re.match(r"config\.json: not (a JSON object|valid JSON: )", refusal(write(body)))


def test_a_file_that_is_far_too_long(write: Write) -> None:
    assert refusal(write(b" " * (16 * 1024 * 1024 + 1))).startswith("config.json: longer than ")


@pytest.mark.parametrize(
    "value", ["missing", None, [], "LlamaForCausalLM", [None], ["T5Model"], {}]
)
def test_an_architecture_that_there_is_not(write: Write, value: object) -> None:
    assert refusal(write({"architectures": value})).startswith("config.json: architectures: ")


@pytest.mark.parametrize(
    "value", ["missing", None, -1, 0, "12", 1.5, 10**12, [1], True, {}], ids=str
)
@pytest.mark.parametrize(
    "name",
    [
        *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
        *("intermediate_size", "vocab_size", "max_position_embeddings"),
    ],
)
def test_a_number_that_is_none_is_named(write: Write, name: str, value: object) -> None:
    assert name in refusal(write({name: value}))


def test_the_text_part_of_a_multimodal_model_is_looked_into(write: Write) -> None:
    model = "Qwen/Qwen3-VL-32B-Instruct"
    text = shipped_config(model)["text_config"] | {"num_hidden_layers": -1}
    found = refusal(write({"text_config": text}, model))
    assert found.startswith("config.json: text_config.num_hidden_layers: ")


def test_rope_scaling_of_a_folder_counts(write: Write) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert facts.model_facts("Qwen/Qwen3-32B").max_context == 40960
    found = facts.model_facts(write({"rope_scaling": yarn}, "Qwen/Qwen3-32B"))
    assert (found.max_context, found.extension) == (131072, None)


def test_what_nobody_foresaw_is_the_folders_fault(write: Write) -> None:
    found = refusal(write({"num_experts": None}, "Qwen/Qwen3-30B-A3B"))
    assert found.startswith("the engine fails over its config.json (")


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "\udcff", "/proc/1/mem/x"])
def test_a_name_that_no_path_can_have_is_an_unknown_model(name: str) -> None:
    with pytest.raises(facts.UnknownModelError, match="is unknown: its configuration"):
        facts.model_facts(name)
