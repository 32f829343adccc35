"""A job whose network grows, in real processes: killed with SIGKILL in the middle of a growth."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import shoal
from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.model.tree import digest
from shoal.jobs.spec import parse_job
from shoal.wire.payload import open_payload
from tests.edge_client.test_growth_over_http import JOB_OF_TWO, NODES
from tests.learn.test_growing_learner import learner
from tests.support import edge_process
from tests.support.coordinator import Server
from tests.support.forkserver import Forked
from tests.support.ports import free_port
from tests.support.waiting import until

LEARNER = Path(__file__).parents[1] / "support" / "growing_learners.py"


def node(folder: Path, url: str, part: int, token: str) -> Forked:
    """Start a node's process."""
    name = NODES[part]
    given = {
        "POINTS": str(folder / f"{name}.points"),
        "SHOAL_EDGE__URL": url,
        "SHOAL_EDGE__TOKEN": token,
        "SHOAL_EDGE__NAME": name,
        "SHOAL_EDGE__JOBS": '["growing"]',
        "SHOAL_EDGE__STATE_DIR": str(folder / name),
        "SHOAL_EDGE__RETRY_PAUSE_MAX_S": "0.1",
        "SHOAL_EDGE__LEARNER": f"{LEARNER}:held",
        "SHOAL_EDGE__OPTIONS": json.dumps({"part": part, "folder": str(folder)}),
    }
    log = folder / f"{name}.log"
    return Forked(edge_process.main, "nowhere", 1, out=log, errors=log, more=given)


@pytest.mark.timeout(180)
def test_killed_in_a_growth_they_come_to_the_model_of_the_simulation(
    tmp_path: Path, server: Callable[..., Server]
) -> None:
    running = server(port=free_port()).start()
    running.post("/jobs", {"spec": JOB_OF_TWO})
    tokens = [running.token() for _ in NODES]
    nodes = [node(tmp_path, running.url, part, token) for part, token in enumerate(tokens)]
    until("a node to grow the model", lambda: any(tmp_path.glob("grows-*")))
    (begun,) = tmp_path.glob("grows-*")
    part = int(begun.name[-1])
    begun.unlink()
    running.kill()
    os.kill(nodes[part].pid, signal.SIGKILL)
    assert nodes[part].wait(60) == -signal.SIGKILL
    running.start()
    nodes[part] = node(tmp_path, running.url, part, tokens[part])
    until("a node to grow the model again", lambda: any(tmp_path.glob("grows-*")))
    (tmp_path / "go").touch()
    for process, name in zip(nodes, NODES, strict=True):
        assert process.wait(60) == 0, (tmp_path / f"{name}.log").read_text()
    until("the job to end", lambda: running.job("growing")["state"] == "done")
    body = running.request("GET", "/api/v1/jobs/growing/models/6").content
    learners = {name: learner(place) for place, name in enumerate(NODES)}
    foreseen = shoal.simulate(parse_job(JOB_OF_TWO), learners, progress=False)
    assert digest(tree_slot(open_payload(body), "model")) == digest(foreseen.model)
