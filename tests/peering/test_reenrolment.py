"""A node whose coordinator does not know its credential any more."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import NotAllowed, ShoalError, Unreachable
from shoal.runtime.durable_files import STEPS, CrashPoint, no_crash
from shoal.runtime.http.coordinator_url import parse
from shoal.runtime.http.node_client import NodeClient
from shoal.trust.documents import Charter, sign_document
from shoal.trust.envelope import SignedAnswer, read_request, sha256
from shoal.trust.keys import SigningKey
from shoal_edge_client.identity import Identity, StateFolder
from shoal_edge_client.peering.recovery import reenrolment_client
from shoal_edge_client.peering.recovery.reenrolment_client import ReenrolmentClient
from tests.support.http_servers import Asked, Said, answering

KEY, IMPOSTOR, MINE = SigningKey.make(), SigningKey.make(), SigningKey.make()
CHARTER = Charter("j", "0" * 64, "1" * 64, KEY.public_key, KEY.public_key)
OURS = {"Shoal-Protocol": "1", "Content-Type": "application/json"}
TERM = 1002
REFUSED = NotAllowed("the credential is unknown")


class Coordinator:
    """A coordinator that knows no credential, or those that it has re-enrolled."""

    def __init__(self) -> None:
        self.key, self.knows_the_job, self.refuses, self.name = KEY, True, "", "a"
        self.asked: list[Asked] = []
        self.known: set[str] = set()

    def answer(self, asked: Asked) -> Said:
        self.asked.append(asked)
        path, _, query = asked.target.partition("?")
        if path == "/api/v1/jobs/j/re-enrol":
            return self._re_enrol(asked, path, query)
        credential = asked.headers.get("Authorization", "").removeprefix("Bearer ")
        if hashlib.sha256(credential.encode()).hexdigest() not in self.known:
            return _problem(401, "auth.refused")
        return Said(
            200,
            json.dumps({"name": "a", "protocol": 1, "lease_s": 1, "heartbeat_s": 1, "wait_s_max": 1}).encode(),
            OURS,
        )

    def _re_enrol(self, asked: Asked, path: str, query: str) -> Said:
        if not self.knows_the_job:
            return _problem(404, "job.unknown")
        request = read_request("POST", path, query, list(asked.headers.items()))
        if self.refuses:
            said = _problem(409, self.refuses)
        elif query != f"term={TERM}":
            said = Said(200, json.dumps({"name": "", "term": TERM}).encode(), OURS)
        else:
            self.known.add(json.loads(asked.body)["secret_sha256"])
            said = Said(200, json.dumps({"name": self.name, "term": TERM}).encode(), OURS)
        bare = SignedAnswer(said.status, self.key.peer_id, sha256(said.body))
        signed = replace(bare, signature=self.key.sign(bare.lines(request, CHARTER)))
        return Said(said.status, said.body, {**said.headers, **signed.headers()})

    def times(self) -> int:
        return sum("re-enrol" in one.path for one in self.asked)


def _problem(status: int, code: str) -> Said:
    return Said(status, json.dumps({"detail": "no", "code": code, "hint": "do"}).encode(), OURS)


class Dead(BaseException):
    """The process has been killed."""


class Node:
    """A node that was known as `a`."""

    def __init__(
        self, url: str, folder: Path, documents: dict[str, Any] | None = None, at: CrashPoint = no_crash
    ) -> None:
        self.state = StateFolder(folder, parse(url), at)
        self.client = NodeClient(url, credential="shn_old")
        texts = {"charter": sign_document(CHARTER, KEY, CHARTER).decode(), "roster": ""}
        kept = {"j": texts} if documents is None else documents
        more = ((self.client,), lambda: NodeClient(url), lambda client: client.hello({}))
        self.reenrolment = ReenrolmentClient(self.state, MINE, iter(range(1, 99)).__next__, lambda: kept, *more)
        self.client.link.on_unknown_credential = self.reenrolment.on_unknown_credential

    def ask(self) -> ShoalError | None:
        """Send any request; return its result."""
        try:
            self.client.hello({})
        except ShoalError as error:
            return error
        return None


@contextmanager
def met(folder: Path, documents: dict[str, Any] | None = None) -> Iterator[tuple[Coordinator, Node]]:
    coordinator = Coordinator()
    with answering(coordinator.answer) as url:
        node = Node(url, folder, documents)
        with node.state, node.client:
            node.state.save_identity(Identity(node.state.url, "a", "shn_old"))
            yield coordinator, node


def test_it_is_taken_in_again(tmp_path: Path) -> None:
    with met(tmp_path) as (coordinator, node):
        found = node.ask()
        assert isinstance(found, Unreachable)
        assert (found.code, coordinator.times()) == ("auth.renewed", 2), "the first answer tells the term"
        assert node.ask() is None
        identity = node.state.identity()
        assert identity is not None
        assert (identity.name, identity.credential) == ("a", node.client.link.credential)
        assert identity.credential != "shn_old"
        assert not (node.state.folder / "pending_credential.json").exists()
        late = node.reenrolment.on_unknown_credential("shn_old", REFUSED)
        assert (late.code, coordinator.times()) == ("auth.renewed", 2), "another request was still under way"


def test_a_coordinator_that_does_not_know_the_job_yet_counts_as_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with met(tmp_path) as (coordinator, node):
        coordinator.knows_the_job = False
        found = [node.ask() for _ in range(3)]
        assert [(type(one), one.code) for one in found if one] == [(Unreachable, "auth.unknown")] * 3
        assert coordinator.times() == 1, "it is not asked at each request"
        monkeypatch.setattr(reenrolment_client, "PAUSE_S", 0.0)
        node.reenrolment._not_before = 0.0
        made = node.state.pending_credential()
        node.ask()
        assert coordinator.times() == 2
        coordinator.knows_the_job = True
        assert node.ask() is not None
        assert node.ask() is None
        assert node.client.link.credential == made, "the same until it was taken"


def test_where_a_token_is_at_hand_it_need_not_wait(tmp_path: Path) -> None:
    with met(tmp_path) as (coordinator, node):
        coordinator.knows_the_job, node.reenrolment.has_token = False, True
        found = node.ask()
        assert isinstance(found, NotAllowed)
        assert found.code == "auth.unknown"


@pytest.mark.parametrize("code", ["trust.revoked", "trust.stranger", "node.removed", "job.ended"])
def test_what_the_coordinator_itself_has_refused_is_final(tmp_path: Path, code: str) -> None:
    with met(tmp_path) as (coordinator, node):
        coordinator.refuses = code
        found = node.ask()
        assert isinstance(found, NotAllowed)
        assert found.code == code


@pytest.mark.parametrize("code", ["trust.replayed", "http.500"])
def test_any_other_refusal_is_not(tmp_path: Path, code: str) -> None:
    with met(tmp_path) as (coordinator, node):
        coordinator.refuses = code
        assert isinstance(node.ask(), Unreachable)


@pytest.mark.parametrize("refuses", ["", "trust.revoked"])
def test_an_impostor_is_neither_told_a_credential_nor_believed(tmp_path: Path, refuses: str) -> None:
    with met(tmp_path) as (coordinator, node):
        coordinator.key, coordinator.refuses = IMPOSTOR, refuses
        assert isinstance(node.ask(), Unreachable)
        assert node.state.identity() == Identity(node.state.url, "a", "shn_old")
        secret = node.state.pending_credential()
        assert not any(secret in str(one) for one in coordinator.asked)


def test_another_name_is_not_taken(tmp_path: Path) -> None:
    with met(tmp_path) as (coordinator, node):
        coordinator.name = "b"
        assert isinstance(node.ask(), Unreachable)
        assert node.client.link.credential == "shn_old"


@pytest.mark.parametrize("documents", [{}, {"j": {}}, {"j": {"charter": "{}"}}, {"j": {"charter": 5}}])
def test_without_trust_documents_a_node_does_not_re_enrol(tmp_path: Path, documents: dict[str, Any]) -> None:
    with met(tmp_path, documents) as (coordinator, node):
        found = node.ask()
        assert isinstance(found, NotAllowed)
        assert (found.code, coordinator.times()) == ("auth.refused", 0)


@pytest.mark.parametrize("point", [f"{what}.{step}" for what in ("rejoining", "credential") for step in STEPS])
def test_killed_at_any_point_it_comes_in_all_the_same(tmp_path: Path, point: str) -> None:
    def at(passed: str) -> None:
        if passed == point:
            raise Dead

    with met(tmp_path) as (coordinator, first):
        url = first.state.url
        dying = Node(url, tmp_path, at=at)
        with dying.client, pytest.raises(Dead):
            dying.ask()
        again = Node(url, tmp_path)
        known = again.state.identity()
        assert known is not None
        again.client.link.credential = known.credential
        with again.client:
            assert [found for _ in range(3) if (found := again.ask()) is None], "it is in"
        kept = again.state.identity()
        assert kept is not None
        assert hashlib.sha256(kept.credential.encode()).hexdigest() in coordinator.known
