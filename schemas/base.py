"""Base classes that fix how configuration and messages treat unknown fields and odd numbers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ConfigModel(BaseModel):
    """What a person writes: unknown keys are errors, nothing is coerced, numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class MessageModel(BaseModel):
    """What programs exchange: unknown fields are ignored, so that producers may add some."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)
