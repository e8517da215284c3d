"""Synthetic traces: what their parameters do, and that they pass the check."""

from __future__ import annotations

import hashlib
import json
import math
import random
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spica_async.traces.check import TraceError, check_trace
from spica_async.traces.synth import (
    SynthConfig,
    TraceLine,
    _Conversations,
    synthesize,
    write_trace,
)

configs = st.builds(
    SynthConfig,
    seed=st.integers(0, 2**40),
    requests=st.integers(1, 60),
    duration_seconds=st.floats(1, 5_000),
    mean_input_length=st.floats(1, 5_000),
    mean_output_length=st.floats(1, 500),
    max_input_length=st.integers(5_000, 20_000),
    max_output_length=st.integers(500, 2_000),
    burst_factor=st.floats(1, 1e9),
    prefix_sharing=st.floats(0, 1),
)


def trace(**fields: Any) -> list[TraceLine]:
    return list(synthesize(SynthConfig(**fields)))


def reuse_ratio(lines: list[TraceLine]) -> float:
    seen: set[int] = set()
    reused = total = 0
    for request in lines:
        ids = request["hash_ids"]
        reused += sum(item in seen for item in ids)
        total += len(ids)
        seen.update(ids)
    return reused / total


def fano_factor(lines: list[TraceLine], window_ms: int = 10_000) -> float:
    """Variance over mean of the requests per window; 1 for a Poisson process."""
    counts = Counter(request["timestamp"] // window_ms for request in lines)
    series = [counts[number] for number in range(lines[-1]["timestamp"] // window_ms)]
    return statistics.pvariance(series) / statistics.mean(series)


@given(config=configs)
@settings(max_examples=60, deadline=None)
def test_a_synthetic_trace_passes_the_check(
    tmp_path_factory: pytest.TempPathFactory, config: SynthConfig
) -> None:
    path = tmp_path_factory.getbasetemp() / "passes.jsonl"
    write_trace(path, config)

    facts = check_trace(path)

    assert facts.requests == config.requests
    assert facts.is_sorted
    assert facts.first_timestamp_ms == 0
    assert facts.last_timestamp_ms <= config.duration_seconds * 1000 + 0.5
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    assert lines == list(synthesize(config))
    assert max(line["input_length"] for line in lines) <= config.max_input_length
    assert max(line["output_length"] for line in lines) <= config.max_output_length


def _mutations() -> st.SearchStrategy[dict[str, Any]]:
    numbers = st.one_of(st.none(), st.booleans(), st.text(), st.lists(st.integers()))
    below = st.integers(max_value=0)
    return st.one_of(
        st.fixed_dictionaries({"timestamp": numbers | st.floats(max_value=-1e-9) | st.just(-1)}),
        st.fixed_dictionaries({"input_length": numbers | below | st.floats()}),
        st.fixed_dictionaries({"output_length": numbers | below | st.floats()}),
        st.fixed_dictionaries({"hash_ids": numbers.filter(lambda value: value != [])}).filter(
            # A list of the right length might be right.
            lambda fields: not isinstance(fields["hash_ids"], list)
        ),
        st.fixed_dictionaries({"hash_ids": st.just([])}),
    )


@given(mutation=_mutations(), data=st.data())
@settings(max_examples=50, deadline=None)
def test_a_mutated_line_is_named(
    tmp_path_factory: pytest.TempPathFactory, mutation: dict[str, Any], data: st.DataObject
) -> None:
    lines = trace(requests=8, mean_input_length=800)
    position = data.draw(st.integers(0, len(lines) - 1))
    changed = [
        {**request, **mutation} if number == position else request
        for number, request in enumerate(lines)
    ]
    path = tmp_path_factory.getbasetemp() / "mutated.jsonl"
    path.write_text("".join(json.dumps(request) + "\n" for request in changed))

    with pytest.raises(TraceError) as caught:
        check_trace(path)

    assert caught.value.line == position + 1


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_a_cut_line_is_named(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    lines = [json.dumps(request) for request in trace(requests=8, mean_input_length=800)]
    position = data.draw(st.integers(0, len(lines) - 1))
    length = data.draw(st.integers(1, len(lines[position]) - 1))
    lines[position] = lines[position][:length]
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    path.write_text("\n".join(lines))

    with pytest.raises(TraceError, match=f"line {position + 1}: "):
        check_trace(path)


def test_a_seed_makes_one_trace() -> None:
    text = json.dumps(trace(seed=7, requests=50))

    # A new digest means that everybody's seeds make other traces than before.
    assert (
        hashlib.sha256(text.encode()).hexdigest()
        == "f5dc04a71d4b1b1e23543ec5cee02863103be539896d5a44f64269b95df51c65"
    )
    assert trace(seed=8, requests=50) != trace(seed=7, requests=50)


def test_the_burst_factor_moves_arrivals_alone() -> None:
    calm, bursty = trace(burst_factor=1, prefix_sharing=0), trace(burst_factor=9, prefix_sharing=0)

    assert [line["input_length"] for line in calm] == [line["input_length"] for line in bursty]
    assert [line["timestamp"] for line in calm] != [line["timestamp"] for line in bursty]


def test_the_burst_factor_makes_bursts() -> None:
    load = {"requests": 12_000, "duration_seconds": 3_600.0, "mean_input_length": 500.0}

    calm, default, bursty = (fano_factor(trace(**load, burst_factor=f)) for f in (1.0, 2.0, 8.0))

    # The slow wave alone adds about 0.02 * 33 to the 1 of a Poisson process.
    assert 1.2 < calm < 2.2
    assert 1.4 * calm < default < bursty / 3


def test_arrivals_follow_one_slow_wave() -> None:
    lines = trace(requests=12_000, duration_seconds=3_600, mean_input_length=500, burst_factor=1)

    first_half = sum(line["timestamp"] < 1_800_000 for line in lines)

    # The crest of the sine is in the first half: 1/2 + 0.2 / pi of all requests.
    assert 0.55 < first_half / len(lines) < 0.58


def test_lengths_have_the_mean_that_was_asked_for() -> None:
    lines = trace(requests=20_000, mean_input_length=3_000, mean_output_length=150)

    assert statistics.mean(line["input_length"] for line in lines) == pytest.approx(3_000, rel=0.04)
    assert statistics.mean(line["output_length"] for line in lines) == pytest.approx(150, rel=0.04)


def test_without_prefix_sharing_no_block_repeats() -> None:
    assert reuse_ratio(trace(prefix_sharing=0)) == 0


def test_prefix_sharing_reuses_blocks() -> None:
    little, some, much = (reuse_ratio(trace(prefix_sharing=s)) for s in (0.01, 0.4, 0.9))

    assert little < 0.15
    assert 0.3 < some < 0.45
    assert much > 0.6


def test_reused_blocks_are_a_prefix_of_an_earlier_input() -> None:
    seen: set[int] = set()
    for request in trace():
        reused = [item in seen for item in request["hash_ids"]]
        assert reused == sorted(reused, reverse=True)
        assert len(set(request["hash_ids"])) == len(request["hash_ids"])
        seen.update(request["hash_ids"])


def test_a_next_turn_holds_the_last_and_comes_after_its_answer() -> None:
    lines = trace()
    prompts = {
        item
        for item, uses in Counter(item for line in lines for item in line["hash_ids"]).items()
        if uses > 50
    }
    last_with: dict[int, TraceLine] = {}
    turns = 0
    for request in lines:
        own = [item for item in request["hash_ids"] if item not in prompts]
        earlier = last_with.get(own[0]) if own else None
        if earlier is not None:
            turns += 1
            full_blocks = earlier["input_length"] // 512
            assert request["hash_ids"][:full_blocks] == earlier["hash_ids"][:full_blocks]
            assert request["input_length"] > earlier["input_length"] + earlier["output_length"]
            answered = earlier["timestamp"] + 2_000 + 20 * earlier["output_length"]
            assert request["timestamp"] >= answered
        for item in own:
            last_with[item] = request
    assert turns > 200


def always_continued() -> _Conversations:
    return _Conversations(random.Random(0), sharing=1.0)


def test_a_next_turn_repeats_the_full_blocks_alone() -> None:
    conversations = always_continued()
    first = conversations.hash_ids(0, 1_100, 10)
    second = conversations.hash_ids(10_000, 3_000, 10)

    assert second[:2] == first[:2]
    assert not set(second[2:]) & set(first)


def test_a_next_turn_adds_a_token_at_least() -> None:
    for tokens, is_next_turn in ((2_058, False), (2_059, True)):
        conversations = always_continued()
        first = conversations.hash_ids(0, 2_048, 10)
        second = conversations.hash_ids(10_000, tokens, 10)
        assert (second[:4] == first) is is_next_turn


def test_a_turn_is_continued_once() -> None:
    conversations = always_continued()
    first = conversations.hash_ids(0, 2_048, 10)
    second = conversations.hash_ids(10_000, 4_096, 10)
    third = conversations.hash_ids(10_001, 4_096, 10)

    assert second[:4] == first
    assert third[:4] != first


def test_a_system_prompt_leaves_room_for_a_token() -> None:
    (alone,) = always_continued().hash_ids(0, 512, 10)
    prompt, own = always_continued().hash_ids(0, 513, 10)

    # The prompts' ids come first, and they have seven blocks together.
    assert (alone, prompt < 7, own) == (7, True, 7)


def test_the_defaults_resemble_the_published_conversation_trace() -> None:
    lines = trace()

    assert len(lines) == 1_000
    assert 590_000 < lines[-1]["timestamp"] <= 600_000
    inputs = sorted(line["input_length"] for line in lines)
    # Published: median 6,909, mean 12,035, 95 % below 39,549; outputs 350 and 343 tokens.
    assert statistics.median(inputs) == pytest.approx(6_909, rel=0.1)
    assert statistics.mean(inputs) == pytest.approx(12_035, rel=0.1)
    assert inputs[950] == pytest.approx(39_549, rel=0.15)
    outputs = [line["output_length"] for line in lines]
    assert statistics.mean(outputs) == pytest.approx(343, rel=0.1)
    # Published: 0.366 of all blocks were seen before, variance over mean 2.09 in 10 s windows.
    assert reuse_ratio(lines) == pytest.approx(0.366, abs=0.05)
    assert 1.5 < fano_factor(lines) < 3.5


BAD_FIELDS = {
    "seed": (-1,),
    "requests": (0, -5),
    "duration_seconds": (0.999, math.nan, math.inf, 31 * 86_400 + 1),
    "mean_input_length": (0.5, math.nan, 131_073),
    "mean_output_length": (0, 2_001),
    "max_input_length": (0, 100_000_001),
    "max_output_length": (0,),
    "burst_factor": (0.99, math.inf, math.nan, 1.1e9),
    "prefix_sharing": (-0.01, 1.01, math.nan),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_FIELDS.items() for value in values]
)
def test_a_field_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name}: .* is not allowed; allowed: "):
        SynthConfig(**{name: value})


def test_the_extremes_of_the_ranges_are_allowed() -> None:
    shortest = SynthConfig(
        seed=0,
        requests=1,
        duration_seconds=1,
        mean_input_length=1,
        mean_output_length=1,
        max_input_length=1,
        max_output_length=1,
        burst_factor=1,
        prefix_sharing=1,
    )

    assert list(synthesize(shortest)) == [
        {"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [7]}
    ]


def test_write_trace_replaces_a_file_and_needs_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("x" * 1_000_000)

    write_trace(path, SynthConfig(requests=3))

    assert check_trace(path).requests == 3
    with pytest.raises(FileNotFoundError):
        write_trace(tmp_path / "absent" / "trace.jsonl", SynthConfig(requests=3))
