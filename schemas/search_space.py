"""The `search_space:` block: what is searched, what is pinned, and each knob's legal choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    ValidationInfo,
    field_validator,
    model_validator,
)

from schemas.base import ConfigModel, FieldError, shown
from schemas.presets import COMPOSITE_MODELS, COMPOSITE_PRESETS, LOAD_PREDICTOR_DEFAULTS

DeploymentMode = Literal["agg", "disagg"]
Backend = Literal["vllm", "sglang", "trtllm"]
RouterMode = Literal["kv_router", "round_robin"]
Role = Literal["agg", "prefill", "decode"]
MoeBackend = Literal["wideep", "deepep_moe", "megamoe"]
CompositeEntry = str | dict[str, JsonValue]

GPUS_PER_WORKER: Final = (1, 2, 4, 8, 16)
ROLES: Final[Mapping[DeploymentMode, tuple[Role, ...]]] = MappingProxyType(
    {"agg": ("agg",), "disagg": ("prefill", "decode")}
)

_BATCHED_TOKENS: Final = (8192, 16384, 32768)
_DECODING_SEQS: Final = (256, 512, 1024)

SEARCH_CHOICES: Final[Mapping[str, tuple[int | float | str, ...]]] = MappingProxyType(
    {
        "deployment_mode": ("disagg", "agg"),
        "backend": ("vllm", "sglang", "trtllm"),
        "prefill_max_num_batched_tokens": _BATCHED_TOKENS,
        "prefill_max_num_seqs": (1, 2, 4, 8, 16, 32, 64, 128, 256),
        "decode_max_num_batched_tokens": (8192,),
        "decode_max_num_seqs": _DECODING_SEQS,
        "agg_max_num_batched_tokens": _BATCHED_TOKENS,
        "agg_max_num_seqs": _DECODING_SEQS,
        "router_mode": ("kv_router", "round_robin"),
        "overlap_score_credit": (0.0, 0.5, 1.0),
        "prefill_load_scale": (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
        "router_temperature": (0.0, 0.2, 0.5, 1.0),
        "host_cache_hit_weight": (0.5, 0.75, 1.0),
        "disk_cache_hit_weight": (0.0, 0.25, 0.5),
    }
)
ADMISSION_SCALARS: Final = (
    "active_decode_blocks_threshold",
    "active_prefill_tokens_threshold",
    "active_prefill_tokens_threshold_frac",
    "no_admission_control",
)
OFFLOAD_SCALARS: Final = (
    "kv_bytes_per_token",
    "bandwidth_g1_to_g2_gbps",
    "bandwidth_g2_to_g1_gbps",
    "offload_batch_size",
)

_Count = Annotated[int, Field(gt=0)]
_Positive = Annotated[float, Field(gt=0)]
_Fraction = Annotated[float, Field(gt=0, le=1)]


def _composite_entry(value: object, info: ValidationInfo) -> object:
    knob = str(info.field_name)
    if isinstance(value, Mapping):
        COMPOSITE_MODELS[knob].model_validate(value)
        if knob == "load_predictor_candidates":
            _check_predictor_fields(value)
    elif not isinstance(value, str) or value not in COMPOSITE_PRESETS[knob]:
        raise ValueError(f"{shown(value)} is not a choice; use {_composite_choices(knob)}")
    return value


def _composite_choices(knob: str) -> str:
    presets, keys = COMPOSITE_PRESETS[knob], COMPOSITE_MODELS[knob].model_fields
    return f"{_listed(list(presets))}, or a mapping of {_listed(list(keys))}"


_Composite = Annotated[CompositeEntry, BeforeValidator(_composite_entry)]


class PinnedShape(ConfigModel):
    """One worker's parallel shape and its replicas, as a person pins it."""

    tp: _Count
    attention_dp: _Count = 1
    moe_tp: _Count = 1
    moe_ep: _Count = 1
    pp: _Count = 1
    replicas: _Count = 1

    @model_validator(mode="after")
    def _validate_shape(self) -> Self:
        if self.pp != 1:
            raise FieldError("pp", f"pipeline parallelism is not searched: 1, not {self.pp}")
        gpus = self.tp * self.attention_dp
        if gpus not in GPUS_PER_WORKER:
            raise FieldError(
                "tp",
                f"tp * attention_dp is {gpus} GPUs a worker; it must be one of "
                f"{_listed(GPUS_PER_WORKER)}",
            )
        return self


class PinnedPair(ConfigModel):
    """The shapes of both roles of a disaggregated deployment."""

    prefill: PinnedShape
    decode: PinnedShape


def pinned_config(value: object, *, other: str | None = None) -> object:
    """Check shapes as a person pins them.

    Args:
        value: as it was read.
        other: what might be there as well, for the error.

    Raises:
        ValueError: it is nothing of the kind, or breaks a rule.
    """
    # Chosen by its keys, so that an error speaks of the one form that was meant.
    if isinstance(value, Mapping) and ("prefill" in value or "decode" in value):
        return PinnedPair.model_validate(value)
    if isinstance(value, Mapping):
        return PinnedShape.model_validate(value)
    if not isinstance(value, PinnedShape | PinnedPair):
        raise ValueError(  # noqa: TRY004  # pydantic's way
            f"{f'{other}, or ' if other else ''}a mapping, {{tp: ...}} or "
            f"{{prefill: {{...}}, decode: {{...}}}}, not {shown(value)}"
        )
    return value


PinnedConfig = Annotated[PinnedShape | PinnedPair, BeforeValidator(pinned_config)]


def _listed(values: Sequence[object]) -> str:
    return ", ".join(str(value) for value in values)


def _all(knob: str) -> Any:
    """A field that searches every choice of its knob unless told otherwise."""
    choices = list(SEARCH_CHOICES[knob] if knob in SEARCH_CHOICES else COMPOSITE_PRESETS[knob])
    # The validators check the entries, and a JSON Schema knows nothing of validators.
    entry: dict[str, Any] = {"enum": choices}
    if knob in COMPOSITE_MODELS:
        entry = {"anyOf": [entry, COMPOSITE_MODELS[knob].model_json_schema()]}
    schema: dict[str, Any] = {"items": entry, "minItems": 1}
    return Field(default_factory=lambda: list(choices), json_schema_extra=schema)


class SearchSpace(ConfigModel):
    """The knobs to explore and the pinned context of one sweep.

    A list knob pins with one entry and is searched with several. A scalar is pinned. An entry of a
    composite knob is a preset's id or a mapping with all of its fields.
    """

    # Deployment
    deployment_mode: list[DeploymentMode] = _all("deployment_mode")
    backend: list[Backend] = Field(default=["vllm"])
    model_name: str = Field(min_length=1)
    hardware_sku: str = Field(min_length=1)
    gpu_budget: _Count = 32
    min_gpu_budget: _Count | None = None
    min_endpoint: _Count | None = None
    context_length: _Count | None = None
    startup_time: Annotated[float, Field(ge=0)] | None = None
    aic_nextn: Annotated[int, Field(ge=0)] | None = None
    moe_backend: MoeBackend | None = None
    parallel_configs: list[PinnedConfig] = Field(default_factory=list)

    # Engines
    prefill_max_num_batched_tokens: list[int] = _all("prefill_max_num_batched_tokens")
    prefill_max_num_seqs: list[int] = _all("prefill_max_num_seqs")
    prefill_block_size: _Count = 64
    prefill_gpu_memory_utilization: _Fraction = 0.9
    prefill_enable_prefix_caching: bool = True
    decode_max_num_batched_tokens: list[int] = _all("decode_max_num_batched_tokens")
    decode_max_num_seqs: list[int] = _all("decode_max_num_seqs")
    decode_block_size: _Count = 64
    decode_gpu_memory_utilization: _Fraction = 0.9
    decode_enable_prefix_caching: bool = False
    agg_max_num_batched_tokens: list[int] = _all("agg_max_num_batched_tokens")
    agg_max_num_seqs: list[int] = _all("agg_max_num_seqs")
    agg_block_size: _Count = 64
    agg_gpu_memory_utilization: _Fraction = 0.9
    agg_enable_prefix_caching: bool = True

    # KV manager
    num_g2_blocks: Annotated[int, Field(ge=0)] = 0
    kv_bytes_per_token: _Count | None = None
    bandwidth_g1_to_g2_gbps: _Positive | None = None
    bandwidth_g2_to_g1_gbps: _Positive | None = None
    offload_batch_size: _Count | None = None

    # Router
    router_mode: list[RouterMode] = _all("router_mode")
    overlap_score_credit: list[float] = _all("overlap_score_credit")
    prefill_load_scale: list[float] = _all("prefill_load_scale")
    router_temperature: list[float] = _all("router_temperature")
    host_cache_hit_weight: list[float] = _all("host_cache_hit_weight")
    disk_cache_hit_weight: list[float] = _all("disk_cache_hit_weight")
    # Inert here, whatever they are: their limits are for the frontend to know.
    active_decode_blocks_threshold: float | None = None
    active_prefill_tokens_threshold: int | None = None
    active_prefill_tokens_threshold_frac: float | None = None
    no_admission_control: bool = False

    # Planner
    planner_scaling_policy: list[_Composite] = _all("planner_scaling_policy")
    planner_fpm_sampling: list[_Composite] = _all("planner_fpm_sampling")
    planner_load_sensitivity: list[_Composite] = _all("planner_load_sensitivity")
    load_predictor_candidates: list[_Composite] = _all("load_predictor_candidates")

    def is_set(self, name: str) -> bool:
        """Whether a setting differs from its default, which a resolved configuration spells out."""
        value = getattr(self, name)
        default = type(self).model_fields[name].get_default(call_default_factory=True)
        if isinstance(value, list):
            # The order of the entries says nothing.
            return sorted(map(str, value)) != sorted(map(str, default))
        return bool(value != default)

    @model_validator(mode="before")
    @classmethod
    def _validate_admission(cls, values: object) -> object:
        # Before anything else: whatever value there is, another would be as wrong.
        if not isinstance(values, Mapping):
            return values
        modes = values.get("router_mode", list(SEARCH_CHOICES["router_mode"]))
        if isinstance(modes, list) and "kv_router" in modes:
            for name in ADMISSION_SCALARS:
                if values.get(name) not in (None, False):
                    raise FieldError(
                        name,
                        "a replay has no admission control, so a kv_router result would not hold; "
                        "remove it or pin router_mode to [round_robin]",
                    )
        return values

    @field_validator(*SEARCH_CHOICES, mode="before")
    @classmethod
    def _validate_search_choices(cls, value: object, info: ValidationInfo) -> object:
        choices = SEARCH_CHOICES[str(info.field_name)]
        _check_list(value, _listed(choices))
        assert isinstance(value, list)  # noqa: S101  # checked the line before
        for entry in value:
            if isinstance(entry, bool) or entry not in choices:
                raise ValueError(f"{shown(entry)} is not a choice; use {_listed(choices)}")
        return value

    @field_validator(*COMPOSITE_PRESETS, mode="before")
    @classmethod
    def _validate_composites(cls, value: object, info: ValidationInfo) -> object:
        _check_list(value, _composite_choices(str(info.field_name)))
        return value

    @model_validator(mode="after")
    def _validate_scalars(self) -> Self:
        if self.min_gpu_budget is not None and self.min_gpu_budget > self.gpu_budget:
            raise FieldError(
                "min_gpu_budget", f"{self.min_gpu_budget} is over gpu_budget {self.gpu_budget}"
            )
        if self.num_g2_blocks and self.kv_bytes_per_token is None:
            raise FieldError("kv_bytes_per_token", "required once num_g2_blocks is over 0")
        if "disagg" in self.deployment_mode and self.prefill_block_size != self.decode_block_size:
            raise FieldError(
                "decode_block_size",
                f"must be {self.prefill_block_size} as prefill_block_size: blocks are handed over",
            )
        if self.decode_enable_prefix_caching:
            raise FieldError(
                "decode_enable_prefix_caching",
                "decode workers receive their KV cache and never cache prefixes: false",
            )
        return self

    @model_validator(mode="after")
    def _validate_parallel_configs(self) -> Self:
        if not self.parallel_configs:
            return self
        if len(self.deployment_mode) != 1:
            raise FieldError(
                "deployment_mode", "list exactly one mode (agg or disagg) with parallel_configs"
            )
        (mode,) = self.deployment_mode
        wanted = PinnedShape if mode == "agg" else PinnedPair
        form = "one shape, {tp: ...}" if mode == "agg" else "{prefill: {...}, decode: {...}}"
        for index, config in enumerate(self.parallel_configs):
            if not isinstance(config, wanted):
                raise FieldError(f"parallel_configs[{index}]", f"an entry for {mode} is {form}")
        return self


def _check_list(value: object, allowed: str) -> None:
    if not isinstance(value, list) or not value:
        raise ValueError(f"a list of one or more of {allowed}")


def _check_predictor_fields(entry: Mapping[str, object]) -> None:
    family = entry["load_predictor"]
    for name in entry:
        owner = name.split("_", 1)[0]
        if owner in LOAD_PREDICTOR_DEFAULTS and owner != family:
            raise ValueError(f"{name} has no effect on the {family} predictor")
