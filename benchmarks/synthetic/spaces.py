"""The three spaces, of different character but all like the studies of a sweep.

A study has latent shapes as floats, sizes on a log scale, labels, and numbers from a list; some of
its parameters mean something only next to a certain choice of another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from spica_async.space.parameters import (
    Assignment,
    CategoricalParameter,
    DiscreteParameter,
    FloatParameter,
)
from synthetic.problem import Losses, Problem

_GRID = 1001
"""Points of a float on a front: more of them add less than a part in a thousand to its area."""


def _number(assignment: Assignment, name: str) -> float:
    return float(assignment[name])


def _doublings(assignment: Assignment, name: str) -> float:
    return math.log2(_number(assignment, name))


def _grid(low: float, high: float) -> Iterator[float]:
    return (low + (high - low) * step / (_GRID - 1) for step in range(_GRID))


# Smooth: one hill, but its best share depends on the size of a batch, and sizes on the backend.

_SMOOTH_BEST: Assignment = {
    "gpu_ratio": 0.72,
    "prefill_share": 0.31,
    "max_num_seqs": 64,
    "batched_tokens": 16384,
    "backend": "b",
    "router": "kv",
    "scaling": "fast",
    "predictor": "arima",
    "overlap_credit": 0.75,
    "temperature": 0.5,
}
_SMOOTH_LABELS = {
    "backend": {"a": 0.35, "b": 0.0, "c": 0.2},
    "router": {"even": 0.3, "kv": 0.0},
    "scaling": {"off": 0.5, "slow": 0.3, "medium": 0.1, "fast": 0.0, "eager": 0.25},
    "predictor": {"constant": 0.2, "arima": 0.0, "kalman": 0.05, "prophet": 0.15},
}


def _smooth_losses(assignment: Assignment) -> Losses:
    gpus = _number(assignment, "gpu_ratio") - 0.72
    size = (_doublings(assignment, "max_num_seqs") - 6) / 8
    share = _number(assignment, "prefill_share") - 0.31 - 0.3 * size
    tokens = (_doublings(assignment, "batched_tokens") - 14) / 5
    labels = sum(costs[str(assignment[name])] for name, costs in _SMOOTH_LABELS.items())
    # Large batches of tokens do not agree with the first backend.
    clash = 0.4 * (tokens + 0.6) if assignment["backend"] == "a" else 0.0
    credit = _number(assignment, "overlap_credit") - 0.75
    heat = math.log1p(_number(assignment, "temperature")) - math.log1p(0.5)
    return Losses(
        shared=2.5 * (gpus + 0.3 * tokens) ** 2
        + 1.2 * tokens**2
        + labels
        + clash
        + 0.5 * credit**2
        + 0.15 * heat**2,
        off_centre=3.0 * share**2 + 2.5 * size**2,
    )


def _smooth_trade(assignment: Assignment) -> tuple[float, float]:
    size = _doublings(assignment, "max_num_seqs") / 8
    share = _number(assignment, "prefill_share")
    return (
        100 * (0.15 + 0.85 * size) * math.exp(-3 * (share - 0.2) ** 2),
        20 * (1 + 3 * size**2) * math.exp(2 * (share - 0.8) ** 2),
    )


def _smooth_front() -> Iterator[Assignment]:
    for seqs, share in itertools.product((1, 2, 4, 8, 16, 32, 64, 128, 256), _grid(0.0, 1.0)):
        yield {**_SMOOTH_BEST, "max_num_seqs": seqs, "prefill_share": share}


SMOOTH = Problem(
    name="smooth",
    parameters=(
        FloatParameter("gpu_ratio", 0.0, 1.0, 1.0),
        FloatParameter("prefill_share", 0.0, 1.0, 0.5),
        DiscreteParameter("max_num_seqs", (1, 2, 4, 8, 16, 32, 64, 128, 256), log=True),
        DiscreteParameter("batched_tokens", (2048, 4096, 8192, 16384, 32768, 65536), log=True),
        CategoricalParameter("backend", ("b", "a", "c")),
        CategoricalParameter("router", ("kv", "even")),
        CategoricalParameter("scaling", ("off", "slow", "medium", "fast", "eager")),
        CategoricalParameter("predictor", ("arima", "constant", "kalman", "prophet")),
        DiscreteParameter("overlap_credit", (0.0, 0.25, 0.5, 0.75, 1.0)),
        DiscreteParameter("temperature", (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)),
    ),
    losses=_smooth_losses,
    trade=_smooth_trade,
    best=_SMOOTH_BEST,
    front=_smooth_front,
    reference=(0.0, 100.0),
)


# Multimodal: each pair of labels has a hill of its own, at another place and of another height.

_HILLS = {
    # scheme, placement: what it loses in height; best gpu_ratio, balance and doublings of seqs;
    # throughput and latency of its own.
    ("tp", "packed"): (0.45, (0.15, 0.30, 1), (60, 12)),
    ("tp", "spread"): (0.20, (0.35, 0.85, 2), (70, 14)),
    ("tp", "mixed"): (0.60, (0.60, 0.10, 3), (55, 16)),
    ("dp", "packed"): (0.05, (0.90, 0.20, 6), (95, 40)),
    ("dp", "spread"): (0.35, (0.50, 0.50, 4), (80, 30)),
    ("dp", "mixed"): (0.55, (0.10, 0.70, 5), (75, 35)),
    ("ep", "packed"): (0.30, (0.75, 0.95, 3), (85, 28)),
    ("ep", "spread"): (0.00, (0.25, 0.60, 5), (90, 24)),
    ("ep", "mixed"): (0.50, (0.95, 0.45, 0), (65, 20)),
    ("tp_dp", "packed"): (0.65, (0.40, 0.05, 7), (100, 60)),
    ("tp_dp", "spread"): (0.40, (0.80, 0.75, 1), (78, 22)),
    ("tp_dp", "mixed"): (0.10, (0.65, 0.35, 4), (88, 26)),
}
_MULTIMODAL_BEST: Assignment = {
    "gpu_ratio": 0.25,
    "balance": 0.60,
    "headroom": 0.40,
    "max_num_seqs": 32,
    "chunk": 4,
    "scheme": "ep",
    "placement": "spread",
    "policy": "lru",
    "interval": 20,
}
_POLICIES = {"lru": 0.0, "lfu": 0.1, "fifo": 0.15, "none": 0.3}


def _multimodal_losses(assignment: Assignment) -> Losses:
    height, (gpus, balance, doublings), _ = _hill(assignment)
    steps = (
        _number(assignment, "gpu_ratio") - gpus,
        _number(assignment, "balance") - balance,
        (_doublings(assignment, "max_num_seqs") - doublings) / 7,
    )
    # Ripples on every slope: small hills beside the one that counts.
    ripples = sum(1 - math.cos(6 * math.pi * step) for step in steps[:2])
    headroom = _number(assignment, "headroom") - 0.4
    chunk = math.log2(_number(assignment, "chunk") / 4)
    return Losses(
        shared=2.5 * sum(step**2 for step in steps)
        + 0.06 * ripples
        + _POLICIES[str(assignment["policy"])]
        + 0.2 * abs(math.log(_number(assignment, "interval") / 20)),
        off_centre=height + 1.5 * headroom**2 + 0.08 * chunk**2,
    )


def _multimodal_trade(assignment: Assignment) -> tuple[float, float]:
    _, _, (throughput, latency) = _hill(assignment)
    headroom = _number(assignment, "headroom")
    chunk = math.log2(_number(assignment, "chunk"))
    return (
        throughput * (0.6 + 0.08 * chunk) * math.exp(-1.5 * (headroom - 0.1) ** 2),
        latency * (0.7 + 0.15 * chunk) * math.exp(1.5 * (headroom - 0.7) ** 2),
    )


def _multimodal_front() -> Iterator[Assignment]:
    for (labels, hill), chunk, headroom in itertools.product(
        _HILLS.items(), (1, 2, 4, 8, 16, 32), _grid(0.0, 1.0)
    ):
        scheme, placement = labels
        gpus, balance, doublings = hill[1]
        yield {
            **_MULTIMODAL_BEST,
            "scheme": scheme,
            "placement": placement,
            "gpu_ratio": gpus,
            "balance": balance,
            "max_num_seqs": 2**doublings,
            "chunk": chunk,
            "headroom": headroom,
        }


def _hill(
    assignment: Assignment,
) -> tuple[float, tuple[float, float, int], tuple[float, float]]:
    return _HILLS[str(assignment["scheme"]), str(assignment["placement"])]


MULTIMODAL = Problem(
    name="multimodal",
    parameters=(
        FloatParameter("gpu_ratio", 0.0, 1.0, 1.0),
        FloatParameter("balance", 0.0, 1.0, 0.5),
        FloatParameter("headroom", 0.0, 1.0),
        DiscreteParameter("max_num_seqs", (1, 2, 4, 8, 16, 32, 64, 128), log=True),
        DiscreteParameter("chunk", (1, 2, 4, 8, 16, 32)),
        CategoricalParameter("scheme", ("tp", "dp", "ep", "tp_dp")),
        CategoricalParameter("placement", ("packed", "spread", "mixed")),
        CategoricalParameter("policy", ("none", "fifo", "lfu", "lru")),
        DiscreteParameter("interval", (5, 10, 20, 40, 60)),
    ),
    losses=_multimodal_losses,
    trade=_multimodal_trade,
    best=_MULTIMODAL_BEST,
    front=_multimodal_front,
    reference=(0.0, 80.0),
)


# Ridge: a narrow crest across two floats, and parameters that mean nothing beside most choices.

_RIDGE_BEST: Assignment = {
    "prefill_ratio": 0.12 + 0.6 * 0.72,
    "decode_ratio": 0.72,
    "max_num_seqs": 128,
    "batched_tokens": 8192,
    "planner": "load",
    "interval": 30,
    "headroom": 0.2,
    "smoothing": "ewma",
    "router": "kv",
    "overlap_credit": 0.5,
    "temperature": 1.0,
    "log_level": "info",
}
_PLANNERS = {"off": 0.3, "load": 0.0, "throughput": 0.12, "hybrid": 0.2}
_SMOOTHINGS = {"none": 0.25, "ewma": 0.0, "median": 0.1}


def _ridge_losses(assignment: Assignment) -> Losses:
    decode = _number(assignment, "decode_ratio")
    # The ratio of the two decides, to within a few hundredths.
    beside = (_number(assignment, "prefill_ratio") - (0.12 + 0.6 * decode)) / 0.07
    shared = 1.1 * (1 - math.exp(-(beside**2)))
    shared += 0.5 * ((_doublings(assignment, "batched_tokens") - 13) / 3) ** 2
    shared += _PLANNERS[str(assignment["planner"])]
    if assignment["planner"] != "off":
        shared += 0.15 * abs(math.log2(_number(assignment, "interval") / 30))
        shared += 2.0 * (_number(assignment, "headroom") - 0.2) ** 2
        shared += _SMOOTHINGS[str(assignment["smoothing"])]
    shared += 0.25 if assignment["router"] == "even" else 0.0
    if assignment["router"] == "kv":
        shared += 0.8 * (_number(assignment, "overlap_credit") - 0.5) ** 2
        shared += 0.1 * abs(math.log2(_number(assignment, "temperature")))
    size = (_doublings(assignment, "max_num_seqs") - 7) / 9
    return Losses(shared=shared, off_centre=2.0 * (decode - 0.72) ** 2 + 2.0 * size**2)


def _ridge_trade(assignment: Assignment) -> tuple[float, float]:
    decode = _number(assignment, "decode_ratio")
    size = _doublings(assignment, "max_num_seqs") / 9
    return (
        100 * (0.2 + 0.8 * size) * (0.5 + 0.5 * decode),
        15 * (1 + 2 * size**2) * (0.6 + 1.2 * decode**2),
    )


def _ridge_front() -> Iterator[Assignment]:
    for doublings, decode in itertools.product(range(10), _grid(0.0, 1.0)):
        yield {
            **_RIDGE_BEST,
            "max_num_seqs": 2**doublings,
            "decode_ratio": decode,
            "prefill_ratio": 0.12 + 0.6 * decode,
        }


RIDGE = Problem(
    name="ridge",
    parameters=(
        FloatParameter("prefill_ratio", 0.0, 1.0, 0.5),
        FloatParameter("decode_ratio", 0.0, 1.0, 0.5),
        DiscreteParameter("max_num_seqs", (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), log=True),
        DiscreteParameter("batched_tokens", (4096, 8192, 16384, 32768), log=True),
        CategoricalParameter("planner", ("load", "off", "throughput", "hybrid")),
        DiscreteParameter("interval", (15, 30, 60, 120, 180), log=True),
        DiscreteParameter("headroom", (0.0, 0.1, 0.2, 0.4, 0.6)),
        CategoricalParameter("smoothing", ("ewma", "none", "median")),
        CategoricalParameter("router", ("kv", "even")),
        DiscreteParameter("overlap_credit", (0.0, 0.5, 1.0)),
        DiscreteParameter("temperature", (0.25, 0.5, 1.0, 2.0)),
        CategoricalParameter("log_level", ("info", "debug", "trace")),
    ),
    losses=_ridge_losses,
    trade=_ridge_trade,
    best=_RIDGE_BEST,
    front=_ridge_front,
    reference=(0.0, 60.0),
)

PROBLEMS = {problem.name: problem for problem in (SMOOTH, MULTIMODAL, RIDGE)}
