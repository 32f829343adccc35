"""The released files: a source distribution and the wheel from it, tried in environments that have nothing else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

import shoal_dashboard
from tests.conventions.sources import ROOT
from tests.packaging.clean_environment import Environment, closure, nbytes

pytestmark = [pytest.mark.timeout(300)]

LEARNER = """

def learner(part: int = 0) -> Softmax:
    x, y = digits()
    own = slice(600 * part, 600 * (part + 1))
    return Softmax(x[own], y[own], (x[1200:], y[1200:]))
"""
JOB = """
name = "softmax"
rounds = 3

[algorithm]
name = "fedavg"

[schedule]
name = "rounds"
min_nodes = 1
"""
HELD_OUT = """
[held_out]
learner = "shoal.learn.digits:held_out"
"""


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shoal_dashboard.assets() is None:
        pytest.skip("the dashboard is not built: python dev.py dashboard")
    folder = tmp_path_factory.mktemp("sdist")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("shoal-*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from the source distribution, where there is no Node."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as packed:
        packed.extractall(folder, filter="data")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    alone = {name: text for name, text in os.environ.items() if not name.startswith("SHOAL")} | {"PATH": str(folder)}
    assert shutil.which("node", path=alone["PATH"]) is None
    source = folder / sdist.name.removesuffix(".tar.gz")
    subprocess.run(build, cwd=source, env=alone, check=True, capture_output=True)
    return next(folder.glob("shoal-*.whl"))


@pytest.fixture(scope="module")
def described(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    """Return the metadata of the wheel."""
    folder = tmp_path_factory.mktemp("metadata")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder, [name for name in packed.namelist() if ".dist-info/" in name])
    return PathDistribution(next(folder.glob("shoal-*.dist-info")))


def test_the_wheel_has_the_pages_and_the_digits_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    wanted = {"shoal_dashboard/static/index.html", "shoal/learn/files/digits.npz", "shoal/templates/pytorch/job.toml"}
    assert wanted <= set(names)
    tops = {name.partition("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"shoal", "shoal_coordinator", "shoal_dashboard", "shoal_edge_client", "shoal_peer"}


def test_the_base_and_a_coordinator_are_small(described: Distribution) -> None:
    base = closure(described)
    assert len(base) <= 35
    assert nbytes(base) <= 120 * 2**20
    assert base.keys().isdisjoint({"cryptography", "fastapi", "scikit-learn", "scipy", "sqlalchemy", "torch"})
    served = closure(described, "coordinator", "postgres", "s3")
    assert nbytes(served) <= 225 * 2**20  # less than 350 including a slim image of Python
    assert served.keys().isdisjoint({"scikit-learn", "scipy", "torch"})


def test_a_wheel_in_a_clean_environment_runs_the_demo(tmp_path: Path, wheel: Path, described: Distribution) -> None:
    clean = Environment(tmp_path / "venv", wheel, closure(described, "demo"))
    where = clean.run("python", "-c", "import shoal, torch; print(shoal.__file__)", cwd=tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(tmp_path), where.stderr
    looked = json.loads(clean.run("shoal", "doctor", "--json", cwd=tmp_path).stdout)["data"]["checks"]
    assert {one["name"]: one["state"] for one in looked}["dashboard"] == "ok"
    done = clean.run("shoal", "demo", "--json", "--rounds", "3", "--port", "0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["data"]["rounds"] == 3


def test_a_coordinator_and_a_node_without_torch_run_a_job(tmp_path: Path, wheel: Path, described: Distribution) -> None:
    """The node has the base alone; its learner is numpy."""
    served = Environment(tmp_path / "coordinator", wheel, closure(described, "coordinator"))
    base = Environment(tmp_path / "base", wheel, closure(described))
    for one in (served, base):
        assert "No module named 'torch'" in one.run("python", "-c", "import torch", cwd=tmp_path).stderr
    told = base.run("shoal", "demo", cwd=tmp_path)
    assert (told.returncode, "pip install '.[demo]'" in told.stderr) == (2, True)
    learner = (ROOT / "tests/algorithms/softmax.py").read_text() + LEARNER
    (tmp_path / "mine.py").write_text(learner)
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "measured.toml").write_text(JOB + HELD_OUT)
    started: list[subprocess.Popen[str]] = []

    def start(one: Environment, *arguments: str) -> subprocess.Popen[str]:
        command = one.command("shoal", *arguments)
        started.append(subprocess.Popen(command, cwd=tmp_path, env=one.variables(), stdout=subprocess.PIPE, text=True))
        return started[-1]

    try:
        url = address_of(start(served, "coordinator", "--port", "0", "--data", "data"))
        there = ("--url", url, "--token", (tmp_path / "data" / "operator.token").read_text().strip())
        made = base.run("shoal", "token", "create", "--json", *there, cwd=tmp_path)
        token = json.loads(made.stdout)["data"]["token"]
        refused = base.run("shoal", "run", "measured.toml", *there, cwd=tmp_path)
        assert (refused.returncode, "on the coordinator's machine: pip install '.[torch]'" in refused.stderr) == (
            2,
            True,
        )
        start(
            base, "join", url, "--token", token, "--learner", "mine.py:learner", "--state-dir", "state", "--name", "a"
        )
        done = base.run("shoal", "run", "job.toml", "--json", *there, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        job = json.loads(done.stdout)["data"]["job"]
        assert (job["state"], job["version"]) == ("done", 3)
        assert job["metrics"]["eval/accuracy"] > 0.5
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def address_of(process: subprocess.Popen[str]) -> str:
    """Where a coordinator listens, as soon as it does: it prints that, and then where its token is."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("address"):
            return line.split()[1]
    pytest.fail(f"the coordinator ended with {process.wait()}")
