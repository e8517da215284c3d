"""Model folders through all that planning asks of the engine about them."""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from fuzzing.harness import Wrong
from fuzzing.mutation import STRANGE, change_bytes, change_document
from schemas.config import SmartSearchConfig
from schemas.messages import Sample
from spica_async.engine import runtime
from spica_async.engine.estimates import Steps, StepTimes
from spica_async.errors import InputError
from spica_async.plan.answers import Answers
from spica_async.plan.build import plan_sweep
from spica_async.plan.installed import InstalledEngine

_LONGEST_LINE: Final = 3000
_UNPRINTABLE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_CONFIG: Final = "config.json"
_QUANT: Final = "hf_quant_config.json"

_QUANTIZATIONS: Final[tuple[Any, ...]] = (
    {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
    {"quant_method": "fp8", "activation_scheme": "static"},
    {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8}},
    {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]},
    {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {}},
    {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
    {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
    {"quant_method": "gptq", "bits": 3, "group_size": -1},
    {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
    *({"quant_method": name} for name in ("gguf", "quark", "hqq", "aqlm", "torchao", "eetq", "x")),
    *(
        {
            "quant_method": "compressed-tensors",
            "format": kind,
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": bits, "type": of, "strategy": "channel"},
                    "input_activations": activations,
                }
            },
        }
        for kind, bits, of in (
            ("int-quantized", 8, "int"),
            ("pack-quantized", 4, "int"),
            ("float-quantized", 8, "float"),
            ("nvfp4-pack-quantized", 4, "float"),
            ("naive-quantized", 8, "int"),
        )
        for activations in (None, {"num_bits": bits, "type": of, "strategy": "token"})
    ),
    *({}, {"quant_method": None}, {"quant_method": "compressed-tensors", "config_groups": {}}),
    *(None, [], "fp8", 8),
)
_QUANT_FILES: Final[tuple[Any, ...]] = (
    *(
        {
            "producer": {"name": "modelopt"},
            "quantization": {"quant_algo": algo, "kv_cache_quant_algo": kv},
        }
        for algo in (
            "FP8",
            "NVFP4",
            "W4A16_AWQ",
            "W4A8_AWQ",
            "INT8",
            "W8A8_SQ_PER_CHANNEL",
            "FP8_PB_WO",
            None,
            7,
        )
        for kv in ("FP8", None, "NVFP4", 8)
    ),
    {
        "quantization": {
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {"a": {"quant_algo": "FP8"}},
        }
    },
    *(
        {},
        {"quantization": None},
        {"quantization": []},
        {"quantization": {"exclude_modules": None}},
        [],
        None,
    ),
)
_ROPES: Final[tuple[Any, ...]] = (
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    {"type": "yarn", "factor": 40, "mscale": 1.0, "beta_fast": 32},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"type": "linear", "factor": 2.0},
    {"type": "dynamic", "factor": -1},
    {"rope_type": "longrope", "long_factor": [1.0], "short_factor": [1.0]},
    {"type": "mrope", "mrope_section": [16, 24, 24]},
    {"type": "su", "factor": "4"},
    *({}, {"factor": 0}, {"factor": 1e30}, {"type": None}, None, [], "yarn", 4),
)
_BACKENDS: Final = ("vllm", "sglang", "trtllm")
# Whose data the engine loads for all that are like them.
_WARMED_WITH: Final = ("Qwen/Qwen3-32B", "deepseek-ai/DeepSeek-V3.2", "Qwen/Qwen3-30B-A3B")


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of a model, and what is searched of it."""

    files: dict[str, bytes]
    backend: str
    budget: int
    shapes: list[dict[str, int]]


class _Engine(InstalledEngine):
    """Leaves out what replays, which takes seconds and asks nothing more of the model's files."""

    def probe_replay(self, sample: Sample) -> str | None:
        del sample
        return None

    def step_times(self, workers: Sequence[Any], steps: Steps) -> Sequence[StepTimes | str]:
        del steps
        return ["not estimated"] * len(workers)


class Models:
    """See the module.

    Args:
        folder: for the folders of models.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        spec = find_spec("aisimulate_core")
        assert spec is not None
        assert spec.origin is not None
        shipped = Path(spec.origin).parent / "model_configs"
        self._known = [
            (json.loads(path.read_text()), _beside(path))
            for path in sorted(shipped.glob("*_config.json"))
            if not path.name.endswith(f"_{_QUANT}")
        ]

    def make(self, rng: random.Random) -> Folder:
        """See `Subject.make`."""
        config, quant = rng.choice(self._known)
        files: dict[str, Any] = {_CONFIG: config}
        if quant is not None:
            files[_QUANT] = quant
        for _ in range(rng.choice((1, 1, 1, 2))):
            if isinstance(files[_CONFIG], dict):
                self._change(rng, files)
        written = {name: json.dumps(document).encode() for name, document in files.items()}
        if rng.random() < 0.1:
            name = rng.choice(sorted(written))
            written[name] = change_bytes(rng, written[name])
        shapes: list[dict[str, int]] = []
        budget = rng.choice((1, 2, 8))
        if budget == 8:
            shapes.append({"tp": 8, **rng.choice(({}, {"moe_ep": 8}, {"moe_tp": 8}))})
        return Folder(written, rng.choice(_BACKENDS), budget, shapes)

    def _change(self, rng: random.Random, files: dict[str, Any]) -> None:
        config = files[_CONFIG]
        match rng.randrange(9):
            case 0:
                files[_CONFIG] = {**config, "quantization_config": rng.choice(_QUANTIZATIONS)}
            case 1:
                files[_QUANT] = rng.choice(_QUANT_FILES)
            case 2:
                name = rng.choice(("rope_scaling", "rope_parameters"))
                files[_CONFIG] = {**config, name: rng.choice(_ROPES)}
            case 3:
                files[_CONFIG] = _without_one(rng, config)
            case 4:
                files[_CONFIG] = _with_another(rng, config, [c for c, _ in self._known])
            case 5 if _QUANT in files:
                files[_QUANT] = change_document(rng, files[_QUANT])
            case _:
                files[_CONFIG] = _with_one_changed(rng, config)

    def try_one(self, case: Folder) -> str:
        """See `Subject.try_one`."""
        # The engine remembers a folder by its name.
        self._made += 1
        folder = self._folder / f"model-{self._made}"
        folder.mkdir()
        for name, content in case.files.items():
            (folder / name).write_bytes(content)
        config = _config(str(folder), case.backend, case.budget, case.shapes)
        try:
            plan = plan_sweep(config, _Engine(Answers(), folder), None, lambda _: None)
        except InputError as error:
            return _checked(str(error))
        model = plan.model
        if model.weight_bytes <= 0 or plan.longest_sequence <= 0:
            raise Wrong(f"facts that cannot be: {model}")
        if any(isinstance(tokens, int) and tokens <= 0 for tokens in plan.capacity.values()):
            raise Wrong(f"a capacity that cannot be: {plan.capacity}")
        return "planned"


def _config(
    model: str, backend: str, budget: int, shapes: Sequence[dict[str, int]] = ()
) -> SmartSearchConfig:
    return SmartSearchConfig.model_validate(
        {
            "search_space": {
                "model_name": model,
                "hardware_sku": "h200_sxm",
                "backend": [backend],
                "gpu_budget": budget,
                "deployment_mode": ["agg"],
                "parallel_configs": list(shapes),
                "agg_max_num_batched_tokens": [8192],
                "planner_scaling_policy": ["disabled"],
            },
            "workload": {"isl": 512, "osl": 64, "concurrency": 8, "num_request_ratio": 2},
        }
    )


@contextmanager
def opened() -> Iterator[Models]:
    """What plans a sweep of a model."""
    runtime.prepare()
    for model in _WARMED_WITH:
        for backend in _BACKENDS:
            # What its first use takes is no fault of a folder.
            with suppress(InputError):
                plan_sweep(_config(model, backend, 1), _Engine(Answers()), None, lambda _: None)
    with tempfile.TemporaryDirectory(prefix="spica-fuzz-") as folder:
        yield Models(Path(folder))


def _checked(text: str) -> str:
    for line in text.split("\n"):
        if len(line) > _LONGEST_LINE:
            raise Wrong(f"a refusal of endless length: {line[:1000]!r}")
        if _UNPRINTABLE.search(line):
            raise Wrong(f"a refusal with unprintable characters: {line!r}")
    if text.startswith("search_space.model_name: "):
        if "\n" in text:
            raise Wrong(f"a refusal of many lines: {text[:1000]!r}")
        return "refused"
    if text.startswith(("search_space: no deployment", "search_space.parallel_configs[0]: ")):
        return "nothing viable"
    raise Wrong(f"a refusal that does not name the model: {text[:1000]!r}")


def _beside(config: Path) -> Any:
    quant = config.with_name(config.name.replace(f"_{_CONFIG}", f"_{_QUANT}"))
    return json.loads(quant.read_text()) if quant.exists() else None


def _part(rng: random.Random, config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A copy, and the mapping of it that is to be changed: at times that of its text model."""
    copy = json.loads(json.dumps(config))
    inner = [value for value in copy.values() if isinstance(value, dict) and value]
    return copy, rng.choice(inner) if inner and rng.random() < 0.5 else copy


def _without_one(rng: random.Random, config: dict[str, Any]) -> dict[str, Any]:
    copy, part = _part(rng, config)
    if part:
        del part[rng.choice(sorted(part))]
    return copy


def _with_one_changed(rng: random.Random, config: dict[str, Any]) -> Any:
    copy, part = _part(rng, config)
    if rng.random() < 0.3 or not part:
        return change_document(rng, copy)
    name = rng.choice(sorted(part))
    value = part[name]
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.7:
        part[name] = value * rng.choice((0, -1, 2, 3, 0.5, 1000, 10**9, 1e300, 7))
    else:
        part[name] = rng.choice(STRANGE)
    return copy


def _with_another(
    rng: random.Random, config: dict[str, Any], others: list[dict[str, Any]]
) -> dict[str, Any]:
    """With what another model has under a key, or as another architecture."""
    other = rng.choice(others)
    name = rng.choice((*sorted(other), "architectures", "model_type", "text_config"))
    return {**config, name: other.get(name)}
