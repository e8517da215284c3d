"""Bounds that only a broker sets."""

from __future__ import annotations

from typing import Final

DEFAULT_HARD_LIMIT_SECONDS: Final = 1500.0
"""The longest that an evaluation may take where a broker is in between.

A worker holds the request meanwhile, and RabbitMQ takes away after its `consumer_timeout`, 1800 s
by default, what is held longer. What is left of that is for fetching a trace before the start.
"""
