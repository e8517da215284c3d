"""Bounds that only a broker sets."""

from __future__ import annotations

from typing import Final

DEFAULT_HARD_LIMIT_SECONDS: Final = 1500.0
"""The longest that an evaluation may take where a broker is in between.

A worker holds the request meanwhile, and RabbitMQ takes away after its `consumer_timeout`, 1800 s
by default, what is held longer.
"""

DEFAULT_FETCH_SECONDS: Final = 240.0
"""The longest that a worker may take to fetch a trace, before the evaluation begins."""

HOLD_MARGIN_SECONDS: Final = DEFAULT_FETCH_SECONDS + 60.0
"""How far the hard limit must stay below the consumer timeout. The minute is for the end of a
replay that is over its limit, for its result, and for the broker, which looks once a minute."""
