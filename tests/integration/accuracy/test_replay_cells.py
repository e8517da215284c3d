"""Points replayed in processes of their own, by an evaluator that stands for the engine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.silicon import points_at

from spica_async.accuracy.points import CellKey
from spica_async.errors import SpicaError
from spica_async.service.accuracy import CellReplays, replay_cells
from workers.settings import ChildSettings

CHILDREN = ChildSettings(
    evaluator="scripted_accuracy:evaluate",
    warm_up=None,
    import_paths=(str(Path(__file__).parent / "evaluators"),),
    start_attempts=1,
)


async def test_each_point_is_replayed_once_by_whichever_slot_is_free() -> None:
    vllm, sglang = points_at(4, 8, 13, 16), points_at(13, 99, backend="sglang")
    cells = {one[0].cell: CellReplays(available=len(one) + 1, chosen=one) for one in (vllm, sglang)}
    ended: Counter[CellKey] = Counter()

    await replay_cells(cells, slots=2, ended=lambda key: ended.update([key]), children=CHILDREN)

    assert ended == {vllm[0].cell: 4, sglang[0].cell: 2}
    assert all(one.ended for one in cells.values())
    known = cells[vllm[0].cell].accuracy()
    assert known is not None
    assert (known.points, known.available, known.failed) == (3, 5, 1)
    assert known.tpot.median == pytest.approx(1 - 10.24 / 18.0)
    assert known.simulated_version
    # Nothing is said where nothing could be replayed.
    assert cells[sglang[0].cell].accuracy() is None
    assert sorted(cells[sglang[0].cell].problems) == [
        "failed: build_error: no such shape",
        "failed: child_died: 3 children died; the last: it exited with status 1",
    ]


async def test_an_engine_that_cannot_be_started() -> None:
    points = points_at(4)
    cells = {points[0].cell: CellReplays(1, points)}
    children = ChildSettings(evaluator="no_such_module:evaluate", warm_up=None, start_attempts=1)
    with pytest.raises(SpicaError, match=r"^no replay can be started: no_such_module:evaluate: "):
        await replay_cells(cells, slots=2, ended=lambda _: None, children=children)
    assert not cells[points[0].cell].ended
