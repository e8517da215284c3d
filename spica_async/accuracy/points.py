"""Points measured on silicon: read from the engine's table, and chosen among.

A point is one aggregated deployment under a closed load of known concurrency. Pure.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

_CONCURRENCY: Final = re.compile(r"\bsilicon_concurrency=(\d+)")
_MEASURED: Final = re.compile(r"\bmeasured=(\d{4}-\d{2}-\d{2})")


class CellKey(NamedTuple):
    """What errors are told apart by; the model by the name that a search space has for it."""

    model: str
    hardware_sku: str
    backend: str


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A model whose configuration ships with the engine."""

    name: str
    is_moe: bool = True


# The table has the name of a model and a precision, the engine a configuration for both. What the
# engine has no configuration of cannot be replayed; no other precision stands in for it.
ENGINE_MODELS: Final[Mapping[tuple[str, str], EngineModel]] = {
    ("MiniMaxAI/MiniMax-M2.5", "fp4"): EngineModel("nvidia/MiniMax-M2.5-NVFP4"),
    ("MiniMaxAI/MiniMax-M2.5", "fp8"): EngineModel("MiniMaxAI/MiniMax-M2.5"),
    ("Qwen/Qwen3-235B-A22B-FP8", "fp8"): EngineModel("Qwen/Qwen3-235B-A22B-FP8"),
    ("Qwen/Qwen3-32B", ""): EngineModel("Qwen/Qwen3-32B", is_moe=False),
    ("Qwen/Qwen3-32B", "fp8"): EngineModel("Qwen/Qwen3-32B-FP8-Static-PerTensor", is_moe=False),
    ("Qwen/Qwen3.5-397B-A17B", "bf16"): EngineModel("Qwen/Qwen3.5-397B-A17B"),
    ("Qwen/Qwen3.5-397B-A17B", "fp4"): EngineModel("nvidia/Qwen3.5-397B-A17B-NVFP4"),
    ("deepseek-ai/DeepSeek-R1", "fp4"): EngineModel("nvidia/DeepSeek-V3.1-NVFP4"),
    ("deepseek-ai/DeepSeek-R1", "fp8"): EngineModel("deepseek-ai/DeepSeek-R1"),
    ("deepseek-ai/DeepSeek-V3", "fp4"): EngineModel("nvidia/DeepSeek-V3.1-NVFP4"),
    ("deepseek-ai/DeepSeek-V3", "fp8"): EngineModel("deepseek-ai/DeepSeek-V3"),
    ("meta-llama/Llama-3.1-70B", "fp8"): EngineModel(
        "nvidia/Llama-3.1-70B-Instruct-FP8", is_moe=False
    ),
    ("meta-llama/Llama-3.1-8B-Instruct", ""): EngineModel(
        "meta-llama/Meta-Llama-3.1-8B", is_moe=False
    ),
    ("moonshotai/Kimi-K2.5", "fp4"): EngineModel("nvidia/Kimi-K2.5-NVFP4"),
    ("moonshotai/Kimi-K2.5", "int4"): EngineModel("moonshotai/Kimi-K2.5"),
    ("nvidia/DeepSeek-R1-NVFP4", "fp4"): EngineModel("nvidia/DeepSeek-V3.1-NVFP4"),
    ("nvidia/DeepSeek-V3.1-NVFP4", "fp4"): EngineModel("nvidia/DeepSeek-V3.1-NVFP4"),
    ("openai/gpt-oss-120b", "fp4"): EngineModel("openai/gpt-oss-120b"),
    ("zhipuai/GLM-5", "fp4"): EngineModel("nvidia/GLM-5-NVFP4"),
    ("zhipuai/GLM-5", "fp8"): EngineModel("zai-org/GLM-5-FP8"),
}


@dataclass(frozen=True, slots=True, order=True)
class Replayable:
    """All of a point that its replay depends on, but for its cell; ordered as points are spread.

    Attributes:
        isl: input tokens of a request.
        osl: output tokens of a request.
        tp: GPUs of an attention rank.
        attention_dp: attention ranks.
        moe_tp: GPUs that share an expert.
        moe_ep: groups of experts.
        concurrency: requests in flight.
    """

    isl: int
    osl: int
    tp: int
    attention_dp: int
    moe_tp: int
    moe_ep: int
    concurrency: int


@dataclass(frozen=True, slots=True)
class Point:
    """A deployment and its load, and what they came to on silicon.

    Attributes:
        cell: where it belongs.
        is_moe: whether the model has experts.
        replayable: the deployment and its load.
        ttft_ms: time to first token, as the table has it.
        tpot_ms: time per output token.
        measured_as: the table's name and precision of the model.
        version: the backend's that it was measured on; empty: not noted.
        date: when it was measured, as year-month-day; empty: not noted.
    """

    cell: CellKey
    is_moe: bool
    replayable: Replayable
    ttft_ms: float
    tpot_ms: float
    measured_as: str
    version: str
    date: str


@dataclass(frozen=True, slots=True)
class PointTable:
    """What a table comes to.

    Attributes:
        points: those that can be replayed, one for each deployment and load.
        left_out: how many rows are no such points, by reason.
    """

    points: tuple[Point, ...]
    left_out: Mapping[str, int]

    def by_cell(self) -> dict[CellKey, list[Point]]:
        """The points of each cell, in the order of what is replayed; cells in theirs."""
        cells = defaultdict(list)
        for point in sorted(self.points, key=lambda one: (one.cell, one.replayable)):
            cells[point.cell].append(point)
        return dict(cells)


class _LeftOutError(Exception):
    """A row is no point that can be replayed; the message says why."""


def read_points(text: str) -> PointTable:
    """The points of a table, CSV with a header.

    What was measured several times counts once, as it was measured last: backends get faster.
    """
    latest: dict[tuple[CellKey, Replayable], Point] = {}
    left_out: Counter[str] = Counter()
    for row in csv.DictReader(io.StringIO(text)):
        try:
            point = _point(row)
        except _LeftOutError as reason:
            left_out[str(reason)] += 1
            continue
        key = point.cell, point.replayable
        known = latest.setdefault(key, point)
        if known is not point:
            left_out["measured again"] += 1
            latest[key] = max(known, point, key=_recency)
    return PointTable(tuple(latest.values()), dict(left_out))


def spread(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many of a cell's points, evenly out of all in their order; the same each time."""
    if len(points) <= most:
        return list(points)
    return [points[(2 * index + 1) * len(points) // (2 * most)] for index in range(most)]


def nearest(
    cells: Iterable[CellKey],
    model: str | None = None,
    hardware_sku: str | None = None,
    backend: str | None = None,
) -> list[CellKey]:
    """The cells that differ least from what is asked for; none of the three is no condition.

    A cell of another model is none, but for the same model in another precision. That differs most,
    then comes another GPU, then another backend.
    """
    near: dict[tuple[bool, ...], list[CellKey]] = defaultdict(list)
    for cell in cells:
        if model is None or is_related(cell.model, model):
            wanted = (model, hardware_sku, backend)
            differs = tuple(want not in {None, has} for want, has in zip(wanted, cell, strict=True))
            near[differs].append(cell)
    if model is None:
        # Without it, what differs in the one thing that is asked for has nothing to do with it.
        return near.get((False, False, False), [])
    return near[min(near)] if near else []


def difference(
    cell: CellKey, model: str | None, hardware_sku: str | None, backend: str | None
) -> str | None:
    """What sets a cell apart from what is asked for, e.g. `measured on h200_sxm, not h100_sxm`."""
    pairs = zip((model, hardware_sku, backend), cell, strict=True)
    differing = [(want, has) for want, has in pairs if want not in {None, has}]
    if not differing:
        return None
    wanted = ", ".join(str(want) for want, _ in differing)
    return f"measured on {', '.join(has for _, has in differing)}, not {wanted}"


def is_related(one: str, other: str) -> bool:
    """Whether two models are one, but perhaps for their precision."""
    return one == other or not _names(one).isdisjoint(_names(other))


def _names(model: str) -> set[str]:
    return {name for (name, _), known in ENGINE_MODELS.items() if known.name == model}


def _point(row: Mapping[str, str]) -> Point:
    concurrency = _CONCURRENCY.search(row["silicon_data_source"])
    if row["mode"] != "agg":
        raise _LeftOutError("disaggregated")
    if concurrency is None:
        raise _LeftOutError("of unknown concurrency")
    model = ENGINE_MODELS.get((row["model_path"], row["precision"]))
    if model is None:
        raise _LeftOutError("of a model in a precision that the engine has no configuration of")
    if _count(row["pp_size"]) != 1:
        raise _LeftOutError("pipelined")
    date = _MEASURED.search(row["silicon_data_source"])
    return Point(
        cell=CellKey(model.name, row["system"], row["backend"]),
        is_moe=model.is_moe,
        replayable=_replayable(row, int(concurrency[1]), is_moe=model.is_moe),
        ttft_ms=_positive(row["silicon_ttft_ms"]),
        tpot_ms=_positive(row["silicon_tpot_ms"]),
        measured_as=f"{row['model_path']} {row['precision']}".strip(),
        version=row["backend_version"],
        date=date[1] if date else "",
    )


def _replayable(row: Mapping[str, str], concurrency: int, *, is_moe: bool) -> Replayable:
    tp = _count(row["tp_size"])
    moe_tp, moe_ep = (_count(row[f"moe_{name}_size"]) if is_moe else 1 for name in ("tp", "ep"))
    if row["attention_dp_size"]:
        attention_dp = _count(row["attention_dp_size"])
    else:
        # Not noted; a model's experts take the same GPUs as its attention.
        attention_dp = max(1, moe_tp * moe_ep // tp)
    if is_moe and moe_tp * moe_ep != tp * attention_dp:
        raise _LeftOutError("of a shape that does not add up")
    return Replayable(
        isl=_count(row["isl"]),
        osl=_count(row["osl"]),
        tp=tp,
        attention_dp=attention_dp,
        moe_tp=moe_tp,
        moe_ep=moe_ep,
        concurrency=concurrency,
    )


def _recency(point: Point) -> tuple[str, str, float, float]:
    """The latest comes last; behind the version it only has to be the same each time."""
    return point.date, point.version, -point.ttft_ms, -point.tpot_ms


def _count(text: str) -> int:
    return int(text) if text else 1


def _positive(text: str) -> float:
    value = float(text or 0)
    if not value > 0:
        raise _LeftOutError("without TTFT or TPOT")
    return value
