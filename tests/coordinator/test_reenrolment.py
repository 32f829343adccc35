"""Nodes come back by their own keys to a coordinator that has lost its disk; no others do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from secrets import token_urlsafe
from typing import cast

import httpx
import pytest

from shoal.core.errors import NotAllowed, Refused, Unreachable
from shoal.runtime.http.node_client import NodeClient
from shoal.runtime.http.reenrolment import Reenrolled, opened, seal
from shoal.runtime.http.relay import RelayedAnswer, RelayedRequest, send
from shoal.trust.documents import Roster, verify_document
from shoal.trust.documents import sign_document as seal_paper
from shoal.trust.envelope import Signer
from shoal.trust.keys import SigningKey, load_or_create
from shoal_coordinator.peers.trust_documents import LEAP
from tests.support.coordinator import Api, Inside, Server, inside
from tests.support.lost_coordinator import Kept, go_on
from tests.support.peers import KEYS, OPEN, peer_info
from tests.support.scenario import by_hand, problem
from tests.support.waiting import until

TERM = 1 + LEAP + 1


class Back:
    """n0 (or who says so) comes back."""

    def __init__(self, kept: Kept, url: str, key: SigningKey = KEYS["n0"], process_number: int = 5) -> None:
        self.signer = Signer(key, kept.opened, process_number)
        self.url, self.credential = url, f"shn_{token_urlsafe(32)}"

    def ask(self, term: int = TERM, *, carried: RelayedRequest | None = None) -> Reenrolled:
        carried = carried or seal(self.signer, term, self.credential)
        with NodeClient(self.url) as client:
            return opened(carried, send(client.link, carried, "application/json"), self.signer)

    def hello(self, name: str = "n0", credential: str = "") -> httpx.Response:
        headers = {"Authorization": f"Bearer {credential or self.credential}"}
        return httpx.post(f"{self.url}/api/v1/hello", json={"peer": peer_info(name)}, headers=headers)


@pytest.fixture
def back(kept: Kept, empty: Inside) -> Back:
    assert go_on(empty, kept, node="n0").status_code == 201
    return Back(kept, empty.url)


def test_a_node_comes_back_by_its_key(back: Back, kept: Kept, empty: Inside) -> None:
    before = back.hello()
    assert before.status_code == 401
    assert back.ask(term=0) == Reenrolled("", TERM), "what was meant for another term is not done"
    assert back.hello().status_code == 401
    assert back.ask() == Reenrolled("n0", TERM)
    welcome = back.hello()
    assert (welcome.status_code, welcome.json()["name"]) == (200, "n0")
    assert back.ask() == Reenrolled("n0", TERM), "again is not a harm"
    assert back.hello().status_code == 200


def test_those_who_have_not_come_back_yet_stay_in_the_roster(back: Back, kept: Kept, empty: Inside) -> None:
    back.ask()
    headers = {"Authorization": f"Bearer {back.credential}"}
    found = until("the papers", lambda: empty.request("GET", "/api/v1/jobs/main/trust", headers=headers).json())
    roster = verify_document(found["roster"].encode(), Roster, kept.opened)
    assert [peer.node for peer in roster.peers] == ["n0", "n1"]
    assert roster.version > verify_document(kept.roster.encode(), Roster, kept.opened).version + LEAP
    assert {node["name"]: node["state"] for node in empty.get("/nodes")["nodes"]}["n1"] == "gone"


def test_the_job_says_that_it_was_rebuilt(back: Back, empty: Inside) -> None:
    job = empty.job("main")
    assert job["restored_from"] == {"node": "n0", "version": 1, "term": TERM}
    texts = [event["text"] for event in empty.events("main", "state")]
    assert any(text.startswith("restored from the checkpoint of n0 at version 1, term 1002; earlier") for text in texts)


def test_when_the_job_was_begun_and_terms_that_nodes_have_seen(kept: Kept, empty: Inside) -> None:
    begun = "2026-01-02T03:04:05.678Z"
    assert go_on(empty, kept, created_at=begun, term=4000).status_code == 201
    assert empty.job("main")["created_at"] == begun
    assert empty.runner("main").hub.tasks.term == 4000 + LEAP + 1


def test_a_term_that_cannot_be_is_refused(kept: Kept, empty: Inside) -> None:
    problem(go_on(empty, kept, term=2**40), 409, "restore.term")
    assert empty.get("/jobs")["jobs"] == []


def test_a_request_is_taken_once(back: Back, kept: Kept) -> None:
    carried = seal(back.signer, TERM, back.credential)
    assert back.ask(carried=carried).name == "n0"
    newer = Back(kept, back.url, process_number=6)
    newer.ask()
    with pytest.raises(Refused, match="process number 5") as refused:
        back.ask(carried=carried)
    assert refused.value.code == "trust.process-old"
    assert newer.hello().status_code == 200, "nobody sets a node's credential back"


def _forged(back: Back) -> RelayedRequest:
    """Another client claims to be n0."""
    carried = seal(Signer(KEYS["other"], back.signer.charter, 1), TERM, back.credential)
    return replace(carried, request=replace(carried.request, sender=KEYS["n0"].peer_id))


def _changed(back: Back) -> RelayedRequest:
    carried = seal(back.signer, TERM, back.credential)
    return replace(carried, content=carried.content[:-1] + b" }")


def _of_a_stranger(back: Back) -> RelayedRequest:
    return seal(Signer(KEYS["other"], back.signer.charter, 1), TERM, back.credential)


WRONG: dict[str, tuple[Callable[[Back], RelayedRequest], str]] = {
    "another's name": (_forged, "trust.signature"),
    "a stranger": (_of_a_stranger, "trust.stranger"),
    "another body": (_changed, "trust.digest"),
}


@pytest.mark.parametrize("what", WRONG)
def test_who_is_not_who_he_says_does_not_come_in(back: Back, what: str) -> None:
    make, code = WRONG[what]
    carried = make(back)
    with NodeClient(back.url) as client:
        said = send(client.link, carried, "application/json")
    problem(_as_response(said), 409, code)
    assert back.hello().status_code == 401


def _as_response(said: RelayedAnswer) -> httpx.Response:
    return httpx.Response(said.status, headers=dict(said.headers), content=said.content)


def test_the_answer_is_the_coordinators_own(back: Back) -> None:
    """A forged or changed answer is detected."""
    carried = seal(back.signer, TERM, back.credential)
    with NodeClient(back.url) as client:
        said = send(client.link, carried, "application/json")
    with pytest.raises(NotAllowed) as refused:
        opened(seal(back.signer, TERM, back.credential), said, back.signer)
    assert refused.value.code == "trust.signature", "an answer to another request"
    with pytest.raises(Refused):
        opened(carried, replace(said, content=said.content.replace(b"n0", b"n1")), back.signer)


def test_a_removed_node_stays_out(back: Back, empty: Inside) -> None:
    empty.request("DELETE", "/api/v1/nodes/n0")
    with pytest.raises(Refused) as refused:
        back.ask()
    assert refused.value.code in ("trust.revoked", "node.removed")
    assert back.hello().status_code == 401
    until("the roster to say so", lambda: _code(back) == "trust.revoked")


def _code(back: Back) -> str:
    try:
        back.ask()
    except Refused as error:
        return error.code
    return ""


def test_who_was_removed_before_the_disk_was_lost_stays_out(kept: Kept, empty: Inside, tmp_path: Path) -> None:
    """The key is revoked in the roster, so no token helps."""
    key = load_or_create(kept.key)
    roster = verify_document(kept.roster.encode(), Roster, kept.opened)
    peers = tuple(peer for peer in roster.peers if peer.node != "n0")
    newer = seal_paper(
        replace(roster, version=9, peers=peers, revoked_peer_ids=(KEYS["n0"].peer_id,)), key, kept.opened
    )
    assert go_on(empty, kept, roster=newer.decode()).status_code == 201
    back = Back(kept, empty.url)
    with pytest.raises(Refused) as refused:
        back.ask()
    assert refused.value.code == "trust.revoked"
    node = by_hand(empty, "n0")
    answer = node.ask("POST", "/hello", json={"peer": peer_info("n0")})
    problem(answer, 409, "peer.revoked")
    node.client.close()
    assert empty.rows("SELECT peer_id FROM revoked_keys") == [(KEYS["n0"].peer_id,)]


def test_a_token_lets_a_node_in_that_has_not_come_back(back: Back, empty: Inside) -> None:
    node = by_hand(empty, "n0")
    assert node.ask("POST", "/hello", json={"peer": peer_info("n0")}).status_code == 200
    node.client.close()


def test_a_job_that_is_not_here_takes_nobody_in(kept: Kept, empty: Inside) -> None:
    back = Back(kept, empty.url)
    carried = seal(back.signer, TERM, back.credential)
    with NodeClient(back.url) as client:
        problem(_as_response(send(client.link, carried, "application/json")), 404, "job.unknown")


def test_a_rebuilt_coordinator_tells_nobody_to_forget_a_job(back: Back, empty: Inside) -> None:
    """It may be given that one a moment later; one that knows all its jobs says that there is no such job."""
    back.ask()
    back.hello()
    headers = {"Authorization": f"Bearer {back.credential}"}
    params = {"wait_s": 0, "held": "another:1.1", "job": "another"}
    assert empty.request("GET", "/api/v1/work", params=params, headers=headers).status_code == 204


@pytest.fixture
def rebuilt(kept: Kept, server: Callable[..., Server], tmp_path: Path) -> Server:
    """A coordinator in a process of its own, with nothing but the key."""
    (tmp_path / "next").mkdir()
    shutil.copy2(kept.key, tmp_path / "next" / "coordinator.pem")
    return server("next", **OPEN)


def test_killed_when_the_job_was_written_down(kept: Kept, rebuilt: Server) -> None:
    rebuilt.start(crash="restore.committed")
    with pytest.raises(httpx.TransportError):
        go_on(cast("Inside", rebuilt), kept, node="n0")
    until("the death", lambda: rebuilt.ended() is not None)
    rebuilt.start()
    job = rebuilt.job("main")
    assert (job["version"], job["model"]["digest"], job["restored_from"]["node"]) == (1, kept.digest, "n0")
    assert _rebuilt_notes(rebuilt) == 1
    back = Back(kept, rebuilt.url)
    assert back.ask().name == "n0"
    assert back.hello().status_code == 200


def _rebuilt_notes(running: Api) -> int:
    return sum(event["text"].startswith("restored from") for event in running.events("main", "state"))


def test_killed_when_a_node_was_taken_in(kept: Kept, rebuilt: Server) -> None:
    """The answer was lost: the node asks again, with the credential that it has made."""
    rebuilt.start(crash="re-enrolment.committed")
    assert go_on(cast("Inside", rebuilt), kept, node="n0").status_code == 201
    back = Back(kept, rebuilt.url)
    with pytest.raises(Unreachable):
        back.ask()
    until("the death", lambda: rebuilt.ended() is not None)
    rebuilt.start()
    back.url = rebuilt.url
    assert back.hello().status_code == 200, "it was on the disk"
    assert back.ask(TERM + 1).name == "n0"
    assert back.hello().status_code == 200


def test_a_coordinator_that_was_rebuilt_twice_is_of_a_new_term(kept: Kept, tmp_path: Path) -> None:
    """No version came between: the manifest is the old one, and only the nodes know of the first time."""
    for name, term in (("one", 0), ("two", TERM)):
        (tmp_path / name).mkdir()
        shutil.copy2(kept.key, tmp_path / name / "coordinator.pem")
        with inside(tmp_path / name, **OPEN) as running:
            assert go_on(running, kept, term=term).status_code == 201
            reached = running.runner("main").hub.tasks.term
    assert reached > TERM + LEAP
