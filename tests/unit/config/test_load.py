"""A configuration file: what it means, and what every mistake in one is answered with."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.config import SmartSearchConfig
from spica_async.config.load import load_config
from spica_async.errors import InputError

REQUIRED: dict[str, Any] = {"model_name": "a/model", "hardware_sku": "some_gpu"}
LENGTHS: dict[str, Any] = {"isl": 1000, "osl": 100, "num_request_ratio": 2.0}
AGG = {"deployment_mode": ["agg"]}
DISAGG = {"deployment_mode": ["disagg"]}
POLICY = {
    "enable_throughput_scaling": True,
    "enable_load_scaling": False,
    "throughput_adjustment_interval_seconds": 240,
    "load_adjustment_interval_seconds": 5,
}


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (
            {"space": {"gpu_budgt": 8}},
            "search_space.gpu_budgt: unknown key; did you mean gpu_budget?",
        ),
        (
            {"workload": {"reqest_rate": 1}},
            "workload.reqest_rate: unknown key; did you mean request_rate?",
        ),
        ({"goal": {"targt": "goodput"}}, "goal.targt: unknown key; did you mean target?"),
        (
            {"goal": {"sla": {"ttft": 3.0}}},
            "goal.sla.ttft: unknown key; did you mean ttft_ms?",
        ),
        ({"sweep": {"max_round": 3}}, "sweep.max_round: unknown key; did you mean max_rounds?"),
        (
            {"space": {**AGG, "parallel_configs": [{"tp": 2}, {"tp": 2, "replica": 3}]}},
            "search_space.parallel_configs[1].replica: unknown key; did you mean replicas?",
        ),
        (
            {
                "space": {
                    **DISAGG,
                    "parallel_configs": [{"prefill": {"tp": 2}, "decode": {"tp": 2, "moetp": 1}}],
                }
            },
            "search_space.parallel_configs[0].decode.moetp: unknown key; did you mean moe_tp?",
        ),
        (
            {"space": {"planner_scaling_policy": ["disabled", {**POLICY, "enabel": True}]}},
            (
                "search_space.planner_scaling_policy[1].enabel: unknown key; known are "
                "enable_load_scaling, enable_throughput_scaling, "
            ),
        ),
        (
            {
                "space": {
                    "planner_fpm_sampling": [
                        {
                            "max_num_fpm_samples": 1,
                            "fpm_sample_bucket_size": 1,
                            "fpm_sample_bucket": 1,
                        }
                    ]
                }
            },
            (
                "search_space.planner_fpm_sampling[0].fpm_sample_bucket: unknown key; "
                "did you mean fpm_sample_bucket_size?"
            ),
        ),
        (
            {
                "space": {
                    "load_predictor_candidates": [{"load_predictor": "arima", "load_predictr": 1}]
                }
            },
            (
                "search_space.load_predictor_candidates[0].load_predictr: unknown key; "
                "did you mean load_predictor?"
            ),
        ),
        (
            {"goal": {"zzz": 1}},
            "goal.zzz: unknown key; known are pareto_objectives, robust, sla, target",
        ),
        ({"space": {3: 4}}, "search_space[3]: keys should be strings, not 3"),
    ],
)
def test_an_unknown_key_is_named_with_what_was_meant(
    problem_of: Callable[..., str], blocks: dict[str, Any], expected: str
) -> None:
    assert problem_of(**blocks).startswith(expected)


def test_an_unknown_block_is_named_with_what_was_meant(
    load: Callable[[str | bytes], SmartSearchConfig],
) -> None:
    with pytest.raises(InputError, match=r"sweap: unknown key; did you mean sweep\?"):
        load(yaml.safe_dump({"sweap": {}, "search_space": REQUIRED}))


@pytest.mark.parametrize("missing", REQUIRED)
def test_model_and_hardware_are_required(
    load: Callable[[str | bytes], SmartSearchConfig], missing: str
) -> None:
    space = {name: value for name, value in REQUIRED.items() if name != missing}
    with pytest.raises(InputError, match=rf"search_space\.{missing}: required$"):
        load(yaml.safe_dump({"search_space": space, "workload": {"concurrency": 4, **LENGTHS}}))


def test_every_problem_has_a_line_of_its_own(
    load_blocks: Callable[..., SmartSearchConfig],
) -> None:
    with pytest.raises(InputError) as refusal:
        load_blocks(space={"gpu_budget": -1}, sweep={"max_rounds": 0}, goal={"target": "speed"})
    _, *problems = str(refusal.value).splitlines()
    assert [line.split(":")[0].strip() for line in problems] == [
        "search_space.gpu_budget",
        "goal.target",
        "sweep.max_rounds",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("search_space: [\n", "sweep.yaml: line 2: not valid YAML: expected the node content"),
        ("a: 1\nb: 2\na: 3\n", "sweep.yaml: line 3: not valid YAML: a is written twice"),
        (
            "search_space:\n  gpu_budget: 8\n  gpu_budget: 9\n",
            "sweep.yaml: line 3: not valid YAML: gpu_budget is written twice",
        ),
        ("? [1]\n: 2\n", "sweep.yaml: line 1: not valid YAML: found unhashable key"),
        ("a\0b: 1\n", "sweep.yaml: line 1: not valid YAML: unacceptable character #x0000"),
        ("a: " + "[" * 1500, "sweep.yaml: not valid YAML: "),
        ("", "sweep.yaml: a configuration is a mapping with the blocks search_space, workload, "),
        ("- a\n", "sweep.yaml: a configuration is a mapping with the blocks search_space, "),
        (b"model: caf\xe9\n", "sweep.yaml: not a UTF-8 text file (invalid continuation byte)"),
        ("search_space: 3\n", "search_space: input should be a valid dictionary"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_a_file_that_is_no_configuration_is_refused(
    load: Callable[[str | bytes], SmartSearchConfig], text: str | bytes, expected: str
) -> None:
    with pytest.raises(InputError) as refusal:
        load(text)
    assert expected in str(refusal.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml: no such file or directory$"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(InputError, match=r"is a directory$"):
        load_config(tmp_path)


def test_a_relative_trace_starts_at_the_folder_of_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sweeps"
    folder.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for written, expected in {
        "../traces/a.jsonl": tmp_path / "traces" / "a.jsonl",
        "a.jsonl": folder / "a.jsonl",
        str(elsewhere / "b.jsonl"): elsewhere / "b.jsonl",
        "~/c.jsonl": tmp_path / "home" / "c.jsonl",
    }.items():
        document = {"search_space": REQUIRED, "workload": {"trace_path": written}}
        (folder / "sweep.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
        config = load_config(Path("../sweeps/sweep.yaml"))
        assert config.workload.trace_path == expected
        assert config.search_space.model_fields_set == set(REQUIRED)


def test_a_trace_in_the_home_of_nobody_is_refused(
    load_blocks: Callable[..., SmartSearchConfig],
) -> None:
    with pytest.raises(InputError, match=r"^workload\.trace_path: ~no-such-user/a "):
        load_blocks(workload={"trace_path": "~no-such-user/a"})


def test_of_many_problems_the_first_are_listed(
    load_blocks: Callable[..., SmartSearchConfig],
) -> None:
    with pytest.raises(InputError) as refusal:
        load_blocks(sweep={f"key_{number:03}": 1 for number in range(1000)})
    _, *lines = (line.strip() for line in str(refusal.value).splitlines())
    listed = [f"sweep.key_{number:03}" for number in range(20)]
    assert [line.partition(":")[0] for line in lines] == [*listed, "and 980 more problems"]


def test_a_model_s_folder_starts_there_too_and_never_stands_in_for_a_shipped_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = "Qwen/Qwen3-32B"
    for name in ("mine", shipped):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    for written, expected in {
        "mine": str(tmp_path / "mine"),
        "./mine": str(tmp_path / "mine"),
        shipped: shipped,
        f"./{shipped}": str(tmp_path / shipped),
        "some/model": "some/model",
    }.items():
        document = {"search_space": REQUIRED | {"model_name": written}}
        document["workload"] = {"isl": 1, "osl": 1, "num_request_ratio": 1.0, "concurrency": 1}
        (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
        assert load_config(Path("sweep.yaml")).search_space.model_name == expected


def test_a_model_folder_of_somebody_else_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    load: Callable[[str | bytes], SmartSearchConfig],
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    text = yaml.safe_dump({"search_space": REQUIRED, "workload": {"concurrency": 4, **LENGTHS}})
    with pytest.raises(
        InputError, match=r"^search_space\.model_name: .*a/model: permission denied$"
    ):
        load(text)


@pytest.mark.parametrize("name", ["x" * 300, "loop", "file/x"])
def test_what_is_no_folder_is_a_models_id(
    tmp_path: Path, load: Callable[[str | bytes], SmartSearchConfig], name: str
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    space = {**REQUIRED, "model_name": name}
    text = yaml.safe_dump({"search_space": space, "workload": {"concurrency": 4, **LENGTHS}})
    assert load(text).search_space.model_name == name


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ({"search_space": {**REQUIRED, "model_name": "m"}}, "search_space.model_name"),
        ({"workload": {"trace_path": "t.jsonl"}}, "workload.trace_path"),
    ],
)
def test_a_folder_whose_name_is_no_text(tmp_path: Path, block: dict[str, Any], field: str) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    (folder / "m").mkdir(parents=True)
    (folder / "m" / "config.json").write_text("{}")
    document = {"search_space": REQUIRED, "workload": {"concurrency": 4, **LENGTHS}, **block}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(document))

    with pytest.raises(InputError, match=f"^{field}: .*: a name that is no text$") as refusal:
        load_config(folder / "sweep.yaml")
    str(refusal.value).encode()


def test_a_trace_behind_a_loop_of_links(
    tmp_path: Path, load: Callable[[str | bytes], SmartSearchConfig]
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    document = {"search_space": REQUIRED, "workload": {"trace_path": "loop"}}
    with pytest.raises(InputError, match=r"^workload\.trace_path: .*: symlink loop"):
        load(yaml.safe_dump(document))
