"""`examples/own_loop`: simulated, and three processes at a coordinator of which one is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.commands.new import copy
from tests.conventions.sources import ROOT
from tests.support.coordinator import Server
from tests.support.waiting import PATIENCE_S, until

FOLDER = ROOT / "examples/own_loop"
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "edge_client")]),
}


def start(*arguments: str, folder: Path = FOLDER, out: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    command = [sys.executable, str(folder / "train.py"), *arguments]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=out, stderr=subprocess.STDOUT, text=True)


def test_it_learns_when_simulated() -> None:
    with start() as script:
        said = script.communicate(timeout=PATIENCE_S)[0]
    assert script.returncode == 0, said
    assert said.startswith("own-loop: done, 10 versions, 3 nodes")
    assert float(said.split()[-9]) > 85.0  # accuracy of the last version, in percent


@pytest.mark.timeout(300)
def test_a_node_is_killed_and_started_again(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", lease_s=3600.0).start()
    folder = tmp_path / "hospital"
    copy(FOLDER, folder)  # its job has another name
    spec = tomllib.loads((folder / "job.toml").read_text())
    schedule = {**spec["schedule"], "quorum": 3, "deadline_s": 600.0}

    def node(part: int, token: str = "") -> subprocess.Popen[str]:
        given = ["--url", server.url, "--part", str(part), "--state", str(tmp_path / str(part))]
        with (tmp_path / f"{part}.log").open("a") as log:
            return start(*given, *(["--token", token] if token else []), folder=folder, out=log)

    nodes: list[subprocess.Popen[str]] = []
    try:
        server.post("/jobs", {"spec": {**spec, "rounds": 20, "schedule": schedule}})
        nodes += [node(part, server.token()) for part in range(3)]
        until("some rounds", lambda: server.job("hospital")["version"] >= 3)
        nodes[1].kill()
        nodes[1].wait(PATIENCE_S)
        nodes.append(node(1))
        assert [one.wait(4 * PATIENCE_S) for one in (nodes[0], *nodes[2:])] == [0, 0, 0]
        until("the job to end", lambda: server.job("hospital")["state"] == "done")
        versions = server.get("/jobs/hospital/versions")["versions"]
        assert sorted(one["number"] for one in versions) == list(range(21))
        assert {one["reports"] for one in versions if one["number"]} == {3}
    finally:
        for one in nodes:
            one.kill()
            one.wait(PATIENCE_S)
        server.kill()
        server.close()
