"""Joining a job without a server by one string: who gets in, who does not, and how the others come to know it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from shoal.core.errors import InvalidJob, InvalidPayload, NotAllowed, Refused, ShoalError, StorageFailed, Unreachable
from shoal.peering.http.peer_link import wall_s
from shoal.peering.roster.invitation import InvitationToken, JoinRequest, read_joining, read_token
from shoal.peering.roster.roster_admission import RosterAdmission
from shoal.peering.state.peer_state import read_documents
from shoal.runtime.http.client import Link
from shoal.sim.hosts.toy_models import ToyLearner
from shoal.trust.documents import Invitation, Roster, sign_document, verify_document
from shoal.trust.envelope import Signer, sha256
from shoal.trust.keys import SigningKey, load_or_create
from shoal_peer.join import join
from shoal_peer.peer_process import StandalonePeer
from shoal_peer.provision import InvitedNode, invite
from tests.peer.scenario import folders, node, until
from tests.support.ports import free_ports
from tests.support.waiting import PATIENCE_S

HOUR = 3600
MARKER = "joined.json"


def token_of(peers: Path, port: int, *, uses: int = 5, lasts_s: int = HOUR) -> InvitationToken:
    """An invitation by the operator of these folders, to the peer at a port."""
    admission = RosterAdmission.open(peers)
    sealed = admission.invitation(uses, wall_s() + lasts_s, 50)
    return InvitationToken("toys", (f"http://127.0.0.1:{port}",), admission.charter.digest, sealed)


@asynccontextmanager
async def host(root: Path, *, rounds: int = 4, min_peers: int = 1) -> AsyncIterator[tuple[StandalonePeer, Path, int]]:
    """A peer a that admits newcomers: itself, the operator's folder, and its port."""
    ports = free_ports(1)
    peers = folders(root, "a", ports=ports, rounds=rounds, min_peers=min_peers)
    async with node(peers / "a", 1, port=ports[0], admission=RosterAdmission.open(peers)) as a:
        yield a, peers, ports[0]


async def joined(token: InvitationToken, folder: Path, port: int, name: str = "b") -> Path:
    """The folder of a newcomer that has joined."""
    urls = (f"http://127.0.0.1:{port}",) if port else ()
    await asyncio.to_thread(partial(join, token, folder, name, urls, MARKER))
    return folder


def test_three_come_together_with_one_string(tmp_path: Path) -> None:
    """The first knows no peer; the second learns of the third by the signed roster alone."""

    async def scene() -> None:
        ports = free_ports(2)
        async with host(tmp_path, rounds=3, min_peers=3) as (a, peers, port):
            text = token_of(peers, port).text()
            folder = await joined(read_token(text), tmp_path / "b", ports[0])
            async with node(folder, 2, port=ports[0]) as b:
                await until(lambda: "b" in a.group.membership.live() and "a" in b.group.membership.live())
                other = await joined(read_token(f" {text[:40]}\n{text[40:]} "), tmp_path / "c", ports[1], "b")
                assert read_documents(other).me.node == "b-2"
                async with node(other, 3, port=ports[1]) as c:
                    await until(
                        lambda: (
                            b.group.documents.roster.version == 3
                            and "b-2" in b.group.membership.live()
                            and "b" in c.group.membership.live()
                        )
                    )
                    await until(lambda: all(one.gossip.me.local_rounds == 3 for one in (a, b, c)))
                    await until(
                        lambda: all(
                            one.gossip.me.counts.version_vector.keys() == {"a", "b", "b-2"} for one in (a, b, c)
                        )
                    )
            assert read_documents(tmp_path / "b").roster.version == 3  # its next process begins with it
            assert read_documents(peers / "a").roster_names == {"a", "b", "b-2"}

    asyncio.run(scene())


def test_a_newcomers_weight_is_bounded_and_its_key_is_its_own(tmp_path: Path) -> None:
    async def scene() -> None:
        async with host(tmp_path) as (a, peers, port):
            folder = await joined(token_of(peers, port), tmp_path / "b", 0)
            me = read_documents(folder).me
            assert (me.examples, me.is_reachable, me.public_key) == (
                50,
                False,
                load_or_create(folder / "key.pem").public_key,
            )
            assert (folder / "key.pem").stat().st_mode & 0o077 == 0
            assert a.group.documents.roster_names == {"a", "b"}
            assert (folder / MARKER).is_file()

    asyncio.run(scene())


@pytest.mark.parametrize("kind", ["expired", "used up", "of another operator", "of another job"])
def test_whom_no_valid_invitation_brings_changes_nothing(tmp_path: Path, kind: str) -> None:
    async def scene() -> None:
        async with host(tmp_path) as (a, peers, port):
            token = token_of(peers, port, uses=1)
            if kind == "expired":
                token = token_of(peers, port, lasts_s=-1)
            elif kind == "used up":
                await joined(token, tmp_path / "first", 0)
            elif kind == "of another operator":
                (tmp_path / "other").mkdir()
                token = replace(token, invitation=token_of(folders(tmp_path / "other", "a"), port).invitation)
            else:
                token = replace(token, charter="ab" * 32)
            before = a.group.documents.roster
            with pytest.raises(NotAllowed) as caught:
                await joined(token, tmp_path / "b", 0)
            assert caught.value.hint
            assert a.group.documents.roster == before
            assert not (tmp_path / "b" / "roster.json").exists()

    asyncio.run(scene())


def test_the_same_newcomer_uses_an_invitation_once(tmp_path: Path) -> None:
    """It may have crashed, or moved: its key is known, whatever has become of the invitation."""

    async def scene() -> None:
        async with host(tmp_path) as (a, peers, port):
            token = token_of(peers, port, uses=1)
            folder = await joined(token, tmp_path / "b", 9)
            (folder / "roster.json").unlink()
            await joined(token, folder, 9)
            assert a.group.documents.roster.version == 2
            late = replace(token, invitation=token_of(peers, port, lasts_s=-1).invitation)
            await joined(late, folder, 10)
            assert read_documents(folder).me.urls == ("http://127.0.0.1:10",)
            assert a.group.router.links["b"].url == "http://127.0.0.1:10"

    asyncio.run(scene())


def test_a_use_that_was_written_down_before_a_crash_is_not_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = folders(tmp_path, "a")
    admission = RosterAdmission.open(peers)
    key = SigningKey.make()
    joining = JoinRequest(admission.invitation(1, 100), "b", key.public_key, ())
    with monkeypatch.context() as broken:
        broken.setattr(
            "shoal.peering.roster.roster_admission.sign_document",
            lambda *_: (_ for _ in ()).throw(StorageFailed("crash")),
        )
        with pytest.raises(StorageFailed, match="crash"):
            admission.admit(joining, 50)
    roster = verify_document(admission.admit(joining, 50), Roster, admission.charter)
    assert [peer.node for peer in roster.peers] == ["a", "b"]
    with pytest.raises(NotAllowed, match="all 1 uses"):
        admission.admit(replace(joining, public_key=SigningKey.make().public_key), 50)


def test_who_was_revoked_is_not_invited_again(tmp_path: Path) -> None:
    peers = folders(tmp_path, "ab")
    admission = RosterAdmission.open(peers)
    roster, _ = admission.roster()
    gone = roster.peers[1]
    without = replace(roster, version=9, peers=roster.peers[:1], revoked_peer_ids=(gone.peer_id,))
    (peers / "roster.json").write_bytes(sign_document(without, admission.key, admission.charter))
    with pytest.raises(NotAllowed, match="revoked"):
        admission.admit(JoinRequest(admission.invitation(5, 100), "b", gone.public_key, ()), 50)


async def send(port: int, key: SigningKey, charter: object, text: bytes, **changed: str) -> tuple[int, str]:
    """Return the result of a request to join, signed with that key: status, and a refusal's code."""
    url = f"http://127.0.0.1:{port}"

    def call() -> tuple[int, str]:
        with Link(url) as link:
            to = changed.get("to") or link.json("GET", "/p2p")["peer_id"]
            request = Signer(key, charter, 1).request(to, "POST", "/p2p/toys/join", "", sha256(text))  # type: ignore[arg-type]
            content = changed.get("content", text.decode()).encode()
            try:
                with link.exchange("POST", "/p2p/toys/join", headers=request.headers(), content=content) as answer:
                    return answer.status, ""
            except ShoalError as error:
                return 400, error.code

    return await asyncio.to_thread(call)


def test_a_request_to_join_must_prove_its_key(tmp_path: Path) -> None:
    async def scene() -> None:
        async with host(tmp_path) as (a, peers, port):
            token, charter = token_of(peers, port), a.group.documents.charter
            key, other = SigningKey.make(), SigningKey.make()
            text = JoinRequest(token.invitation, "b", key.public_key, ()).text()
            moved = JoinRequest(token.invitation, "b", key.public_key, ("http://127.0.0.1:6",)).text()
            assert await send(port, other, charter, text) == (400, "trust.stranger")
            assert await send(port, key, charter, text, content=moved.decode()) == (400, "trust.digest")
            assert await send(port, key, charter, text, to=other.peer_id) == (400, "trust.addressee")
            assert await send(port, key, replace(charter, config_sha="1" * 64), text) == (400, "trust.signature")
            assert await send(port, key, charter, b"{}") == (400, "peer.join")
            assert await send(port, key, charter, b"x" * 20_000) == (400, "body.too-large")
            assert a.group.documents.roster_names == {"a"}
            assert await send(port, key, charter, text) == (200, "")
            assert await send(port, key, charter, text) == (400, "trust.replayed")
            assert a.group.documents.roster.version == 2

    asyncio.run(scene())


def test_a_roster_is_asked_for_by_the_number_of_its_version(tmp_path: Path) -> None:
    def call(port: int, newer: str) -> str:
        with Link(f"http://127.0.0.1:{port}") as link, pytest.raises(ShoalError) as caught:
            link.json("GET", "/p2p/toys/roster", params={"newer": newer})
        return caught.value.code

    async def scene() -> None:
        async with host(tmp_path) as (_, _, port):
            for newer in ("", "-1", "one", "9" * 19):
                assert await asyncio.to_thread(call, port, newer) == "request.malformed"
            assert await asyncio.to_thread(call, port, "0") != "request.malformed"

    asyncio.run(scene())


def test_only_the_peer_with_the_operators_key_admits(tmp_path: Path) -> None:
    async def scene() -> None:
        ports = free_ports(1)
        peers = folders(tmp_path, "ab", ports=[*ports, 9], min_peers=2)
        async with node(peers / "a", port=ports[0]):
            with pytest.raises(Refused, match="cannot admit newcomers"):
                await joined(token_of(peers, ports[0]), tmp_path / "c", 0, "c")
            with Link(f"http://127.0.0.1:{ports[0]}") as link, pytest.raises(Refused) as caught:
                await asyncio.to_thread(partial(link.json, "GET", "/p2p/toys/roster"))
            assert caught.value.code == "trust.head"

    asyncio.run(scene())


def test_what_an_operator_signs_elsewhere_spreads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.peering.http.roster_updates.EVERY_S", 0.1)
    monkeypatch.setattr("shoal.peering.http.roster_updates.PAUSE_S", 0.1)

    async def scene() -> None:
        ports = free_ports(1)
        async with host(tmp_path, min_peers=9) as (a, peers, port):
            folder = await joined(token_of(peers, port), tmp_path / "b", ports[0])
            async with node(folder, 2, port=ports[0]) as b:
                await until(lambda: "a" in b.group.membership.live())
                again = [InvitedNode("d", "http://127.0.0.1:9")]
                await asyncio.to_thread(partial(invite, tmp_path / "job.toml", ToyLearner(1).init(3), again, peers))
                await until(lambda: b.group.documents.roster_names == {"a", "b", "d"} and "d" in b.group.router.links)
                gone = replace(b.group.documents.roster, version=9, peers=a.group.documents.roster.peers[:1])
                sealed = sign_document(gone, load_or_create(peers / "operator.pem"), a.group.documents.charter)
                assert not await b.group.roster_sync.apply(sealed)
                await asyncio.wait_for(b.progress.done.wait(), PATIENCE_S)  # it is out, and leaves

    asyncio.run(scene())


def test_a_forged_or_older_roster_is_not_taken(tmp_path: Path) -> None:
    async def scene() -> None:
        async with host(tmp_path) as (a, peers, port):
            old = a.group.documents.sealed_roster
            await joined(token_of(peers, port), tmp_path / "b", 0)
            assert not await a.group.roster_sync.apply(old)
            newer = sign_document(
                replace(a.group.documents.roster, version=99),
                load_or_create(peers / "operator.pem"),
                a.group.documents.charter,
            )
            forged = newer.replace(b'"version":99', b'"version":98')
            with pytest.raises(NotAllowed, match="no key that"):
                await a.group.roster_sync.apply(forged)
            assert a.group.documents.roster.version == 2

    asyncio.run(scene())


def test_nobody_at_the_address_is_said(tmp_path: Path) -> None:
    peers = folders(tmp_path, "a")
    with pytest.raises(Unreachable, match="no peer of the invitation answers") as caught:
        join(token_of(peers, free_ports(1)[0]), tmp_path / "b", "b", (), MARKER)
    assert "new invitation" in caught.value.hint
    with pytest.raises(InvalidJob, match="another job"):
        join(replace(token_of(peers, 9), charter="ab" * 32), peers / "a", "b", (), MARKER)


@pytest.mark.parametrize(
    "text", ["", "shoal-join-", "shoal-join-x", "shoal-join-eJw", "no", "shoal-join-" + "A" * 5000, "shoal-join-é"]
)
def test_what_is_no_invitation_is_said(text: str) -> None:
    with pytest.raises(ShoalError, match="not an invitation"):
        read_token(text)


def test_an_invitation_holds_no_key_and_survives_its_way(tmp_path: Path) -> None:
    peers = folders(tmp_path, "a")
    token = token_of(peers, 9)
    assert read_token(token.text()) == token
    assert len(token.text()) < 500
    values = verify_document(token.invitation, Invitation, RosterAdmission.open(peers).charter)
    assert set(vars(values)) == {"job", "serial", "uses", "examples_max", "not_after"}


@pytest.mark.parametrize(
    "changed",
    [
        {"node": "A"},
        {"public_key": "x"},
        {"urls": ["ftp://x"]},
        {"urls": ["http://x"] * 5},
        {"urls": "http://x"},
        {"more": 1},
    ],
)
def test_a_malformed_request_is_refused(changed: dict[str, object]) -> None:
    values = json.loads(JoinRequest(b"i", "b", SigningKey.make().public_key, ("http://h:1",)).text())
    assert read_joining(json.dumps(values).encode()).node == "b"
    with pytest.raises(InvalidPayload):
        read_joining(json.dumps({**values, **changed}).encode())
