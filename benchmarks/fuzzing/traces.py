"""Traces through their check, and through what reads them afterwards."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from fuzzing.harness import Wrong
from fuzzing.mutation import STRANGE, change_bytes, change_document, change_lines
from schemas.config import SmartSearchConfig
from schemas.workload import Workload
from spica_async.config.inputs import Inputs, inputs_of
from spica_async.engine import planner
from spica_async.errors import InputError
from spica_async.plan.offered import offered_load
from spica_async.traces.arrivals import windows_by_interval

_LONGEST_LINE: Final = 1000
_MOST_WINDOWS: Final = 1000
"""Of one interval; a forecast needs no more of a long trace."""
_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_PLACE: Final = re.compile(
    r"^workload\.(trace_path: .*trace\.jsonl(, line \d+)?: .|arrival_speedup_ratio: .)"
)
_TIMES: Final = (0, 1, 0.5, 1e-9, 1e15, 1.7e12, 1700000000000, 1e300, 2**63, 2**64, 10**400, -1)
_SESSIONS: Final[tuple[Any, ...]] = (7, "a", "", None, 1.5, ["a"], {}, -1, 2**64, "x" * 1000, True)
_READ_BY_OTHERS: Final = (
    *(
        "session_id",
        "delay",
        "delay_ms",
        "turn",
        "turn_delay_ms",
        "request_id",
        "model",
        "priority",
    ),
    *("parent", "wait_ms", "input_tokens", "output_tokens", "prompt", "chat_id", "type", "id"),
)


class Traces:
    """See the module.

    Args:
        folder: for the files.
        trace_windows: makes windows of a trace, as the planner does.
    """

    def __init__(self, folder: Path, trace_windows: Callable[[Path, int], Sequence[Any]]) -> None:
        self._folder = folder
        self._trace_windows = trace_windows
        space = {"model_name": "Qwen/Qwen3-32B", "hardware_sku": "h200_sxm"}
        space |= {"planner_scaling_policy": ["throughput_180_5", "throughput_600_5"]}  # type: ignore[dict-item]  # of a document
        self._config = SmartSearchConfig.model_validate(
            {
                "search_space": space,
                "workload": {"trace_path": str(folder / "trace.jsonl")},
                "goal": {"target": "goodput", "sla": {"ttft_ms": 2000, "itl_ms": 50}},
            }
        )

    def make(self, rng: random.Random) -> tuple[bytes, float]:
        """The file, and how many times as fast it is replayed."""
        rows = _sound_rows(rng)
        text = ""
        match rng.randrange(8):
            case 0 | 1:
                text = _written(rng, _with_changes(rng, rows))
            case 2:
                text = _written(rng, _with_times(rng, rows))
            case 3:
                text = _written(rng, _with_fields_of_others(rng, rows))
            case 4:
                text = change_lines(rng, _written(rng, rows))
            case 5:
                return _packed(rng, change_bytes(rng, _written(rng, rows).encode())), 1.0
            case 6:
                text = _written(rng, [change_document(rng, rows)])
            case _:
                text = _large(rng, rows)
        speed = rng.choice((1.0, 1.0, 1.0, 2.0, 1e-9, 1e9, 1e-300, 1e300))
        return _packed(rng, text.encode("utf-8", "surrogatepass")), speed

    def read(self, case: tuple[bytes, float]) -> Inputs:
        """What a sweep has of a case.

        Raises:
            InputError: it is refused.
        """
        content, speed = case
        path = self._folder / "trace.jsonl"
        path.write_bytes(content)
        workload = Workload(trace_path=path, arrival_speedup_ratio=speed)
        return inputs_of(self._config.model_copy(update={"workload": workload}), lambda _: None)

    def try_one(self, case: tuple[bytes, float]) -> str:
        """See `Subject.try_one`."""
        try:
            inputs = self.read(case)
        except InputError as error:
            _check_refusal(str(error))
            return "refused"
        trace = inputs.trace
        if trace is None:
            raise Wrong("no load: the trace was not looked at")
        if trace.requests > trace.total_tokens or inputs.longest_request > trace.total_tokens:
            raise Wrong(f"counts that cannot be: {trace}")
        load = offered_load(self._config, trace)
        if load.per_ms is not None and not 0 < load.per_ms < float("inf"):
            raise Wrong(f"a rate that cannot be: {load}")
        return self._forecast(inputs.trace) if trace.requests else "sound"

    def _forecast(self, trace: Any) -> str:
        windows = windows_by_interval(trace, (180,), self._trace_windows)
        if not 0 < len(windows[180]) <= _MOST_WINDOWS:
            raise Wrong(f"{len(windows[180])} windows")
        return "sound"


@contextmanager
def opened(
    trace_windows: Callable[[Path, int], Sequence[Any]] = planner.trace_windows,
) -> Iterator[Traces]:
    """What reads traces; sorted copies, which go to the user's cache, to a folder of ours."""
    with tempfile.TemporaryDirectory(prefix="spica-fuzz-") as folder:
        before = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            path = Path(folder) / "first.jsonl"
            path.write_text('{"timestamp": 0, "input_length": 1, "output_length": 1}\n')
            # What the planner's first use takes is no fault of a trace.
            trace_windows(path, 180)
            yield Traces(Path(folder), trace_windows)
        finally:
            os.environ.pop("XDG_CACHE_HOME")
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before


def _check_refusal(text: str) -> None:
    if len(text) > _LONGEST_LINE:
        raise Wrong(f"a refusal of endless length: {text[:1000]!r}")
    if _UNPRINTABLE.search(text):
        raise Wrong(f"a refusal with unprintable characters: {text!r}")
    if not _PLACE.search(text):
        raise Wrong(f"a refusal that names no place: {text!r}")


def _sound_rows(rng: random.Random) -> list[dict[str, Any]]:
    rows = []
    now = rng.choice((0, 0, 1000, 1.7e12))
    for _ in range(rng.choice((1, 2, 3, 10, 30))):
        length = rng.choice((1, 511, 512, 513, 2000, 6000))
        rows.append(
            {
                "timestamp": now,
                "input_length": length,
                "output_length": rng.randint(1, 500),
                "hash_ids": [rng.randrange(50) for _ in range(-(-length // 512))],
            }
        )
        now += rng.choice((0, 1, 700, 12_345))
    return rows


def _with_changes(rng: random.Random, rows: list[dict[str, Any]]) -> list[Any]:
    where = rng.randrange(len(rows))
    return [change_document(rng, row) if n == where else row for n, row in enumerate(rows)]


def _with_times(rng: random.Random, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "timestamp": rng.choice((row["timestamp"], *_TIMES))} for row in rows]


def _with_fields_of_others(rng: random.Random, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    name = rng.choice((*_READ_BY_OTHERS, "session_id", "session_id"))
    values = rng.choice((_SESSIONS, STRANGE, ("a", "b"), ("a", None), (1, 5.5, 0)))
    return [{**row, name: rng.choice(values)} if rng.random() < 0.7 else row for row in rows]


def _written(rng: random.Random, rows: list[Any]) -> str:
    end = rng.choice(("\n", "\n", "\n", "\r\n", "\n\n", "\r", " \n"))
    rows = [json.dumps(row, ensure_ascii=rng.random() < 0.8) for row in rows]
    return end.join(rows) + rng.choice((end, ""))


def _large(rng: random.Random, rows: list[dict[str, Any]]) -> str:
    count = rng.choice((10, 1000, 100_000))
    row = rows[0]
    return rng.choice(
        (
            json.dumps({**row, "x": "y" * count * 10}),
            json.dumps({**row, "hash_ids": list(range(count))}),
            json.dumps({**row, "input_length": count * 512, "hash_ids": list(range(count))}),
            json.dumps({**row, **{f"key_{number}": 1 for number in range(count)}}),
            json.dumps(row).replace("{", '{"x": ' + "[" * count + "]" * count + ", "),
            json.dumps(row).replace("{", '{"x": ' + "9" * count + ", "),
            "\n" * count + json.dumps(row),
            "\n".join([json.dumps(row)] * min(count, 20_000)),
            json.dumps(row)[:-1] + ", " * count + "}",
            " " * count + json.dumps(row),
        )
    )


def _packed(rng: random.Random, content: bytes) -> bytes:
    begun = rng.randrange(1, 200)
    empty_lines = b"\n" * 10**7 if rng.random() < 0.1 else content
    ways: dict[int, Callable[[], bytes]] = {
        0: lambda: b"\xef\xbb\xbf" + content,
        1: lambda: gzip.compress(content, mtime=0),
        2: lambda: gzip.compress(content, mtime=0)[:begun],
        3: lambda: change_bytes(rng, gzip.compress(content, mtime=0)),
        4: lambda: rng.choice((b"", b"\n", b"\x28\xb5\x2f\xfd" + content, b"PK\x03\x04")),
        5: lambda: content.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-16-le"))),
        6: lambda: gzip.compress(empty_lines, mtime=0),
    }
    return ways.get(rng.randrange(20), lambda: content)()
