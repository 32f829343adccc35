"""A node that has lost its own way to the coordinator goes on through another, who can neither forge nor change it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from shoal.core.errors import NotAllowed, Refused, ShoalError
from shoal.core.protocol.message import (
    Ack,
    BlobRef,
    CoordinatorAlive,
    CoordinatorPing,
    Join,
    Leave,
    Message,
    NoTask,
    Pause,
    Poll,
    Report,
    Task,
    TaskFailed,
    TaskStatus,
)
from shoal.core.protocol.peer_message import RelayRequest, RelayResponse
from shoal.runtime.http.node_client import NodeClient
from shoal.runtime.http.relay import RelayedAnswer, RelayedRequest, opened, seal, seal_body, send
from shoal.trust.envelope import Signer, sha256
from shoal.wire import codec, peer_codec
from shoal.wire.peer_codec import MessageBatch
from tests.support.coordinator import Inside, Server, inside
from tests.support.node import advance, body, displacement, initial, weight
from tests.support.peers import GOSSIP, KEYS, OPEN, documents, join_as_peers, poll
from tests.support.scenario import SIZE, Stage, problem, set_up
from tests.support.waiting import until


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Inside]:
    with inside(tmp_path / "data", **OPEN) as running:
        yield running


class Lost:
    """n1, which reaches the coordinator through n0 alone."""

    def __init__(self, stage: Stage) -> None:
        join_as_peers(stage, "n0", "n1")
        self.stage, (self.charter, self.roster) = stage, documents(stage)
        self.signer = Signer(KEYS["n1"], self.charter, process_number=3)
        self.term = 1

    def seal(self, message: Message, payload: bytes = b"", **changes: Any) -> RelayedRequest:
        made = seal(self.signer, "n1", changes.pop("term", self.term), message, payload)
        return replace(made, **changes)

    def carry(self, carried: RelayedRequest, by: str = "n0", **changed: str) -> httpx.Response:
        """Return the relay's answer."""
        request = carried.request
        headers = {**request.headers(), "Content-Type": peer_codec.MEDIA_TYPE, **changed}
        path = f"{request.path.removeprefix('/api/v1')}?{request.query}"
        return self.stage.send(by, request.method, path, content=carried.content, headers=headers)

    def say(self, message: Message, payload: bytes = b"") -> codec.Frame | None:
        """Say it through n0, and read the answer as n1 does."""
        carried = self.seal(message, payload)
        found = self.carry(carried)
        return opened(carried, RelayedAnswer(found.status_code, dict(found.headers), found.content), self.signer)

    def asked(self) -> tuple[Task, bytes]:
        """The task that stands for n1."""
        frame = self.say(Poll("n1"))
        assert frame is not None
        assert isinstance(frame.message, Task)
        return frame.message, frame.payload

    def report(self, task: Task, size: int = SIZE) -> tuple[Report, bytes]:
        data = body(displacement("n1", task.version, size))
        ref = BlobRef(hashlib.sha256(data).hexdigest(), len(data))
        return Report("n1", task.id, task.version, weight("n1"), ref), data


@pytest.fixture
def lost(coordinator: Inside) -> Iterator[Lost]:
    stage = set_up(coordinator, gossip=GOSSIP)
    yield Lost(stage)
    stage.close()


def test_a_relayed_node_takes_part_in_a_round(lost: Lost) -> None:
    task, payload = lost.asked()
    assert (task.node, task.kind, payload) == ("n1", "train", body(initial(SIZE)))
    assert lost.say(TaskStatus("n1", task.id, 1, {"drift": 0.5})) is None
    assert lost.stage.report(node="n0", weight=weight("n0")).status_code == 200
    said, data = lost.report(task)
    for _ in range(2):  # the first answer may be lost
        frame = lost.say(said, data)
        assert frame is not None
        assert frame.message == Ack(task.id, True)
    running = lost.stage.running
    until("version 1", lambda: running.get("/jobs/main/versions", after=0)["versions"])
    found = load(running.request("GET", "/api/v1/jobs/main/models/1").content)["w"]
    assert np.array_equal(found, advance(initial(SIZE), 0, ("n0", "n1")))
    assert running.runner("main").hub.progress.mode == "server", "nobody was switched"
    kinds = {(row["node"], row["kind"]) for row in running.get("/jobs/main/traffic", by=["node", "kind"])["rows"]}
    assert ("n1", "relay") in kinds, "whose word it is"
    assert ("n0", "relay") not in kinds


def test_everything_that_a_node_says_is_answered(lost: Lost) -> None:
    task, _ = lost.asked()
    frame = lost.say(CoordinatorPing("n1", 4))
    assert frame is not None
    assert frame.message == CoordinatorAlive(5)
    lost.term = 5
    frame = lost.say(Join("n1"))
    assert frame is not None
    assert isinstance(frame.message, Task)
    frame = lost.say(TaskFailed("n1", task.id, "no luck"))
    assert frame is not None
    assert isinstance(frame.message, Ack)
    assert frame.message.task == task.id
    assert lost.say(Leave("n1")) is None
    assert not lost.stage.running.runner("main").hub.roster["n1"].is_present
    stands = lost.say(Poll("n1"))
    assert stands is not None
    assert isinstance(stands.message, NoTask | Task)
    assert lost.stage.running.runner("main").hub.roster["n1"].is_present


def test_a_relayed_request_counts_as_a_sign_of_life(lost: Lost) -> None:
    leases = lost.stage.running.coordinator.nodes.presence.leases
    task, _ = lost.asked()
    said, data = lost.report(task)
    status, failure = TaskStatus("n1", task.id, 1), TaskFailed("n1", task.id, "no luck")
    for message, payload in ((Poll("n1"), b""), (Join("n1"), b""), (status, b""), (said, data), (failure, b"")):
        leases.forget("n1")
        lost.say(message, payload)
        assert "n1" in leases._heard, message


@pytest.mark.parametrize("size", [66_000])
def test_large_models_are_relayed(coordinator: Inside, size: int) -> None:
    stage = set_up(coordinator, size=size, gossip=GOSSIP)
    lost = Lost(stage)
    task, payload = lost.asked()
    assert payload == b""
    assert task.blob is not None
    got = lost.carry(seal_body(lost.signer, "GET", task.blob.digest))
    assert (got.status_code, sha256(got.content)) == (200, task.blob.digest)
    said, data = lost.report(task, size)
    assert said.blob is not None
    sent = replace(seal_body(lost.signer, "PUT", said.blob.digest), content=data)
    problem(lost.carry(sent, **{"Shoal-Digest": sha256(b"another")}), 409, "trust.signature")
    assert lost.carry(sent).status_code == 201
    problem(lost.carry(sent), 409, "trust.replayed")
    frame = lost.say(said)
    assert frame is not None
    assert frame.message == Ack(task.id, True)
    stage.close()


# Forged requests


def test_a_relay_cannot_fetch_the_blob_of_the_node_that_it_relays(lost: Lost) -> None:
    """An unsigned request for a body is the carrier's own."""
    task, _ = lost.asked()
    assert task.blob is not None
    lost.stage.dismiss("n0")
    problem(lost.stage.send("n0", "GET", f"/jobs/main/blobs/{task.blob.digest}"), 409, "task.none")
    assert lost.carry(seal_body(lost.signer, "GET", task.blob.digest)).status_code == 200


Try = Callable[[Lost, RelayedRequest], httpx.Response]
TRIES: dict[str, tuple[Try, str]] = {
    "another version": (
        lambda lost, c: lost.carry(replace(c, content=c.content.replace(b'"version":0', b'"version":7'))),
        "trust.digest",
    ),
    "no batch": (lambda lost, c: lost.carry(replace(c, content=b"<html>")), "head.length"),
    "another head": (
        lambda lost, c: lost.carry(replace(c, content=lost.seal(Leave("n1")).content)),
        "trust.digest",
    ),
    "another digest": (lambda lost, c: lost.carry(c, **{"Shoal-Digest": "ab" * 32}), "trust.signature"),
    "another number": (lambda lost, c: lost.carry(c, **{"Shoal-Seq": "77"}), "trust.signature"),
    "another sender": (lambda lost, c: lost.carry(c, **{"Shoal-From": KEYS["n0"].peer_id}), "trust.signature"),
    "a stranger": (lambda lost, c: lost.carry(c, **{"Shoal-From": KEYS["other"].peer_id}), "trust.stranger"),
    "for another": (lambda lost, c: lost.carry(c, **{"Shoal-To": KEYS["n0"].peer_id}), "trust.addressee"),
    "of another job": (lambda lost, c: lost.carry(c, **{"Shoal-Job": "other"}), "trust.job"),
    "no signature": (lambda lost, c: lost.carry(c, **{"Shoal-Signature": "x"}), "trust.head"),
    "another term": (
        lambda lost, c: lost.carry(replace(c, request=replace(c.request, query="term=2"))),
        "trust.signature",
    ),
    "no peer carries it": (lambda lost, c: lost.carry(c, by="n2"), "relay.stranger"),
}


@pytest.mark.parametrize("what", TRIES)
def test_a_relay_cannot_change_a_request(lost: Lost, what: str) -> None:
    task, _ = lost.asked()
    carried = lost.seal(*lost.report(task))
    before = lost.stage.picture()
    attempt, code = TRIES[what]
    found = attempt(lost, carried)
    problem(found, 422 if code.startswith("head") else 409, code)
    assert found.status_code not in (401, 403), "the carrier's credential is good"
    assert lost.stage.picture() == before
    assert lost.carry(carried).status_code == 200, "and its number was not used up"


def test_a_relayed_request_is_accepted_once(lost: Lost) -> None:
    carried = lost.seal(Poll("n1"))
    assert lost.carry(carried).status_code == 200
    problem(lost.carry(carried), 409, "trust.replayed")
    lost.signer = Signer(KEYS["n1"], lost.charter, process_number=2)
    problem(lost.carry(lost.seal(Poll("n1"))), 409, "trust.process-old")


def test_what_is_meant_for_another_life_of_the_same_term_is_refused(lost: Lost) -> None:
    """Else a copy of the coordinator could take what nodes say to the first one."""
    incarnation = lost.stage.running.runner("main").gate.incarnation
    before = lost.stage.picture()
    for said, status in ((incarnation, 200), (0, 200), (incarnation + 1, 409)):
        carried = seal(lost.signer, "n1", lost.term, Poll("n1"), query=f"incarnation={said}")
        found = lost.carry(carried)
        assert found.status_code == status
        assert "shoal-signature" in found.headers, "it is the coordinator's own word"
    problem(found, 409, "trust.term-forked")
    assert lost.stage.picture() == before


def test_no_node_speaks_for_another(lost: Lost) -> None:
    before = lost.stage.picture()
    for message in (Leave("n0"), Poll("n0"), Join("n0", (9, 9))):
        with pytest.raises(Refused) as error:
            lost.say(message)
        assert error.value.code == "relay.sender"
    assert lost.stage.picture() == before


def test_what_only_others_say_is_refused(lost: Lost) -> None:
    before = lost.stage.picture()
    task = lost.stage.tasks["n1"]
    for message, code in ((task, "head.type"), (Pause(), "head.type"), (CoordinatorAlive(4), "head.type")):
        with pytest.raises(ShoalError) as error:
            lost.say(message)
        assert error.value.code == code
    with pytest.raises(ShoalError) as error:
        lost.say(Poll("n1"), b"xyz")
    assert error.value.code == "payload.unwanted"
    for batch in (
        MessageBatch("main", (RelayResponse("n1", Poll("n1")),)),
        MessageBatch("main", (RelayRequest("n1", Poll("n1")),) * 2),
    ):
        head = peer_codec.encode(batch)
        request = lost.signer.request(
            lost.seal(Poll("n1")).request.to, "POST", "/api/v1/jobs/main/relay", "term=1", sha256(head)
        )
        problem(lost.carry(RelayedRequest(request, head)), 422, "head.type")
    assert lost.stage.picture() == before


def test_a_report_that_must_not_count_is_refused_in_the_coordinators_own_name(lost: Lost) -> None:
    task, _ = lost.asked()
    said, _ = lost.report(task)
    wrong = body(np.full(SIZE, np.nan, np.float32))
    ref = BlobRef(hashlib.sha256(wrong).hexdigest(), len(wrong))
    with pytest.raises(Refused) as error:
        lost.say(replace(said, blob=ref), wrong)
    assert error.value.code == "payload.not-finite"
    assert "nan" in error.value.message.lower() or "finite" in error.value.message


def test_an_answer_cannot_be_forged(lost: Lost) -> None:
    carried, other = lost.seal(Poll("n1")), lost.seal(Poll("n1"))
    found = lost.carry(carried)
    true = RelayedAnswer(found.status_code, dict(found.headers), found.content)
    assert opened(carried, true, lost.signer) is not None
    stop = codec.encode(codec.Frame("main", NoTask((9, 9))))
    with pytest.raises(Refused, match="SHA-256"):
        opened(carried, replace(true, content=stop), lost.signer)
    with pytest.raises(NotAllowed):
        opened(other, true, lost.signer)
    with pytest.raises(NotAllowed):
        opened(carried, replace(true, status=409), lost.signer)
    own = Signer(KEYS["n0"], lost.charter, process_number=1).answer(carried.request, 200, sha256(stop))
    with pytest.raises(NotAllowed):
        opened(carried, RelayedAnswer(200, own.headers(), stop), lost.signer)


def test_a_revoked_node_is_not_heard_through_others(lost: Lost) -> None:
    carried = lost.seal(Poll("n1"))
    assert lost.stage.running.request("DELETE", "/api/v1/nodes/n1").status_code == 204
    documents(lost.stage)
    problem(lost.carry(carried), 409, "trust.revoked")


def test_what_was_said_to_an_earlier_life_is_past(server: Callable[..., Server]) -> None:
    """The numbers of requests are forgotten with a process; the term makes up for it."""
    running = server(**OPEN).start()
    stage = set_up(cast("Inside", running), gossip=GOSSIP)
    lost = Lost(stage)
    carried = lost.seal(Join("n1", (1, 4)))
    running.kill()
    running.start()
    documents(stage)
    found = lost.carry(carried)
    frame = opened(carried, RelayedAnswer(found.status_code, dict(found.headers), found.content), lost.signer)
    assert frame is not None
    assert frame.message == CoordinatorAlive(2)
    assert running.job("main")["mode"] == "server"
    lost.term = 2
    assert lost.asked()[0].node == "n1"
    stage.close()


def test_jobs_that_allow_no_gossip_relay_nothing(coordinator: Inside) -> None:
    stage = set_up(coordinator, gossip=GOSSIP)
    lost = Lost(stage)
    coordinator.begin("plain", nodes=1)
    carried = lost.seal(Poll("n1"))
    path = replace(carried.request, path="/api/v1/jobs/plain/relay")
    problem(lost.carry(replace(carried, request=path)), 409, "gossip.not-allowed")
    long = replace(carried, content=carried.content + bytes(400_000))
    problem(lost.carry(long), 413, "body.too-large")
    stage.close()


def test_over_the_clients_link(lost: Lost) -> None:
    credential = lost.stage.nodes[0].client.headers["Authorization"].split()[1]
    with NodeClient(lost.stage.running.url, credential=credential) as client:
        carried = lost.seal(Poll("n1"))
        frame = opened(carried, send(client.link, carried), lost.signer)
        assert frame is not None
        assert isinstance(frame.message, Task)
        again = send(client.link, carried)
        assert (again.status, b"trust.replayed" in again.content) == (409, True)


# A poll that is held open


def asks(lost: Lost, wait_s: float, held: str = "") -> codec.Frame | None:
    query = f"wait_s={wait_s:g}" + (f"&held={held}" if held else "")
    carried = seal(lost.signer, "n1", lost.term, Poll("n1"), query=query)
    found = lost.carry(carried)
    return opened(carried, RelayedAnswer(found.status_code, dict(found.headers), found.content), lost.signer)


def test_a_poll_waits_for_what_the_node_does_not_hold(lost: Lost) -> None:
    task, _ = lost.asked()
    held = f"{task.id[0]}.{task.id[1]}.{task.revision}"
    frame = asks(lost, 0.2, held)
    assert frame is not None
    assert (frame.message, frame.payload) == (CoordinatorAlive(1), b""), "nothing is new, and nothing is sent twice"
    frame = asks(lost, 60.0, "1.0.0")
    assert frame is not None
    assert frame.message == task, "at once"


def test_a_waiting_poll_is_answered_as_soon_as_something_stands(lost: Lost) -> None:
    task, _ = lost.asked()
    said, data = lost.report(task)
    lost.say(said, data)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(asks, lost, 60.0, f"{task.id[0]}.{task.id[1]}.{2**31}")
        presence = lost.stage.running.coordinator.nodes.presence
        until("the poll to be open", lambda: presence._open_polls["n1"])
        assert lost.stage.report(node="n0", weight=weight("n0")).status_code == 200
        frame = waiting.result(30)
    assert frame is not None
    assert isinstance(frame.message, Task)
    assert frame.message.version == task.version + 1


def test_the_relay_is_shown_until_the_node_returns_directly(lost: Lost) -> None:
    def relays() -> dict[str, str | None]:
        rows = lost.stage.running.get("/jobs/main/peers")["peers"]
        return {row["name"]: row["relayed_by"] for row in rows}

    assert relays() == {"n0": None, "n1": None}
    lost.asked()
    assert relays() == {"n0": None, "n1": "n0"}
    poll(lost.stage, "n1")
    assert relays() == {"n0": None, "n1": None}


@pytest.mark.parametrize("held", ["x", "1", "1.2.3.4", "1.-2"])
def test_what_a_node_holds_is_an_order(lost: Lost, held: str) -> None:
    with pytest.raises(Refused) as error:
        asks(lost, 1.0, held)
    assert error.value.code == "request.invalid"
