"""A submitted sweep, and that what is wrong with one is worded as `spica-async check` words it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import yaml
from support.commands import small_sweep
from support.fake_control import FakeControl

from spica_async.config.load import load_config
from spica_async.errors import InputError

YAML = {"Content-Type": "application/yaml"}
GOOD = yaml.safe_dump(small_sweep())


async def test_json_is_taken_in(client: httpx.AsyncClient, control: FakeControl) -> None:
    submission = {"config": small_sweep(), "priority": 7, "use_cache": False}

    answer = await client.post("/v1/sweeps", json=submission)

    assert answer.status_code == 201
    assert answer.headers["location"] == "/v1/sweeps/sweep-1"
    assert answer.json()["priority"] == 7
    assert (await client.get(answer.headers["location"])).status_code == 200
    sweep = control.known["sweep-1"]
    assert not sweep.use_cache
    assert sweep.detail.config["search_space"]["gpu_budget"] == 2  # type: ignore[index, call-overload]  # a JSON value


@pytest.mark.parametrize("kind", ["application/yaml", "text/yaml; charset=utf-8"])
async def test_yaml_is_taken_in(client: httpx.AsyncClient, control: FakeControl, kind: str) -> None:
    answer = await client.post(
        "/v1/sweeps",
        content=GOOD,
        params={"priority": -3, "use_cache": "false"},
        headers={"Content-Type": kind},
    )

    assert answer.status_code == 201
    assert answer.json()["priority"] == -3
    assert not control.known["sweep-1"].use_cache


WRONG: list[tuple[str, str]] = [
    ("a list", "[1, 2]"),
    ("two keys", GOOD + "goal: {}\n"),
    ("no YAML", "goal: [1"),
    ("unknown key", yaml.safe_dump(small_sweep(goal__targt="x"))),
    ("two mistakes", yaml.safe_dump(small_sweep(search_space__gpu_budget=-1, goal__sl={}))),
    ("no date", "goal: 2026-02-31"),
]


@pytest.mark.parametrize("text", [case[1] for case in WRONG], ids=[case[0] for case in WRONG])
async def test_mistakes_are_worded_as_check_words_them(
    client: httpx.AsyncClient, control: FakeControl, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        load_config(path)

    answer = await client.post("/v1/sweeps", content=text, headers=YAML)

    assert answer.status_code == 422
    lines = str(raised.value).removeprefix(f"{path}:").splitlines()
    assert answer.json()["detail"] == "; ".join(line.strip() for line in lines if line.strip())
    assert not control.known


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"config": small_sweep(goal__targt="x")}, "goal.targt: unknown key; did you mean target?"),
        ({"config": small_sweep(), "priority": 101}, "priority: input should be less than"),
        ({"priority": 1}, "config: required"),
        ({"config": [1]}, "config: input should be"),
        (
            {"config": small_sweep(), "priorty": 50},
            "priorty: unknown key; did you mean priority?",
        ),
        (
            {"config": small_sweep(), "priority": 5, "useCache": False},
            "useCache: unknown key; ",
        ),
    ],
)
async def test_mistakes_in_json_name_their_field(
    client: httpx.AsyncClient, control: FakeControl, body: dict[str, Any], words: str
) -> None:
    answer = await client.post("/v1/sweeps", json=body)

    assert not control.known
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(words)


async def test_what_is_no_json_names_its_line_and_is_not_repeated(
    client: httpx.AsyncClient,
) -> None:
    headers = {"Content-Type": "application/json"}
    text = json.dumps({"config": "secret"}, indent=1)[:-1] + "!"

    answer = await client.post("/v1/sweeps", content=text, headers=headers)

    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("not valid JSON: ")
    assert "line 3" in answer.json()["detail"]
    assert "secret" not in answer.text


async def test_priority_has_bounds_in_the_url_too(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/sweeps?priority=101", content=GOOD, headers=YAML)

    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("priority: ")


async def test_a_long_and_odd_path_leaves_a_refusal_readable(client: httpx.AsyncClient) -> None:
    long = small_sweep() | {"workload": {"trace_path": "a\n" * 2000}}

    refused = await client.post("/v1/sweeps", json={"config": long})

    assert refused.status_code == 422
    assert refused.json()["detail"].startswith(r"workload.trace_path: a\na\n")
    assert len(refused.json()["detail"]) < 400


async def test_a_relative_trace_is_refused_and_an_absolute_one_taken(
    client: httpx.AsyncClient, control: FakeControl
) -> None:
    relative = small_sweep() | {"workload": {"trace_path": "traces/a.jsonl"}}
    absolute = small_sweep() | {"workload": {"trace_path": "/traces/a.jsonl"}}

    refused = await client.post("/v1/sweeps", json={"config": relative})
    taken = await client.post("/v1/sweeps", json={"config": absolute})

    assert refused.status_code == 422
    assert refused.json()["detail"].startswith("workload.trace_path: traces/a.jsonl is relative")
    assert taken.status_code == 201


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_other_types_are_refused(client: httpx.AsyncClient, kind: str) -> None:
    answer = await client.post("/v1/sweeps", content=GOOD, headers={"Content-Type": kind})

    assert answer.status_code == 415
    assert "application/json" in answer.json()["detail"]


async def test_a_body_without_a_type_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/sweeps", content=GOOD.encode())

    assert answer.status_code == 415
    assert answer.json()["detail"].endswith(", not nothing")
    assert "application/yaml" in answer.headers["accept"]


@pytest.mark.parametrize(
    "kind",
    [
        "application/yaml",
        "application/x-yaml",
        "text/yaml",
        "text/x-yaml",
        "text/vnd.yaml",
        "Application/X-YAML; charset=UTF-8",
        'text/yaml;charset="utf-8"',
    ],
)
async def test_each_name_that_yaml_goes_by_is_known(client: httpx.AsyncClient, kind: str) -> None:
    answer = await client.post("/v1/sweeps", content=GOOD, headers={"Content-Type": kind})

    assert answer.status_code == 201


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 415), ("br", 415), ("identity", 201)])
async def test_a_packed_body_is_refused(
    client: httpx.AsyncClient, encoding: str, status: int
) -> None:
    headers = YAML | {"Content-Encoding": encoding}
    content = gzip.compress(GOOD.encode()) if encoding == "gzip" else GOOD

    answer = await client.post("/v1/sweeps", content=content, headers=headers)

    assert answer.status_code == status
    if status == 415:
        assert answer.json()["detail"].startswith("Content-Encoding: ")
        assert answer.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("kind", ["application/json", "application/yaml"])
async def test_a_mark_before_the_text_is_none_of_it(client: httpx.AsyncClient, kind: str) -> None:
    text = json.dumps({"config": small_sweep()}) if kind == "application/json" else GOOD

    answer = await client.post(
        "/v1/sweeps", content=text.encode("utf-8-sig"), headers={"Content-Type": kind}
    )

    assert answer.status_code == 201


async def test_text_that_is_not_utf8(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/sweeps", content=b"\xff\xfe", headers=YAML)

    assert answer.status_code == 422
    assert "UTF-8" in answer.json()["detail"]


@pytest.mark.timeout(20)
async def test_aliases_within_aliases_do_not_fill_the_memory(client: httpx.AsyncClient) -> None:
    levels = [f"  - &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    text = "\n".join(["goal:", "  - &a0 [x]", *levels])

    answer = await client.post("/v1/sweeps", content=text, headers=YAML)

    assert answer.status_code == 422
    assert "values" in answer.json()["detail"]


async def test_a_full_queue_says_when_to_come_again(
    client: httpx.AsyncClient, control: FakeControl
) -> None:
    control.capacity = 0

    answer = await client.post("/v1/sweeps", json={"config": small_sweep()})

    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
