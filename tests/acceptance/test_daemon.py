"""The daemon as a user runs it: served, killed, served again, and spoken to by the commands."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from support.commands import TIMEOUT_SECONDS, Spica, WriteConfig, small_sweep
from support.served import served

SAMPLES = 9


def bearer(url: str) -> dict[str, str]:
    """What opens the daemon there to its own user, as docs/daemon.md has it for curl."""
    address = url.removeprefix("http://").replace(":", "-")
    folder = Path(os.environ["XDG_STATE_HOME"]) / "spica-async" / "daemons"
    token = (folder / f"{address}.token").read_text().strip()
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.slow
def test_a_daemon_that_is_killed_goes_on_with_its_sweeps(
    spica: Spica, nine_samples: str, tmp_path: Path
) -> None:
    with served(tmp_path, "--slots", "1", "--sweeps", "1") as daemon:
        submitted = spica("submit", nine_samples, "--daemon", daemon.url)
        assert submitted.code == 0, submitted.stderr
        sweep = submitted.stdout.strip()
        other = spica("submit", nine_samples, "--daemon", daemon.url, "--priority", "-5", "--json")
        second = json.loads(other.stdout)["sweep_id"]
        assert json.loads(other.stdout)["priority"] == -5
        where = f"{daemon.url}/v1/sweeps/{sweep}/events"
        asked = urllib.request.Request(where, headers=bearer(daemon.url))
        with urllib.request.urlopen(asked) as events:
            assert any(b"candidate.measured" in line for line in events)
        children = psutil.Process(daemon.process.pid).children(recursive=True)
        daemon.process.kill()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    with served(tmp_path, "--slots", "1", "--sweeps", "1") as daemon:
        paused = spica("pause", second, "--daemon", daemon.url)
        assert paused.code == 0, paused.stderr
        watched = spica("watch", sweep, "--daemon", daemon.url)
        assert watched.code == 0, watched.stderr
        shown = spica("show", sweep, "--json", "--daemon", daemon.url)
        detail = json.loads(shown.stdout)
        assert detail["state"] == "exhausted"
        assert detail["tally"]["feasible"] == detail["tally"]["attempts"] == SAMPLES
        listed = json.loads(spica("list", "--json", "--daemon", daemon.url).stdout)
        assert {one["sweep_id"]: one["state"] for one in listed}[second] == "paused"
        removed = spica("remove", sweep, "--daemon", daemon.url)
        assert removed.code == 0, removed.stderr
        assert sweep not in spica("list", "--daemon", daemon.url).stdout
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(TIMEOUT_SECONDS) == 0
    numbers = {
        json.loads(line)["number"]
        for line in (tmp_path / "results" / sweep / "candidates.jsonl").read_text().splitlines()
    }
    assert numbers == set(range(SAMPLES))
    finished = spica("resume", second, "--json")
    assert finished.code == 0, finished.stderr
    assert json.loads(finished.stdout)["tally"]["feasible"] == SAMPLES


def test_what_goes_wrong_is_one_message(spica: Spica, nine_samples: str, tmp_path: Path) -> None:
    nobody = "http://127.0.0.1:1"
    finished = spica("submit", nine_samples, "--daemon", nobody)
    assert finished.code == 1
    assert nobody in finished.stderr
    for arguments, message in (
        (["--host", "0.0.0.0"], "--token-file"),
        (["--journal", "mysql://x"], "journal: give sqlite:///PATH"),
        (["--token-file", "missing"], "--token-file missing"),
    ):
        finished = spica("serve", "--port", "0", *arguments)
        assert finished.code == 2, finished.stderr
        assert message in finished.stderr.splitlines()[-1]
        assert "Traceback" not in finished.stderr
    with served(tmp_path, "--slots", "1") as daemon:
        unknown = spica("cancel", "nothing", "--daemon", daemon.url)
        assert (unknown.code, unknown.stderr) == (2, "error: there is no sweep nothing\n")
        bad = tmp_path / "bad.yaml"
        bad.write_text((tmp_path / nine_samples).read_text().replace("throughput", "speed"))
        refused = spica("submit", "bad.yaml", "--daemon", daemon.url)
        assert refused.code == 2
        assert "goal.target" in refused.stderr
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{daemon.url}/v1/sweeps")
        taken = spica("serve", "--port", daemon.url.rpartition(":")[2], "--output", "other")
        assert taken.code == 2
        assert "--port" in taken.stderr.splitlines()[-1]


def test_traces_are_below_their_root(
    spica: Spica, write_config: WriteConfig, tmp_path: Path
) -> None:
    for folder in ("traces", "elsewhere"):
        (tmp_path / folder).mkdir()
        made = spica("trace", "synth", f"{folder}/trace.jsonl", "--requests", "20")
        assert made.code == 0, made.stderr
    missing = spica("serve", "--port", "0", "--trace-root", "nowhere")
    assert (missing.code, missing.stderr) == (
        2,
        "error: --trace-root nowhere: there is no such folder\n",
    )
    with served(tmp_path, "--slots", "1", "--trace-root", "traces") as daemon:
        codes = {}
        for folder in ("traces", "elsewhere"):
            workload = {"trace_path": f"{folder}/trace.jsonl"}
            config = write_config(small_sweep() | {"workload": workload})
            done = spica("submit", config, "--daemon", daemon.url)
            codes[folder] = done.code
        assert codes == {"traces": 0, "elsewhere": 2}
        assert done.stderr.startswith(
            f"error: workload.trace_path: {tmp_path}/elsewhere/trace.jsonl is not below"
        )
