"""The `confirm:` block: what of a sweep is measured again, and how often."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from schemas.base import ConfigModel, FieldError

_MOST_LOADS = 5


def _as_word(value: object) -> object:
    """YAML 1.1 takes `on` and `off` for true and false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class Confirm(ConfigModel):
    """What is measured again, and how often.

    Attributes:
        enabled: `auto` measures those again whose replays differ, `on` all of the best, `off` none.
        top: how many of the best are to be confirmed; a Pareto front as far as that goes.
        max_replays: replays that all of them may take together once the search is over.
        precision: the part of the mean that half of its 95 % interval is to come down to.
        search_share: the part of the budget that may be replayed besides, during the search, to see
            whether what seems to be the best is.
        loads: factors of the workload's load that each of the best is replayed under.
    """

    enabled: Annotated[Literal["auto", "on", "off"], BeforeValidator(_as_word)] = "auto"
    top: Annotated[int, Field(ge=1)] = 5
    max_replays: Annotated[int, Field(ge=0)] = 40
    precision: Annotated[float, Field(gt=0, lt=1)] = 0.02
    search_share: Annotated[float, Field(ge=0, le=1)] = 0.25
    loads: list[Annotated[float, Field(gt=0, le=10)]] = Field(
        default_factory=lambda: [0.8, 1.0, 1.2], max_length=_MOST_LOADS
    )

    @property
    def other_loads(self) -> tuple[float, ...]:
        """The loads but that of the workload itself."""
        return tuple(load for load in self.loads if load != 1.0)

    @model_validator(mode="after")
    def _validate_off(self) -> Self:
        if self.enabled == "off":
            for name, field in type(self).model_fields.items():
                default = field.get_default(call_default_factory=True)
                if name != "enabled" and getattr(self, name) != default:
                    raise FieldError(name, "has no effect with enabled: off")
        if len(set(self.loads)) != len(self.loads):
            raise FieldError("loads", "list distinct factors")
        return self
