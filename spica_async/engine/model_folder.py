"""A folder that stands for a model: whether it is one, and what keeps the engine from reading it.

The engine takes what it finds for sound. A wrong type fails deep within it, in words that name no
field; a quantisation that it overlooks, it takes for none and counts twice the weights.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from spica_async.engine import runtime
from spica_async.engine.model_files import CONFIG, MAX_BYTES, QUANTIZATION
from spica_async.engine.refusals import one_line
from spica_async.errors import file_problem

_MOST: Final = {"num_hidden_layers": 10_000}
_LARGEST: Final = 2**31 - 1
_NEEDED: Final = ("hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings")
# Where these are left out, the engine counts none, which makes weights or KV cache far too small;
# some models have them for each layer by itself.
_NEEDED_ONCE: Final = (("num_key_value_heads",), ("intermediate_size", "moe_intermediate_size"))
_BY_LAYER: Final = "block_configs"
_COUNTS: Final = (
    *("num_hidden_layers", "num_key_value_heads", "head_dim", "intermediate_size"),
    *("num_experts", "n_routed_experts", "num_local_experts", "moe_intermediate_size"),
    *("num_experts_per_tok", "n_shared_experts"),
)
# In each of these some tool has written how it has quantised; the engine looks into none of them.
_OTHER_FILES: Final = ("quantize_config.json", "quant_config.json")
_OTHER_KEYS: Final = ("compression_config", "quantization")
_SDK: Final = "aisimulate_core.sdk"


def is_model_folder(path: Path) -> bool:
    """Whether there is a model's configuration in a folder; a name that no path can have is none.

    Raises:
        OSError: that cannot be seen, e.g. for want of permission.
    """
    try:
        return (path / CONFIG).is_file()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def check_model_folder(folder: Path) -> None:
    """Look through what the engine will read of a folder.

    Raises:
        ValueError: it cannot be modelled, or would be taken for another model; the message names
            the file and the key.
    """
    config, sidecar = _read_both(folder)
    _check_shape(config)
    _check_quantization(folder, config, sidecar)


def check_left_behind(folder: Path) -> None:
    """Look through what stays behind when the files that the engine reads go elsewhere.

    Raises:
        ValueError: as `check_model_folder`, where one of these says how the weights are quantised.
    """
    config, sidecar = _read_both(folder)
    if not _declared(config, sidecar):
        _refuse_unread_quantization(folder, config)


def _read_both(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    sidecar = folder / QUANTIZATION
    return _read(folder / CONFIG), _read(sidecar) if sidecar.exists() else {}


def _declared(config: Mapping[str, Any], sidecar: Mapping[str, Any]) -> Any:
    return config.get("quantization_config") or sidecar.get("quantization")


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            body = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path.name}: {file_problem(error)}") from None
    if len(body) > MAX_BYTES:
        raise ValueError(f"{path.name}: longer than {MAX_BYTES:,} bytes")
    try:
        document = json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name}: not valid JSON: {one_line(error)}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path.name}: not a JSON object")  # noqa: TRY004  # the value of a file
    return document


def _check_shape(config: Mapping[str, Any]) -> None:
    text, prefix = _text_config(config)
    for name in _NEEDED:
        if text.get(name) is None:
            raise ValueError(f"{CONFIG}: {prefix}{name}: missing")
    for names in () if _BY_LAYER in text else _NEEDED_ONCE:
        if not any(text.get(name) for name in names):
            raise ValueError(f"{CONFIG}: {prefix}{names[0]}: missing")
    for name in (*_NEEDED, *_COUNTS):
        value = text.get(name)
        most = _MOST.get(name, _LARGEST)
        least = 1 if name in _NEEDED or name == "num_hidden_layers" else 0
        if value is None or (type(value) is int and least <= value <= most):
            continue
        raise ValueError(
            f"{CONFIG}: {prefix}{name}: a whole number from {least} to {most:,}, not {value!r:.60}"
        )


def _text_config(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The part that describes the language model, and what stands before the names of its keys."""
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ValueError(f"{CONFIG}: architectures: a list with the model's class")
    common = runtime.load(f"{_SDK}.common")
    known = common.ARCHITECTURE_TO_MODEL_FAMILY
    architecture = architectures[0]
    if not isinstance(architecture, str) or architecture not in known:
        raise ValueError(
            f"{CONFIG}: architectures: the engine has no model of {architecture!r:.60}; it has "
            + ", ".join(sorted(known))
        )
    nested = common.MULTIMODAL_TEXT_CONFIG_KEY.get(architecture)
    if nested not in config:
        return config, ""
    text = config[nested]
    if not isinstance(text, dict):
        raise ValueError(f"{CONFIG}: {nested}: a mapping")  # noqa: TRY004  # the value of a file
    return text, f"{nested}."


def _check_quantization(
    folder: Path, config: Mapping[str, Any], sidecar: Mapping[str, Any]
) -> None:
    """Refuse a quantisation that the engine does not know, or would take for none."""
    if sidecar and not isinstance(sidecar.get("quantization"), dict):
        raise ValueError(f"{QUANTIZATION}: quantization: a mapping")
    where = f"{CONFIG}: quantization_config" if config.get("quantization_config") else QUANTIZATION
    declared = _declared(config, sidecar)
    if not declared:
        _refuse_unread_quantization(folder, config)
        return
    if not isinstance(declared, dict):
        raise ValueError(f"{where}: a mapping, not {declared!r:.60}")  # noqa: TRY004  # the value of a file
    utils = runtime.load(f"{_SDK}.utils")
    helpers = runtime.load(f"{_SDK}.models.helpers")
    raw = utils.get_model_config_from_model_path(str(folder))["raw_config"]
    algorithm = raw.get("quant_algo")
    try:
        modes = helpers._infer_quant_modes_from_raw_config(raw)  # noqa: SLF001  # only it knows
    except (AttributeError, ValueError) as error:
        raise ValueError(
            f"{where}: the engine has no timing of {algorithm!r:.60} ({one_line(error)})"
        ) from None
    is_moe = runtime.load(f"{_SDK}.models").check_is_moe(str(folder))
    weights = ("gemm_quant_mode", "moe_quant_mode") if is_moe else ("gemm_quant_mode",)
    if _names_weights(declared) and all(
        name not in modes or modes[name].name == "bfloat16" for name in weights
    ):
        raise ValueError(
            f"{where}: the engine would take {algorithm or declared!r:.60} for none: it names"
            " no method and groups that it knows"
        )


def _names_weights(declared: Mapping[str, Any]) -> bool:
    """Whether more than the KV cache is quantised."""
    return any(
        value for name, value in declared.items() if value and not name.startswith("kv_cache")
    )


def _refuse_unread_quantization(folder: Path, config: Mapping[str, Any]) -> None:
    for name in _OTHER_KEYS:
        if config.get(name):
            raise ValueError(
                f"{CONFIG}: {name}: the engine reads a quantisation from quantization_config alone"
            )
    for name in _OTHER_FILES:
        if (folder / name).exists():
            raise ValueError(
                f"{name}: the engine reads a quantisation from {CONFIG} or {QUANTIZATION} alone"
            )
