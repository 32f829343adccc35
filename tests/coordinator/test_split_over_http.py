"""A split job of real processes: killed with SIGKILL, and requests that are refused."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.core.model.tree import Tree, digest, norm, sub
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.split_message import NoTurn, SplitMessage, SplitPoll, SplitRequest
from shoal.runtime.durable_files import digest_of
from shoal.wire.split_codec import SplitFrame, encode
from tests.support import edge_process
from tests.support.coordinator import OPERATOR, Server, inside
from tests.support.forkserver import Forked
from tests.support.ports import free_port
from tests.support.split_learners import JOB, KNOWN, PARTS, PEOPLE, simulated, simulated_known, simulated_people, toml
from tests.support.waiting import until

NODES = {
    "clinics": {name: {"part": part} for name, part in PARTS.items()},
    **{key: {name: {"name": name} for name in PEOPLE["parties"]} for key in ("people", "known")},
}
LEARNERS = {"clinics": "clinic", "people": "party", "known": "known"}


def job_file(folder: Path, job: dict[str, Any] = JOB) -> Path:
    """The file of a split job."""
    path = folder / f"{job['name']}.toml"
    path.write_text(toml(job))
    return path


def node(folder: Path, job: dict[str, Any], name: str, where: tuple[str, str], *at: Any) -> Forked:
    """Start a node's process; `where`: URL and token. `at`: a point at which it dies, and how often it passes it."""
    (url, token), kind = where, str(job["name"])
    given = {
        "POINTS": str(folder / f"{name}.points"),
        "SHOAL_EDGE__URL": url,
        "SHOAL_EDGE__TOKEN": token,
        "SHOAL_EDGE__NAME": name,
        "SHOAL_EDGE__SPLIT_JOB": kind,
        "SHOAL_EDGE__STATE_DIR": str(folder / name),
        "SHOAL_EDGE__RETRY_PAUSE_MAX_S": "0.1",
        "SHOAL_EDGE__LEARNER": f"{str(job['learner']).rpartition(':')[0]}:{LEARNERS[kind]}",
        "SHOAL_EDGE__OPTIONS": json.dumps(NODES[kind][name]),
    }
    log = folder / f"{name}.log"
    return Forked(edge_process.main, *(at or ("nowhere", 1)), out=log, errors=log, more=given)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("job", "simulated"), [(JOB, simulated), (PEOPLE, simulated_people)], ids=["clinics", "people"]
)
def test_killed_processes_give_the_model_of_the_simulation(
    job: dict[str, Any], simulated: Callable[[dict[str, Any]], Tree], tmp_path: Path, server: Callable[..., Server]
) -> None:
    running = server(port=free_port(), split_jobs=[str(job_file(tmp_path, job))]).start(crash="split.fed#16")
    names = list(NODES[job["name"]])
    where = {name: (running.url, running.token()) for name in names}
    first = node(tmp_path, job, names[0], where[names[0]], "split.renamed", 4)
    other = node(tmp_path, job, names[1], where[names[1]])
    assert first.wait(60) == -signal.SIGKILL, (tmp_path / f"{names[0]}.log").read_text()
    again = node(tmp_path, job, names[0], where[names[0]])
    until("the coordinator to be killed", lambda: running.ended() is not None)
    assert running.ended() == -signal.SIGKILL
    running.start()
    for process, name in zip((again, other), names, strict=True):
        assert process.wait(60) == 0, (tmp_path / f"{name}.log").read_text()
    found = running.get(f"/split/{job['name']}")
    assert (found["round"], found["state"], found["ended"]) == (2, "done", "all rounds are done")
    assert sorted((one["name"], one["turn_batches"], one["excluded"]) for one in found["nodes"]) == [
        (name, None, "") for name in names
    ]
    for way in ("up", "down"):
        sent = [one[f"{way}_bytes"] for one in found["versions"]]
        assert all(
            one["examples"] / 8 * found[f"step_{way}_bytes"] < bytes_ < found[f"{way}_bytes"]
            for one, bytes_ in zip(found["versions"], sent, strict=True)
        )
        assert sum(sent) <= found[f"{way}_bytes"]
    model = shoal.load_model(running.folder / "split" / job["name"] / "model.safetensors")
    assert digest(model) == digest(simulated(job))


@pytest.mark.timeout(180)
def test_a_party_killed_in_the_alignment_leaves_no_wrong_row(tmp_path: Path, server: Callable[..., Server]) -> None:
    running = server(port=free_port(), split_jobs=[str(job_file(tmp_path, KNOWN))]).start(crash="split.fed#12")
    where = {name: (running.url, running.token()) for name in PEOPLE["parties"]}
    first = node(tmp_path, KNOWN, "bank", where["bank"], "blob.renamed", 4)
    shop = node(tmp_path, KNOWN, "shop", where["shop"])
    assert first.wait(60) == -signal.SIGKILL, (tmp_path / "bank.log").read_text()
    bank = node(tmp_path, KNOWN, "bank", where["bank"])
    until("the coordinator to be killed", lambda: running.ended() is not None)
    running.start()
    for process, name in ((bank, "bank"), (shop, "shop")):
        assert process.wait(60) == 0, (tmp_path / f"{name}.log").read_text()
    assert "bank has lost its rows or its secret" in (tmp_path / "data.log").read_text()
    model = shoal.load_model(running.folder / "split" / "known" / "model.safetensors")
    # The order of the rows is random, and a batch has all of them: the sums differ in their last bits only.
    assert norm(sub(model, simulated_known())) < 1e-4 * norm(model)


def test_a_vertical_job_waits_for_all_parties(tmp_path: Path) -> None:
    with inside(tmp_path / "data", split_jobs=[str(job_file(tmp_path, PEOPLE))]) as running:
        body = {"token": running.token(), "name": "bank", "info": {}}
        credential = running.request("POST", "/api/v1/enrol", json=body).json()["credential"]
        frame, headers = (
            encode(SplitFrame("people", SplitPoll("bank", 35, 5))),
            {"Authorization": f"Bearer {credential}"},
        )
        assert running.request("POST", "/api/v1/split/people", content=frame, headers=headers).status_code == 204
        found = running.get("/split/people")
    assert (found["state"], found["nodes"]) == ("waiting", [{"name": "bank", "turn_batches": None, "excluded": ""}])
    assert "cut" not in found["spec"]


def test_what_is_refused_over_http(tmp_path: Path) -> None:
    files = [str(job_file(tmp_path)), str(job_file(tmp_path, PEOPLE))]
    with inside(tmp_path / "data", split_jobs=files) as running:

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
        frame = encode(SplitFrame("people", SplitPoll("bank", 35, 5)))
        answer = running.request("POST", "/api/v1/split/people", content=frame, headers=enrol("bank"))
        assert answer.status_code == 204
        found, people = running.get("/split")["split_jobs"]
        own, others = (
            running.request("GET", "/api/v1/split/clinics", headers=one).json()["nodes"]
            for one in (credential, enrol("b"))
        )
    assert (found["state"], [one["name"] for one in found["nodes"]]) == ("waiting", ["a"])
    assert (people["state"], people["nodes"]) == ("waiting", [{"name": "bank", "turn_batches": None, "excluded": ""}])
    assert found["up_bytes"] > 0
    assert (own, others) == (found["nodes"], [])
