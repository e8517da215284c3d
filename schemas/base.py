"""Base classes that fix how configuration and messages treat unknown fields and odd numbers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class FieldError(ValueError):
    """A rule between fields is broken; `field` is the one to change."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class ConfigModel(BaseModel):
    """What a person writes: unknown keys are errors, nothing is coerced, numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class MessageModel(BaseModel):
    """What programs exchange: unknown fields are ignored, so that producers may add some."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)
