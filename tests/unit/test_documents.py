"""Documents that people write: JSON and YAML by one set of rules, in bounded time and memory."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import small_sweep
from support.daemon_commands import obeying
from support.fake_control import FakeControl

from schemas.daemon import SWEEP_COMMAND
from spica_async.bus.memory import MemoryBus
from spica_async.config.load import load_config
from spica_async.documents import check_values, decode, parse_json, parse_yaml, to_yaml
from spica_async.errors import InputError

BOTH = pytest.mark.parametrize("parse", [parse_json, parse_yaml])


@BOTH
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            '{"a": {"b": [{"c": 1, "c": 2}]}}',
            "c is written twice|a\\.b\\[0\\]\\.c: is written twice",
        ),
        ('{"a": "\\ud800"}', "a: has half of a surrogate pair"),
        ('{"a": {"\\udfff": 1}}', r"a\.\?: has half of a surrogate pair.*, in a key"),
        ('{"a": "x\\u0000y"}', "a: has a NUL character"),
        ('{"a": 9223372036854775808}', "a: a whole number is at most"),
        ('{"a": [-9223372036854775809]}', r"a\[0\]: a whole number is at most"),
        (f'{{"a": {"9" * 5000}}}', "a number of that length|Exceeds the limit"),
        ('{"a": ' + '{"b": ' * 40 + "1" + "}" * 41, "a.b.b.b: nested more than 30 levels"),
        ('{"a": ' + "[" * 50_000 + "]" * 50_000 + "}", "nested too deeply"),
        (f'{{"a": [{", ".join("1" * 30_000)}]}}', "more than 20,000 values"),
    ],
    ids=lambda text: text[:30] if isinstance(text, str) else None,
)
def test_both_refuse_what_nothing_can_hold(
    parse: Callable[[str], dict[str, Any]], text: str, problem: str
) -> None:
    with pytest.raises(InputError, match=problem) as refusal:
        parse(text)
    assert len(str(refusal.value)) < 200
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_json_has_no_constants_of_its_own(word: str) -> None:
    with pytest.raises(InputError, match=f"not valid JSON: {word} is no number"):
        parse_json(f'{{"a": {word}}}')


@pytest.mark.parametrize(("name", "number"), [("a.json", "1e999"), ("a.yaml", ".inf")])
def test_numbers_are_finite(tmp_path: Path, name: str, number: str) -> None:
    path = tmp_path / name
    document = small_sweep(workload__request_rate=4096, workload__concurrency=None)
    path.write_text(
        json.dumps(document).replace('"request_rate": 4096', f'"request_rate": {number}')
    )

    with pytest.raises(InputError, match=r"workload.request_rate: .*finite number, not inf"):
        load_config(path)


def test_a_number_may_be_as_large_as_a_database_holds() -> None:
    assert parse_json('{"a": 9223372036854775807}') == {"a": 2**63 - 1}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: &x [*x]", r"line 1: not valid YAML: \*x stands within itself"),
        ("a: !!int x", "not valid YAML: "),
        ('a: !!int ""', "a value does not go with its tag"),
        ("a: !!bool maybe", "a value does not go with its tag"),
        ("a: !!timestamp x", "a value does not go with its tag"),
        ("a: !!python/name:os.system x", "could not determine a constructor"),
        ("a: 1\n---\nb: 2", "but found another document"),
        (
            "a: 1\nb: \x07",
            "^line 2: not valid YAML: unacceptable character #x0007: special characters are",
        ),
        (f"a: !{'b' * 5000} c", "^line 1: not valid YAML: could not determine a constructor"),
    ],
)
def test_yaml_has_ways_of_its_own_to_go_wrong(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as refusal:
        parse_yaml(text)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


def test_what_stands_beside_a_merge_goes_before_it_wherever_its_anchor_is() -> None:
    text = "b: &b {isl: 1, osl: 1}\nd: {e: {f: &a {<<: *b, isl: 2}}}\nc: {<<: *a, osl: 3}\n"

    assert parse_yaml(text) == {
        "b": {"isl": 1, "osl": 1},
        "d": {"e": {"f": {"isl": 2, "osl": 1}}},
        "c": {"isl": 2, "osl": 3},
    }


_NAMES = ", ".join(f"k{n}: 1" for n in range(3000))
BOMBS = {
    "laughs": "\n".join(
        ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30))]
    ),
    "merges of merges": "\n".join(
        ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: *a{n - 1}, k{n}: 1}}" for n in range(1, 3_000))]
    ),
    "one merge many times": f"a: &a {{{_NAMES}}}\nb: {{<<: [{', '.join(['*a'] * 10_000)}]}}",
    "many merges": f"a: &a {{{_NAMES}}}\n" + "\n".join(f"b{n}: {{<<: *a}}" for n in range(1000)),
    "base 60": "a: 1" + ":1" * 50_000,
    "flow": "a: " + "{a: [" * 200,
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_in_bounded_time_and_memory(name: str) -> None:
    text = BOMBS[name][: 1024 * 1024]
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(InputError) as refusal:
            parse_yaml(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert len(str(refusal.value)) < 200
    assert peak < 200 * 1024 * 1024
    assert (
        time.process_time() - started < 30
    )  # Tracing makes it slower by a factor; unbounded it is hours.


def test_the_mark_of_an_editor_is_no_part_of_a_text() -> None:
    assert parse_json(decode(b'\xef\xbb\xbf{"a": 1}')) == parse_yaml(decode(b"\xef\xbb\xbfa: 1"))


@pytest.mark.parametrize(
    "text", [json.dumps(small_sweep(), indent="\t"), "\ufeff" + json.dumps(small_sweep())]
)
def test_a_file_may_be_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(text)

    assert load_config(path).search_space.gpu_budget == 2


def test_a_file_that_is_too_long_to_be_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"{}\n" * 1_000_000)

    with pytest.raises(InputError, match=r"trace.jsonl: longer than 1,048,576 bytes$"):
        load_config(path)


def test_a_long_value_and_an_odd_key_leave_a_message_readable(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({"search_space": {"gpu_budget": "x" * 10_000, "a\nb" * 5000: 1}}))

    with pytest.raises(InputError) as refusal:
        load_config(path)
    assert max(len(line) for line in str(refusal.value).splitlines()) < 1500
    assert "gpu_budget: input should be a valid integer, not 'xxx" in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("", "''"),
        (" ", "' '"),
        ("\n", "'\\\\n'"),
        ("a\x1b[31m", "a\\\\x1b\\[31m"),
        ("b" * 500, "b{60}\\.\\.\\."),
    ],
    ids=["empty", "blank", "line break", "control", "long"],
)
def test_a_key_is_seen_whatever_it_is(tmp_path: Path, key: str, shown: str) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({key: 1}))
    with pytest.raises(InputError, match=rf"\n  {shown}: unknown key"):
        load_config(path)
    with pytest.raises(InputError, match=rf"^{shown}: has a NUL character$"):
        parse_json(json.dumps({key: "\0"}))
    with pytest.raises(InputError, match=rf"^a\[0\]\.{shown}: has a NUL character$"):
        parse_json(json.dumps({"a": [{key: "\0"}]}))


TWICE = json.dumps(small_sweep()).replace('"isl"', '"isl": 7, "isl"')


@pytest.mark.parametrize(
    ("submission", "problem"),
    [
        (f'{{"config": {TWICE}}}', "workload.isl: is written twice"),
        ('{"config": {}, "config": {}}', "submission.config: is written twice"),
        (f'{{"config": {json.dumps(small_sweep()).replace("4096", "NaN")}}}', "NaN is no number"),
    ],
)
async def test_a_command_is_read_as_a_submission_is(submission: str, problem: str) -> None:
    data = f'{{"action": "submit", "submission": {submission}}}'
    body = f'{{"id": "one", "source": "test", "data": {data}}}'
    control = FakeControl()
    async with asyncio.timeout(20), obeying(MemoryBus(), control) as client:
        await client.send(body.encode(), "one", SWEEP_COMMAND)
        answer = await client.answer()

    assert not control.known
    assert answer.problem is not None
    assert answer.problem.status == 422
    assert problem in answer.problem.detail


@pytest.mark.parametrize("number", ["012", "-012", "0_1", "1:30", "1:30.5", "190:20:30", "0777"])
def test_yaml_numbers_that_count_in_eights_or_sixties_are_refused(number: str) -> None:
    with pytest.raises(InputError, match=f"^line 2: .*{number} counts in eights or sixties"):
        parse_yaml(f"a: 1\nb: {number}\n")
    assert parse_yaml(f"a: '{number}'") == {"a": number}


@pytest.mark.parametrize(
    ("number", "value"),
    [
        *(("1e3", 1e3), ("1E-3", 1e-3), ("1.5e3", 1.5e3), (".5e1", 5.0), ("-1e+2", -100.0)),
        *(("0", 0), ("0.5", 0.5), ("-0", 0), ("1_000", 1000), ("0x10", 16), ("1.0e+3", 1e3)),
        *(("'1e3'", "1e3"), ("e3", "e3"), ("1e", "1e"), ("1e3x", "1e3x"), ("v1e3", "v1e3")),
    ],
)
def test_yaml_numbers_are_those_that_json_has(number: str, value: object) -> None:
    read = parse_yaml(f"a: {number}")["a"]
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize("date", ["2024-01-01", "2001-13-45", "2001-12-14t21:59:43.10-05:00"])
def test_a_date_is_a_text_in_yaml_as_it_is_in_json(date: str) -> None:
    assert parse_yaml(f"a: {date}") == {"a": date}


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5),
        st.one_of(
            st.sampled_from(["1e3", "-.5E+2", "012", "1:30", "2024-01-01", "yes", "null", "~", ""]),
            st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
            st.integers(-(2**63) + 1, 2**63 - 1),
            st.floats(allow_nan=False, allow_infinity=False),
            st.booleans(),
            st.none(),
        ),
        max_size=5,
    )
)
def test_what_is_written_is_read_again(document: dict[str, Any]) -> None:
    try:
        check_values(document)
    except InputError:
        return
    assert parse_yaml(to_yaml(document)) == document
