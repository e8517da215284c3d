"""The longest sequence that a model's servers start with, from what models really publish."""

from __future__ import annotations

import re
from typing import Any

import pytest

from spica_async.engine.context import ContextExtension, context_extension, longest_sequence

YARN_32K = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
DEEPSEEK = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
LLAMA_31 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
LONGROPE = {"type": "longrope", "long_factor": [1.0], "original_max_position_embeddings": 4096}
BY_LAYER = {
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default"},
}


@pytest.mark.parametrize(
    ("positions", "scaling", "longest"),
    [
        (40960, {}, 40960),
        (40960, {"rope_scaling": None}, 40960),
        (40960, {"rope_scaling": YARN_32K}, 131072),
        (40960, {"rope_parameters": {**YARN_32K, "rope_theta": 1e6}}, 131072),
        (131072, {"rope_scaling": YARN_32K}, 131072),
        (163840, {"rope_scaling": DEEPSEEK}, 163840),
        (131072, {"rope_scaling": LLAMA_31}, 131072),
        (131072, {"rope_scaling": LONGROPE}, 131072),
        (4096, {"rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
        (4096, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 8192),
        (4096, {"rope_scaling": {"type": "dynamic", "alpha": 1000.0}}, 4096),
        (4096, {"rope_scaling": {"type": "yarn", "factor": 2.0}}, 8192),
        (262144, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7}}, 262144),
        (262144, {"rope_parameters": BY_LAYER}, 262144),
        (32768, {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, 32768),
    ],
)
def test_rope_scaling_counts_once(positions: int, scaling: dict[str, Any], longest: int) -> None:
    assert longest_sequence({"max_position_embeddings": positions, **scaling}) == longest


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ("yarn", "rope_scaling"),
        (["yarn"], "rope_scaling"),
        ({"type": "yarn", "factor": "4"}, "rope_scaling.factor"),
        ({"type": "linear", "factor": -1}, "rope_scaling.factor"),
        ({"type": "linear", "factor": 1e308}, "rope_scaling.factor"),
        (
            {"type": "yarn", "factor": 2, "original_max_position_embeddings": "4k"},
            "rope_scaling.original_max_position_embeddings",
        ),
        (
            {"full_attention": {"rope_type": "linear", "factor": 0}},
            "rope_scaling.full_attention.factor",
        ),
    ],
)
def test_scaling_that_is_none_is_named_by_file_and_key(scaling: object, named: str) -> None:
    with pytest.raises(ValueError, match=rf"^config\.json: {re.escape(named)}: "):
        longest_sequence({"max_position_embeddings": 4096, "rope_scaling": scaling})


@pytest.mark.parametrize(
    ("architecture", "text_config", "extension"),
    [
        ("Qwen3ForCausalLM", {"max_position_embeddings": 40960}, (131072, 32768)),
        ("Qwen2ForCausalLM", {"max_position_embeddings": 32768}, (131072, 32768)),
        (
            "Qwen3_5MoeForConditionalGeneration",
            {"max_position_embeddings": 262144, "rope_parameters": {"rope_type": "default"}},
            (1048576, 262144),
        ),
        ("NemotronHForCausalLM", {"max_position_embeddings": 262144}, (1048576, None)),
        ("NemotronHForCausalLM", {"max_position_embeddings": 8192}, None),
        ("Qwen3ForCausalLM", {"max_position_embeddings": 40960, "rope_scaling": YARN_32K}, None),
        ("Qwen2ForCausalLM", {"max_position_embeddings": 131072}, None),
        ("LlamaForCausalLM", {"max_position_embeddings": 131072, "rope_scaling": LLAMA_31}, None),
        ("MixtralForCausalLM", {"max_position_embeddings": 32768}, None),
    ],
)
def test_what_a_models_documentation_extends(
    architecture: str, text_config: dict[str, Any], extension: tuple[int, int | None] | None
) -> None:
    expected = ContextExtension(*extension) if extension else None
    assert context_extension(architecture, text_config) == expected


def test_the_factor_is_as_small_as_will_do() -> None:
    yarn = ContextExtension(131072, trained_for=32768)
    assert '"factor": 2.0,' in yarn.setting(65536)
    assert '"factor": 2.5,' in yarn.setting(65537)
    assert '"factor": 4.0,' in yarn.setting(131072)
