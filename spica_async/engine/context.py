"""The longest sequence that a model's servers start with, by the model's own configuration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

# As vLLM has it: under these max_position_embeddings counts the scaling already.
_UNSCALED: Final = frozenset(
    {None, "default", "llama3", "longrope", "su", "mrope", "proportional", "none"}
)
# Of Qwen's families the model cards document YaRN up to four times what they were trained for;
# 40,960 is 32,768 and room for an answer.
_YARN_FACTOR: Final = 4
_YARN_ARCHITECTURES: Final = ("Qwen2", "Qwen3")
_TRAINED_FOR: Final = {32_768: 32_768, 40_960: 32_768, 262_144: 262_144}
# Without rotary positions nothing but the server's own limit has to be raised, as its cards say.
_WITHOUT_POSITIONS: Final = "NemotronHForCausalLM"
_NEMOTRON_LENGTHS: Final = {262_144: 1_048_576}


@dataclass(frozen=True, slots=True)
class ContextExtension:
    """A longer context that a model's documentation supports once its servers are set up for it.

    Attributes:
        longest: Tokens of the longest sequence then.
        trained_for: The length that YaRN scales, in tokens; none: no scaling is needed.
    """

    longest: int
    trained_for: int | None = None

    def setting(self, length: int) -> str:
        """What has to be set for sequences of `length` tokens, in a few words.

        Args:
            length: Not over `longest`.
        """
        if self.trained_for is None:
            return "the server's limit raised"
        factor = math.ceil(2 * length / self.trained_for) / 2
        return (
            f'YaRN, {{"rope_type": "yarn", "factor": {factor}, '
            f'"original_max_position_embeddings": {self.trained_for}}}'
        )


def longest_sequence(text_config: Mapping[str, Any]) -> int:
    """Tokens of the longest sequence, rope scaling counted.

    Args:
        text_config: The part of `config.json` that describes the language model.

    Raises:
        ValueError: a number in it is none.
    """
    positions = _number("max_position_embeddings", text_config["max_position_embeddings"])
    lengths = [positions]
    for where, scaling in _scalings(text_config):
        kind = scaling.get("rope_type", scaling.get("type"))
        if kind in _UNSCALED or scaling.get("factor") is None:
            continue
        length = positions
        if "yarn" in str(kind) and scaling.get("original_max_position_embeddings") is not None:
            name = "original_max_position_embeddings"
            length = _number(f"{where}.{name}", scaling[name])
        lengths = [int(length * _number(f"{where}.factor", scaling["factor"]))]
    return int(lengths[0])


def context_extension(architecture: str, text_config: Mapping[str, Any]) -> ContextExtension | None:
    """What the model's documentation knows beyond `longest_sequence`, or None.

    Args:
        architecture: The class name in the model's configuration.
        text_config: As `longest_sequence`.
    """
    positions = text_config["max_position_embeddings"]
    if architecture == _WITHOUT_POSITIONS and positions in _NEMOTRON_LENGTHS:
        return ContextExtension(_NEMOTRON_LENGTHS[positions])
    is_scaled = any(
        scaling.get("rope_type", scaling.get("type")) not in _UNSCALED
        for _, scaling in _scalings(text_config)
    )
    if (
        not architecture.startswith(_YARN_ARCHITECTURES)
        or positions not in _TRAINED_FOR
        or is_scaled
    ):
        return None
    trained_for = _TRAINED_FOR[positions]
    return ContextExtension(_YARN_FACTOR * trained_for, trained_for)


def _scalings(text_config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rope scaling of all layers, or that of each kind of layer, with its name in the file."""
    for name in ("rope_scaling", "rope_parameters"):
        scaling = text_config.get(name)
        if not scaling:
            continue
        if not isinstance(scaling, Mapping):
            raise ValueError(f"config.json: {name}: a mapping, not {scaling!r:.60}")  # noqa: TRY004  # the value of a file
        by_layer = [
            (f"{name}.{layer}", value)
            for layer, value in scaling.items()
            if isinstance(value, Mapping)
        ]
        yield from by_layer if len(by_layer) == len(scaling) else [(name, scaling)]
        return


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**31:
        raise ValueError(f"config.json: {name}: a number over 0 and under 2^31, not {value!r:.60}")
    return value
