"""Base classes that fix how configuration and messages treat unknown fields and odd numbers."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

_LONGEST_SHOWN: Final = 100


class FieldError(ValueError):
    """A rule between fields is broken; `field` is the one to change."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def shown(value: object) -> str:
    """A value as an error can name it: in one line that a person still reads."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


class ConfigModel(BaseModel):
    """What a person writes: unknown keys are errors, nothing is coerced, numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class MessageModel(BaseModel):
    """What programs exchange: unknown fields are ignored, so that producers may add some."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)
