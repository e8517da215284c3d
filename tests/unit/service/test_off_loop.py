"""What may take for ever, or long, is not done by the loop."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from support.daemon_http import asking
from support.daemons import small_config
from support.fake_control import FakeControl

from schemas.config import SmartSearchConfig
from spica_async.config.inputs import Inputs
from spica_async.documents import parse_yaml
from spica_async.errors import SpicaError
from spica_async.service import stored
from spica_async.service.runner import ManagerSettings, SweepRunner


async def test_traces_are_read_in_threads_for_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def inputs_of(config: SmartSearchConfig, _note: object) -> Inputs:
        seen.append(threading.current_thread().name)
        return Inputs(config, None, 1)

    monkeypatch.setattr("spica_async.service.runner.inputs_of", inputs_of)
    nobody = cast("Any", None)
    runner = SweepRunner(nobody, nobody, nobody, ManagerSettings(output=tmp_path), lambda: None)
    await runner.inputs(small_config())
    assert [name.partition("-")[0] for name in seen] == ["files"]


async def test_documents_are_read_in_threads_that_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def parse(text: str) -> Any:
        seen.append(threading.current_thread().name)
        return parse_yaml(text)

    monkeypatch.setattr("spica_async.config.submission.parse_yaml", parse)
    async with asking(FakeControl()) as client:
        headers = {"Content-Type": "application/yaml"}
        await client.post("/v1/sweeps", content="search_space: {}", headers=headers)
    assert [name.partition("-")[0] for name in seen] == ["computing"]


async def test_a_page_of_a_folder_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_PAGE_SECONDS", 0.05)
    # To open it is to wait for somebody who writes to it.
    pipe = tmp_path / "candidates.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(SpicaError, match=r"candidates\.jsonl: the disk does not answer$"):
        await stored.candidate_page(tmp_path, offset=0, limit=1)
    os.close(os.open(pipe, os.O_WRONLY))
