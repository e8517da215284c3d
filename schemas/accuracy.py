"""How far replays are from silicon: the errors in one cell, and what a sweep can say of itself."""

from __future__ import annotations

from pydantic import Field

from schemas.base import MessageModel


class ErrorFigures(MessageModel):
    """Relative errors of a replayed metric against the measured one, over the points of a cell.

    0.1 is ten percent of what was measured.
    """

    mean: float = Field(ge=0, description="of the absolute errors")
    median: float = Field(ge=0, description="of the absolute errors")
    p90: float = Field(ge=0, description="of the absolute errors")
    signed_median: float = Field(description="below 0: replays tell less than was measured")


class CellAccuracy(MessageModel):
    """The errors of replays of one model on one GPU system with one backend."""

    model: str = Field(description="as a search space names it, its precision included")
    hardware_sku: str
    backend: str
    points: int = Field(ge=1, description="measured points that were replayed")
    available: int = Field(ge=1, description="measured points that there are")
    failed: int = Field(
        default=0, ge=0, description="points, besides, whose deployment could not be replayed"
    )
    tpot: ErrorFigures
    ttft: ErrorFigures
    throughput: ErrorFigures = Field(
        description="of output tokens per second, by Little's law from TTFT, TPOT and concurrency"
    )
    tpot_rank_correlation: float | None = Field(
        default=None, ge=-1, le=1, description="Spearman's; none: too few points that differ"
    )
    measured_as: list[str] = Field(description="the model's names and precisions in the data")
    measured_versions: list[str] = Field(description="of the backend; empty where not noted")
    simulated_version: str = Field(description="of the backend, whose steps the replay times")


class BackendAccuracy(MessageModel):
    """What is known of the accuracy of a sweep's replays with one of its backends."""

    backend: str
    cell: CellAccuracy | None = Field(
        default=None, description="the sweep's own or the nearest that was measured; none: neither"
    )
    differs: str | None = Field(
        default=None,
        description="what sets the cell apart from the sweep's; none: nothing",
    )
    timed_version: str = Field(
        default="", description="of the backend, whose steps time the sweep's replays"
    )
    deployed_version: str = Field(
        default="", description="of the backend, in the images of the Dynamo that is replayed"
    )
