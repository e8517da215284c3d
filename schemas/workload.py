"""The `workload:` block: a trace, a request rate, a fixed concurrency or a KV load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from schemas.base import ConfigModel, FieldError

WINDOW: Final = "window"
"""In the context of a validation it is what is taken where a document says nothing of it."""
LOAD_FIELDS: Final = ("request_rate", "concurrency", "kv_load_ratio")
LENGTH_FIELDS: Final = ("isl", "osl", "num_request_ratio")
SYNTHETIC_FIELDS: Final = (
    *LOAD_FIELDS,
    *LENGTH_FIELDS,
    "shared_prefix_ratio",
    "num_prefix_groups",
    "turns_per_session",
    "inter_turn_delay_ms",
    WINDOW,
)
TRACE_FIELDS: Final = ("trace_format", "arrival_speedup_ratio", "replay_concurrency")

_Count = Annotated[int, Field(gt=0)]
_Positive = Annotated[float, Field(gt=0)]


class Workload(ConfigModel):
    """What is replayed against every candidate."""

    trace_path: Path | None = Field(default=None, strict=False)
    trace_format: Literal["mooncake"] = "mooncake"
    arrival_speedup_ratio: _Positive = 1.0
    replay_concurrency: _Count | None = None

    request_rate: _Positive | None = None
    concurrency: _Count | None = None
    kv_load_ratio: float | list[float] | None = None
    isl: _Count | None = None
    osl: _Count | None = None
    num_request_ratio: _Positive | None = None
    shared_prefix_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    num_prefix_groups: Annotated[int, Field(ge=0)] = 0
    turns_per_session: _Count = 1
    inter_turn_delay_ms: Annotated[float, Field(ge=0)] = 0.0
    window: Literal["steady", "whole"] | None = None

    @property
    def is_trace(self) -> bool:
        """Whether requests come from a trace rather than being made up."""
        return self.trace_path is not None

    @property
    def load_field(self) -> str | None:
        """The name of the synthetic load field that is set, if one is."""
        return next((name for name in LOAD_FIELDS if getattr(self, name) is not None), None)

    @property
    def kv_load_range(self) -> tuple[float, float] | None:
        """The bounds of a KV load to search, or None when it is one value or absent."""
        ratio = self.kv_load_ratio
        return (ratio[0], ratio[1]) if isinstance(ratio, list) else None

    @field_validator("kv_load_ratio", mode="before")
    @classmethod
    def _validate_kv_load(cls, value: object) -> object:
        if value is None:
            return value
        bounds = value if isinstance(value, list) else [value]
        for bound in bounds:
            if isinstance(bound, bool) or not isinstance(bound, int | float):
                raise ValueError("a number >= 0, or [min, max]")  # noqa: TRY004  # pydantic's way
            if not 0 <= bound < float("inf"):
                raise ValueError("finite and >= 0")
        if isinstance(value, list) and not (len(value) == 2 and value[0] < value[1]):
            raise ValueError("a range is [min, max] with min < max")
        return value

    @model_validator(mode="before")
    @classmethod
    def _fill_in_window(cls, value: object, info: ValidationInfo) -> object:
        """A closed synthetic load is measured where it is steady, unless something else is said."""
        if not isinstance(value, dict) or value.get("trace_path") or value.get(WINDOW):
            return value
        is_closed = value.get("request_rate") is None and value.get("turns_per_session", 1) == 1
        default = "steady" if is_closed else "whole"
        return {**value, WINDOW: (info.context or {}).get(WINDOW, default)}

    @model_validator(mode="after")
    def _validate_shape(self) -> Self:
        if self.is_trace:
            self._refuse(SYNTHETIC_FIELDS, "not with trace_path, which brings its own requests")
            return self
        self._refuse(TRACE_FIELDS, "only with trace_path")
        loads = [name for name in LOAD_FIELDS if getattr(self, name) is not None]
        if len(loads) > 1:
            raise FieldError(loads[1], f"set only one of {', '.join(LOAD_FIELDS)}")
        missing = [name for name in LENGTH_FIELDS if getattr(self, name) is None]
        if missing:
            raise FieldError(
                missing[0],
                "required: a workload is a trace_path, or isl, osl, num_request_ratio and one of "
                + ", ".join(LOAD_FIELDS),
            )
        if bool(self.shared_prefix_ratio) != bool(self.num_prefix_groups):
            one, other = "num_prefix_groups", "shared_prefix_ratio"
            if self.num_prefix_groups:
                one, other = other, one
            raise FieldError(other, f"no effect while {one} is 0")
        if self.window == "steady" and self.request_rate is not None:
            raise FieldError("window", "steady has no effect with request_rate, an open load")
        if self.window == "steady" and self.turns_per_session > 1:
            raise FieldError("window", "steady has no effect with turns_per_session over 1")
        if self.inter_turn_delay_ms and self.turns_per_session == 1:
            raise FieldError("inter_turn_delay_ms", "no effect with turns_per_session 1")
        return self

    def _refuse(self, names: tuple[str, ...], problem: str) -> None:
        for name in names:
            if name in self.model_fields_set:
                raise FieldError(name, problem)
