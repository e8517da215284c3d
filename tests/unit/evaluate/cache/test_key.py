"""Requests that ask the same question have one key, and others have not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.goal import SLATarget
from schemas.messages import EvaluationRequest, Sample, SyntheticLoad, TraceLoad, TraceSource
from spica_async.engine.model_files import named_by_content, pack
from spica_async.evaluate.cache.key import cache_key

ENGINE = "0123456789ab"
SAMPLE: Sample = {
    "model_name": "some/model",
    "hardware_sku": "some_gpu",
    "tp": 2,
    "agg_max_num_seqs": 256,
    "router_mode": "round_robin",
    "planner_scaling_policy": "disabled",
    "enable_throughput_scaling": False,
    "enable_load_scaling": False,
}
TRACE = TraceLoad(
    path="/here/trace.jsonl", sha256="a" * 64, size_bytes=10, requests=3, total_tokens=50
)
SYNTHETIC = SyntheticLoad(isl=100, osl=10, requests=8, concurrency=4)


def ask(load: TraceLoad | SyntheticLoad = TRACE, **changes: Any) -> EvaluationRequest:
    asked: dict[str, Any] = {"evaluation_id": "e", "sweep_id": "s", "sample": SAMPLE, "load": load}
    return EvaluationRequest(**(asked | changes))


def key(request: EvaluationRequest, engine: str = ENGINE) -> str:
    return cache_key(request, fingerprint=engine)


def test_it_is_a_sha256_that_stays_the_same_between_versions() -> None:
    # Were it to change by accident, nobody would find what was kept before. If you change it on
    # purpose counts the form up.
    assert key(ask()) == "0ddccc4e8ecd0b2fe291255e9d2e5aa0dc8c9dad24138550d768db64937f7fd4"


words = st.text(min_size=1, max_size=8)
sources = st.lists(st.builds(TraceSource, url=words), max_size=2)


@given(
    evaluation_id=words,
    sweep_id=words,
    run=st.integers(1, 9),
    max_eval_seconds=st.none() | st.floats(1, 1e6),
    path=words,
    sources=sources,
    load=st.sampled_from([TRACE, SYNTHETIC]),
)
def test_who_asks_and_where_the_trace_lies_do_not_matter(
    path: str, sources: list[TraceSource], load: TraceLoad | SyntheticLoad, **asked: Any
) -> None:
    moved = load
    if isinstance(load, TraceLoad):
        moved = load.model_copy(update={"path": path, "sources": sources})
    assert key(ask(moved, **asked)) == key(ask(load))


@given(names=st.permutations(list(SAMPLE)))
def test_the_order_of_the_fields_does_not_matter(names: list[str]) -> None:
    assert key(ask(sample={name: SAMPLE[name] for name in names})) == key(ask())


@given(policy=words, gpus=st.integers(1, 64))
def test_what_no_replay_depends_on_does_not_matter(policy: str, gpus: int) -> None:
    sample = SAMPLE | {"planner_scaling_policy": policy, "used_gpus": gpus, "gpu_budget": gpus}
    assert key(ask(sample=sample)) == key(ask())


@given(
    name=st.sampled_from(["model_name", "hardware_sku", "tp", "agg_max_num_seqs", "router_mode"]),
    value=st.integers(1000, 2000) | st.text("abc", min_size=1),
)
def test_every_field_that_reaches_the_engine_matters(name: str, value: int | str) -> None:
    assert key(ask(sample=SAMPLE | {name: value})) != key(ask())


@pytest.mark.parametrize(
    ("load", "changed"),
    [
        *(
            (TRACE, change)
            for change in (
                {"sha256": "b" * 64},
                {"size_bytes": 11},
                {"requests": 4},
                {"total_tokens": 51},
                {"block_size": 64},
                {"arrival_speedup_ratio": 2.0},
                {"concurrency": 1},
            )
        ),
        *(
            (SYNTHETIC, change)
            for change in (
                {"isl": 101},
                {"osl": 11},
                {"requests": 9},
                {"concurrency": 5},
                {"concurrency": None, "request_rate": 4.0},
                {"shared_prefix_ratio": 0.5},
                {"num_prefix_groups": 1},
                {"turns_per_session": 2},
                {"inter_turn_delay_ms": 1.0},
            )
        ),
    ],
)
def test_every_field_of_the_load_matters(
    load: TraceLoad | SyntheticLoad, changed: dict[str, Any]
) -> None:
    assert key(ask(load.model_copy(update=changed))) != key(ask(load))


levels = st.none() | st.builds(
    SLATarget,
    ttft_ms=st.none() | st.integers(1, 5),
    itl_ms=st.none() | st.integers(1, 5),
    e2e_ms=st.none() | st.integers(1, 5),
)


@given(one=levels, other=levels)
def test_the_service_levels_matter(one: SLATarget | None, other: SLATarget | None) -> None:
    assert (key(ask(sla=one)) == key(ask(sla=other))) == (one == other)


@given(st.text("0123456789abcdef", min_size=12, max_size=12))
def test_the_engine_matters(engine: str) -> None:
    assert (key(ask(), engine) == key(ask())) == (engine == ENGINE)


def test_a_model_of_the_users_own_counts_by_what_its_files_hold() -> None:
    one, other = pack({"config.json": "1"}), pack({"config.json": "2"})
    here, there = (SAMPLE | {"model_name": path} for path in ("/here/mine", "/there/yours"))
    assert key(ask(sample=here, model=one)) == key(ask(sample=there, model=one))
    assert key(ask(sample=here, model=one)) == key(
        ask(sample=named_by_content(here, one), model=one)
    )
    keys = {key(ask()), key(ask(sample=here, model=one)), key(ask(sample=here, model=other))}
    assert len(keys) == 3
