"""A stranger's algorithm: one file of fewer than forty lines and an entry point, and nothing of ours is touched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import process
from tests.cli.test_simulate import JOB, TOY
from tests.conventions.sources import ROOT
from tests.support.ports import free_port

pytestmark = [pytest.mark.timeout(180)]

FILE = ROOT / "examples" / "new_algorithm.py"
VOTES = '[algorithm]\nname = "majority"\nstep_size = 0.5\n'


@pytest.fixture
def env(place: Path) -> dict[str, str]:
    """An environment in which the file is installed as pip would do it, beside shoal."""
    site = place / "site"
    about = site / "majority-1.0.dist-info"
    about.mkdir(parents=True)
    shutil.copy(FILE, site)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: majority\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[shoal.algorithms]\nmajority = new_algorithm:Majority\n")
    (place / "toy.py").write_text(TOY)
    (place / "job.toml").write_text(JOB + VOTES)
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(site)])}


def told(env: dict[str, str], *arguments: object) -> dict[str, Any]:
    """Return a command's answer in JSON."""
    out, said = process(*arguments, "--json", env=env).communicate(timeout=120)
    assert out, said
    found: dict[str, Any] = json.loads(out)
    return found


def test_it_is_one_short_file() -> None:
    assert len(FILE.read_text().splitlines()) < 40


def test_it_shows_in_the_list_and_in_the_jobs_schema_and_learns(env: dict[str, str]) -> None:
    listed = told(env, "algorithms")["data"]
    assert "majority" in json.dumps(listed)
    done = told(env, "simulate", "job.toml", "--nodes", "3")
    assert done["status"] == "ok", done
    assert [version["number"] for version in done["data"]["versions"]] == [0, 1, 2, 3]


def test_a_field_that_it_does_not_have(env: dict[str, str]) -> None:
    wrong = told(env, "simulate", "job.toml", "--nodes", "3", "--set", "algorithm.step=1")
    assert wrong["error"]["code"] == "job.algorithm"
    assert "step_size" in wrong["error"]["hint"]


@pytest.fixture
def coordinator(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    port = free_port()
    monkeypatch.setenv("SHOAL_CLIENT__URL", f"http://127.0.0.1:{port}")
    running = process("coordinator", "--port", port, env=env)
    assert running.stderr is not None
    assert any("ready" in line for line in running.stderr)
    yield running
    running.kill()
    running.communicate()


@pytest.mark.usefixtures("coordinator")
def test_it_runs_over_http(env: dict[str, str]) -> None:
    use = told(env, "token", "create", "--name", "a")["data"]["use"].replace("FILE.py:learner", "toy.py:learner")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    node = process(*use.split()[1:], "--state-dir", "state", env=env, **quiet)
    try:
        done = told(env, "run", "job.toml", "--set", "schedule.min_nodes=1")
        assert done["data"]["job"]["state"] == "done"
        assert done["data"]["job"]["version"] == 3
    finally:
        node.kill()
        node.wait()
