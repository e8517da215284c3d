"""What is known of a model and of a GPU system, without a network.

The facts come from the data of the core that the replay loads: a model that is described
elsewhere alone could be enumerated and then not be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from spica_async.engine import runtime
from spica_async.engine.context import ContextExtension, context_extension, longest_sequence
from spica_async.engine.model_folder import check_model_folder, is_model_folder
from spica_async.engine.refusals import one_line
from spica_async.errors import file_problem, printable

# A model's weights are counted on one GPU; they are the same on every system and near enough on
# every backend (SGLang fuses some of DeepSeek's projections: 5 % less).
_REFERENCE_SYSTEM: Final = "h200_sxm"
_REFERENCE_BACKEND: Final = "vllm"
_ANY_COUNT: Final = 1
_SDK: Final = "aisimulate_core.sdk"
_LONGEST_NAME: Final = 300
_LONGEST_PROBLEM: Final = 2500
"""The names of all architectures that the engine models may stand in it."""


class UnknownModelError(ValueError):
    """No configuration of this model is at hand, and none is fetched."""


class UnknownSkuError(ValueError):
    """No system file describes this SKU."""


class NoPerfDatabaseError(ValueError):
    """Nobody has measured this backend on this SKU."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model.

    Attributes:
        model: Hugging Face id or local folder.
        architecture: The class name in the model's configuration.
        is_moe: Whether its feed-forward layers are mixtures of experts.
        max_context: Longest sequence by its own configuration, rope scaling counted, in tokens.
        weight_bytes: All weights in their own, often quantised, types.
        extension: What its documentation supports beyond `max_context`; none: nothing.
    """

    model: str
    architecture: str
    is_moe: bool
    max_context: int
    weight_bytes: int
    extension: ContextExtension | None = None


@dataclass(frozen=True, slots=True)
class HardwareFacts:
    """A GPU system.

    Attributes:
        sku: Its name.
        gpus_per_node: GPUs that share a node.
        vram_bytes: Memory of one GPU.
    """

    sku: str
    gpus_per_node: int
    vram_bytes: int


def known_models() -> tuple[str, ...]:
    """Ids of the models whose configuration ships with the engine, sorted."""
    return tuple(sorted(runtime.load(f"{_SDK}.common").DefaultHFModels))


@cache
def model_facts(model: str) -> ModelFacts:
    """What is known of a model, by id or by a local folder with its `config.json`.

    Raises:
        UnknownModelError: if no configuration of it is at hand, or the engine cannot model it.
    """
    # Asking the library for any other name would make it try the network, proxy and all.
    is_shipped = model in known_models()
    try:
        if not is_shipped:
            _check_folder(model)
        return _read_facts(model)
    except UnknownModelError:
        raise
    except OSError as error:
        raise UnknownModelError(f"{_named(model)}: {file_problem(error)}") from error
    except KeyError as error:
        raise UnknownModelError(
            f"{_named(model)} cannot be modelled: {one_line(error)} is missing"
        ) from error
    except ValueError as error:
        raise UnknownModelError(
            f"{_named(model)} cannot be modelled: {one_line(error, _LONGEST_PROBLEM)}"
        ) from error
    except BaseException as error:
        # What ships with the engine is sound; how else it fails over a folder nobody can foresee.
        if is_shipped or not runtime.is_fault(error):
            raise
        raise UnknownModelError(
            f"{_named(model)} cannot be modelled: the engine fails over its config.json "
            f"({type(error).__name__}: {one_line(error)})"
        ) from error


def _named(model: str) -> str:
    return f"model '{printable(model, _LONGEST_NAME)}'"


def _check_folder(model: str) -> None:
    # A relative path would mean another folder in each process, and get by who may name which.
    if not (Path(model).is_absolute() and is_model_folder(Path(model))):
        raise UnknownModelError(
            f"{_named(model)} is unknown: its configuration does not ship with the engine, and "
            "no hub is asked; give a known id or a folder with a config.json"
        )
    check_model_folder(Path(model))


def _read_facts(model: str) -> ModelFacts:
    config = runtime.load(f"{_SDK}.utils").get_model_config_from_model_path(model)
    estimator = runtime.load(f"{_SDK}.memory.kv_cache").KVCacheEstimator
    breakdown = estimator.from_request(
        model,
        _REFERENCE_SYSTEM,
        _REFERENCE_BACKEND,
        backend_version(_REFERENCE_SYSTEM, _REFERENCE_BACKEND),
        max_num_tokens=_ANY_COUNT,
        max_batch_size=_ANY_COUNT,
    ).breakdown
    architecture = str(config["architecture"])
    nested = runtime.load(f"{_SDK}.common").MULTIMODAL_TEXT_CONFIG_KEY.get(architecture)
    text_config = config["raw_config"].get(nested, config["raw_config"])
    return ModelFacts(
        model=model,
        architecture=architecture,
        is_moe=bool(runtime.load(f"{_SDK}.models").check_is_moe(model)),
        max_context=longest_sequence(text_config),
        weight_bytes=int(breakdown["weights_bytes"]),
        extension=context_extension(architecture, text_config),
    )


def known_skus() -> tuple[str, ...]:
    """Names of the SKUs that have a system file, sorted."""
    return tuple(sorted(_system_files()))


@cache
def hardware_facts(sku: str) -> HardwareFacts:
    """What is known of a SKU.

    Raises:
        UnknownSkuError: if it has no system file; the message names those that have.
    """
    spec = _system_spec(sku)
    return HardwareFacts(
        sku=sku,
        gpus_per_node=int(spec["node"]["num_gpus_per_node"]),
        vram_bytes=int(spec["gpu"]["mem_capacity"]),
    )


def backend_version(sku: str, backend: str) -> str:
    """The backend's version whose measurements a replay uses on this SKU.

    Raises:
        UnknownSkuError: if the SKU has no system file.
        NoPerfDatabaseError: if the backend was not measured on it.
    """
    # The library would look for development versions as well, through half a second of YAML.
    data = systems_folder(sku) / _system_spec(sku)["data_dir"]
    versions = _query_versions(systems_folder(sku))
    entry = versions.get("overrides", {}).get(sku, {}).get(backend)
    if entry is None:
        entry = versions["defaults"].get(backend)
    if not entry or not any(data.glob(f"*/{backend}/*")):
        raise NoPerfDatabaseError(f"no performance data for {backend} on {sku}")
    return str(entry["current"])


def systems_folder(sku: str) -> Path:
    """The folder of all systems that has this one.

    Raises:
        UnknownSkuError: if it has no system file; the message names those that have.
    """
    _system_spec(sku)
    return Path(_system_files()[sku])


def needs_wide_ep(model: ModelFacts, hardware: HardwareFacts) -> bool:
    """Whether a MoE's experts must be spread over nodes: one node cannot hold two copies."""
    node_bytes = hardware.gpus_per_node * hardware.vram_bytes
    return model.is_moe and node_bytes < 2 * model.weight_bytes


@cache
def _system_files() -> dict[str, str]:
    return {
        file.stem: str(root)
        for root in reversed(_perf_database().get_systems_paths())
        for file in Path(root).glob("*.yaml")
        if _describes_gpu(file)
    }


@cache
def _query_versions(systems: Path) -> dict[str, Any]:
    text = (systems / "query_versions.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = runtime.load("yaml").safe_load(text)
    return document


def _describes_gpu(file: Path) -> bool:
    # The folder also holds defaults and manifests.
    return "\ngpu:" in file.read_text(encoding="utf-8")


def _system_spec(sku: str) -> dict[str, Any]:
    files = _system_files()
    if sku not in files:
        raise UnknownSkuError(f"hardware_sku {sku!r} is unknown; known: {', '.join(sorted(files))}")
    spec: dict[str, Any] = _perf_database().load_system_spec(sku)
    return spec


def _perf_database() -> Any:
    return runtime.load(f"{_SDK}.perf_database")
