"""How figures are written for people: names, units and precision in one place."""

from __future__ import annotations

from typing import Final

from schemas.goal import OptimizationTarget

TARGET_UNITS: Final = {
    OptimizationTarget.THROUGHPUT: "tok/s",
    OptimizationTarget.THROUGHPUT_PER_GPU: "tok/s/GPU",
    OptimizationTarget.THROUGHPUT_PER_USER: "tok/s/user",
    OptimizationTarget.E2E_LATENCY: "ms",
    OptimizationTarget.GOODPUT: "good tok/s",
    OptimizationTarget.GOODPUT_PER_GPU: "good tok/s/GPU",
}

_ROUNDING: Final = 1e-9


def figure(value: float | None) -> str:
    """Four significant digits, whole numbers from a thousand on; a dash for what is not known."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def margin(low: float, high: float) -> str:
    """Half of an interval, with two significant digits; empty where it has no width.

    Sums over the same requests in another order differ in their last digits, which is no width.
    """
    half = (high - low) / 2
    if half <= _ROUNDING * max(abs(low), abs(high)):
        return ""
    return f"{half:,.0f}" if half >= 100 else f"{half:.2g}"


def objective(target: OptimizationTarget, value: float) -> str:
    """A raw objective with its unit; a latency is a latency, not a negated score."""
    return f"{figure(value)} {TARGET_UNITS[target]}"


def seconds(value: float) -> str:
    """A duration: `12.3 s`, `4 min 05 s`, `2 h 03 min`."""
    if round(value, 1) < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
