"""A split job of real processes: killed with SIGKILL, and requests that are refused."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.core.model.tree import digest
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.split_message import NoTurn, SplitMessage, SplitPoll, SplitRequest
from shoal.runtime.durable_files import digest_of
from shoal.wire.split_codec import SplitFrame, encode
from tests.support import edge_process
from tests.support.coordinator import OPERATOR, Server, inside
from tests.support.forkserver import Forked
from tests.support.ports import free_port
from tests.support.split_learners import JOB, PARTS, simulated, toml
from tests.support.waiting import until

LEARNER = str(JOB["learner"]).replace(":shapes", ":clinic")


def job_file(folder: Path, **more: Any) -> Path:
    """The file of a split job."""
    path = folder / "job.toml"
    path.write_text(toml({**JOB, **more}))
    return path


def node(folder: Path, url: str, name: str, token: str, point: str = "nowhere", nth: int = 1) -> Forked:
    """Start a node's process."""
    given = {
        "POINTS": str(folder / f"{name}.points"),
        "SHOAL_EDGE__URL": url,
        "SHOAL_EDGE__TOKEN": token,
        "SHOAL_EDGE__NAME": name,
        "SHOAL_EDGE__SPLIT_JOB": "clinics",
        "SHOAL_EDGE__STATE_DIR": str(folder / name),
        "SHOAL_EDGE__RETRY_PAUSE_MAX_S": "0.1",
        "SHOAL_EDGE__LEARNER": LEARNER,
        "SHOAL_EDGE__OPTIONS": json.dumps({"part": PARTS[name]}),
    }
    log = folder / f"{name}.log"
    return Forked(edge_process.main, point, nth, out=log, errors=log, more=given)


@pytest.mark.timeout(180)
def test_killed_processes_give_the_model_of_the_simulation(tmp_path: Path, server: Callable[..., Server]) -> None:
    running = server(port=free_port(), split_jobs=[str(job_file(tmp_path))]).start(crash="split.fed#9")
    tokens = {name: running.token() for name in PARTS}
    first = node(tmp_path, running.url, "a", tokens["a"], "split.renamed", 5)
    other = node(tmp_path, running.url, "b", tokens["b"])
    assert first.wait(60) == -signal.SIGKILL, (tmp_path / "a.log").read_text()
    again = node(tmp_path, running.url, "a", tokens["a"])
    until("the coordinator to be killed", lambda: running.ended() is not None)
    assert running.ended() == -signal.SIGKILL
    running.start()
    for process, name in ((again, "a"), (other, "b")):
        assert process.wait(60) == 0, (tmp_path / f"{name}.log").read_text()
    found = running.get("/split/clinics")
    assert (found["round"], found["state"], found["ended"]) == (2, "done", "all rounds are done")
    waits = {"turn_batches": None, "excluded": ""}
    assert found["nodes"] == [{"name": name, **waits} for name in PARTS]
    assert [(one["batches"], one["examples"]) for one in found["versions"]] == [(2 * 3, 20 + 21)] * 2
    for way in ("up", "down"):
        sent = [one[f"{way}_bytes"] for one in found["versions"]]
        assert all(41 / 8 * found[f"step_{way}_bytes"] < one < found[f"{way}_bytes"] for one in sent)
        assert sum(sent) <= found[f"{way}_bytes"]
    model = shoal.load_model(running.folder / "split" / "clinics" / "model.safetensors")
    assert digest(model) == digest(simulated(JOB))


def test_what_is_refused_over_http(tmp_path: Path) -> None:
    with inside(tmp_path / "data", split_jobs=[str(job_file(tmp_path))]) as running:

        def enrol(name: str) -> dict[str, str]:
            body = {"token": running.token(), "name": name, "info": {}}
            answer = running.request("POST", "/api/v1/enrol", json=body)
            return {"Authorization": f"Bearer {answer.json()['credential']}"}

        credential = enrol("a")

        def send(message: SplitMessage, payload: bytes = b"", job: str = "clinics", **more: Any) -> tuple[int, str]:
            frame = encode(SplitFrame("clinics", message, payload))
            answer = running.request("POST", f"/api/v1/split/{job}", content=frame, **{"headers": credential, **more})
            return answer.status_code, answer.json()["code"] if answer.content else ""

        poll, large = SplitPoll("a"), bytes(200_000)
        request = SplitRequest("a", 1, 0, 0, 8, BlobRef(digest_of([large]), len(large)))
        assert send(poll, headers={"Authorization": "Bearer shn_none"}) == (401, "auth.refused")
        assert send(poll, headers={"Authorization": f"Bearer {OPERATOR}"}) == (403, "auth.forbidden")
        assert send(SplitPoll("b")) == (422, "head.type")
        assert send(NoTurn()) == (422, "head.type")
        assert send(poll, job="others") == (404, "job.unknown")
        assert send(request, large + bytes(200_000)) == (413, "body.too-large")
        assert send(request, large) == (422, "payload.header")
        assert running.get("/split/clinics")["nodes"] == []
        assert send(poll) == (204, "")
        taken = running.request("POST", "/api/v1/jobs", json={"spec": {"name": "clinics"}})
        assert (taken.status_code, taken.json()["code"]) == (409, "job.exists")
        (found,) = running.get("/split")["split_jobs"]
        own, others = (
            running.request("GET", "/api/v1/split/clinics", headers=one).json()["nodes"]
            for one in (credential, enrol("b"))
        )
    assert (found["state"], [one["name"] for one in found["nodes"]]) == ("waiting", ["a"])
    assert found["up_bytes"] > 0
    assert (own, others) == (found["nodes"], [])
