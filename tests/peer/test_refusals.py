"""Invalid requests are refused with a code, counted, and leave the model as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from shoal.core.errors import Refused
from shoal.core.model.tree import Tree
from shoal.core.protocol.peer_message import (
    ExchangeCommit,
    ExchangeGrant,
    ExchangeOffer,
    ExchangeQuery,
    ExchangeRequest,
    Ping,
    PingAck,
)
from shoal.peering.http import connections, peer_app
from shoal.peering.http.peer_link import wall_s
from shoal.peering.state.peer_state import read_documents
from shoal.sim.hosts.toy_models import ToyLearner, toy_tree
from shoal.trust.documents import JoinCert, sign_document
from shoal.trust.envelope import Signer, sha256
from shoal.trust.keys import SigningKey, load_or_create
from shoal.wire import peer_codec
from shoal.wire.peer_codec import MessageBatch
from shoal_peer.peer_process import StandalonePeer
from shoal_peer.provision import InvitedNode, invite
from tests.peer.scenario import PeerClient, body_of, folders, node, raw_exchange, ref_of, until

XID = ("b", 90, 1)
FINE = body_of(toy_tree((1.0, 2.0, 3.0), 1))
OTHER = body_of(Tree.of({"w": np.ones(3, np.float32), "seen": np.array(0), "more": np.ones(1, np.float32)}))


def swap(body: bytes = FINE, *, who: str = "b", weight: float = 2.0) -> ExchangeOffer:
    return ExchangeOffer(who, XID, weight, 1e9, ref_of(body), {"b": 1})


async def reserved(client: PeerClient) -> None:
    """`a` keeps a slot for `b`, so that only what is wrong with a model keeps it from being mixed."""
    status, said = await client.send(ExchangeRequest("b", XID))
    assert (status, type(said[0])) == (200, ExchangeGrant), said


async def forged(client: PeerClient) -> tuple[int, Any]:
    """`c` signs as `b`."""
    thief = type(client)(client.folder.with_name("c"), client.to)
    thief.signer.key.peer_id = client.signer.key.peer_id
    return await thief.send(swap(), blobs=FINE)


async def stranger(client: PeerClient) -> tuple[int, Any]:
    client.signer = Signer(SigningKey.make(), client.documents.charter, 1)
    return await client.send(swap(), blobs=FINE)


async def speaking_for_another(client: PeerClient) -> tuple[int, Any]:
    return await client.send(swap(who="c"), blobs=FINE)


async def replayed(client: PeerClient) -> tuple[int, Any]:
    request, content = client.batch(ExchangeCommit("b", XID))
    assert (await client.send_bytes(request, content))[0] == 200
    return await client.send_bytes(request, content)


async def of_an_earlier_process(client: PeerClient) -> tuple[int, Any]:
    assert (await client.send(ExchangeCommit("b", XID)))[0] == 200
    return await type(client)(client.folder, client.to, process_number=1).send(swap(), blobs=FINE)


async def for_somebody_else(client: PeerClient) -> tuple[int, Any]:
    head = peer_codec.encode(MessageBatch("toys", (swap(),)))
    request = client.signer.request(client.documents.me.peer_id, "POST", "/p2p/toys", "", sha256(head))
    return await client.send_bytes(request, head + FINE)


async def of_another_life_of_the_job(client: PeerClient) -> tuple[int, Any]:
    """The same key, and a job of the same name with another charter."""
    client.signer = Signer(client.signer.key, replace(client.documents.charter, config_sha="0" * 64), 2)
    return await client.send(swap(), blobs=FINE)


async def changed_on_its_way(client: PeerClient) -> tuple[int, Any]:
    request, content = client.batch(swap(), blobs=FINE)
    return await client.send_bytes(request, content.replace(b'"weight":2.0', b'"weight":9.0'))


async def another_body_than_said(client: PeerClient) -> tuple[int, Any]:
    return await client.send(swap(), blobs=FINE[:-1] + b"\x00")


async def another_model(client: PeerClient) -> tuple[int, Any]:
    return await client.send(swap(OTHER), blobs=OTHER)


async def another_header(client: PeerClient) -> tuple[int, Any]:
    other = FINE.replace(b'"seen"', b'"sean"')
    return await client.send(swap(other), blobs=other)


async def another_job(client: PeerClient) -> tuple[int, Any]:
    head = peer_codec.encode(MessageBatch("other", (swap(),)))
    return await client.send_bytes(client.signed(head), head + FINE)


async def not_a_number(client: PeerClient) -> tuple[int, Any]:
    body = body_of(toy_tree((float("nan"), 2.0, 3.0), 1))
    return await client.send(swap(body), blobs=body)


async def far_too_long(client: PeerClient) -> tuple[int, Any]:
    body = body_of(toy_tree((1000.0, 2000.0, 3000.0), 1))
    return await client.send(swap(body), blobs=body)


async def too_heavy(client: PeerClient) -> tuple[int, Any]:
    return await client.send(swap(weight=101.0), blobs=FINE)


async def two_models(client: PeerClient) -> tuple[int, Any]:
    return await client.send(swap(), swap(), blobs=FINE + FINE)


async def more_than_said(client: PeerClient) -> tuple[int, Any]:
    return await client.send(swap(), blobs=FINE + b"x")


async def less_than_said(client: PeerClient) -> tuple[int, Any]:
    return await client.send(swap(), blobs=FINE[:-1])


async def two_gigabytes(client: PeerClient) -> tuple[int, Any]:
    request, _ = client.batch(swap(), blobs=FINE)
    return await client.send_bytes(request, b"", announced=2 * 2**30)


async def compressed(client: PeerClient) -> tuple[int, Any]:
    request, content = client.batch(ExchangeCommit("b", XID))
    return await client.send_bytes(request, content, more="Content-Encoding: gzip\r\n")


async def elsewhere(client: PeerClient) -> tuple[int, Any]:
    request, content = client.batch(ExchangeCommit("b", XID))
    return await client.send_bytes(request, content, path="/p2p/other")


REFUSALS: dict[Callable[[PeerClient], Awaitable[tuple[int, Any]]], tuple[int, str]] = {
    forged: (403, "trust.signature"),
    stranger: (403, "trust.stranger"),
    speaking_for_another: (409, "peer.sender"),
    replayed: (403, "trust.replayed"),
    of_an_earlier_process: (403, "trust.process-old"),
    for_somebody_else: (409, "trust.addressee"),
    of_another_life_of_the_job: (403, "trust.signature"),
    changed_on_its_way: (409, "trust.digest"),
    another_body_than_said: (422, "blob.digest"),
    another_model: (422, "payload.length"),
    another_header: (422, "payload.header"),
    another_job: (409, "peer.job"),
    not_a_number: (422, "payload.not-finite"),
    far_too_long: (422, "payload.norm"),
    too_heavy: (422, "peer.weight"),
    two_models: (422, "payload.length"),
    more_than_said: (422, "payload.length"),
    less_than_said: (422, "payload.length"),
    two_gigabytes: (413, "body.too-large"),
    compressed: (415, "body.encoding"),
    elsewhere: (404, "path.unknown"),
}


def values(made: StandalonePeer) -> bytes:
    return bytes(made.gossip.me.model.buffer)


@pytest.mark.parametrize("wrong", REFUSALS, ids=lambda one: one.__name__)
def test_it_is_refused_and_changes_nothing(wrong: Any, tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path)
        async with node(peers / "a", hold=True) as made:
            before, blobs = values(made), made.state.blobs.digests()
            await reserved(PeerClient(peers / "b", made, process_number=1))
            status, code = REFUSALS[wrong]
            with capture_logs() as lines:
                assert await wrong(PeerClient(peers / "b", made, process_number=2)) == (status, code)
            assert [line["code"] for line in lines if line["event"] == "refused" and line["why"]] == [code]
            assert values(made) == before
            assert made.status()["refused"] == {code: 1}
            assert made.state.blobs.digests() == blobs
            with made.state.holds.frozen() as awaited:
                assert not awaited
            # And the same as it should be is taken, so it was that which was wrong with it.
            status, said = await PeerClient(peers / "b", made, process_number=3).send(swap(), blobs=FINE)
            assert (status, type(said[0]).__name__) == (200, "ExchangeAccept")
            assert values(made) != before

    asyncio.run(scene())


# Peers admitted before


DAY_S = 86_400


def sealed(root: Path, document: Any) -> bytes:
    """A document that the operator of these folders has signed."""
    charter = read_documents(root / "a").charter
    return sign_document(document, load_or_create(root / "operator.pem"), charter)


def test_who_was_revoked_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path)
        async with node(peers / "a", hold=True) as made:
            client = PeerClient(peers / "b", made)
            await reserved(client)
            before, roster = values(made), made.group.documents.roster
            left = tuple(peer for peer in roster.peers if peer.node != "b")
            gone = replace(roster, version=2, peers=left, revoked_peer_ids=(client.documents.me.peer_id,))
            made.group.verifier.update_roster(sealed(peers, gone))
            assert await client.send(swap(), blobs=FINE) == (403, "trust.revoked")
            assert values(made) == before
            assert made.status()["refused"] == {"trust.revoked": 1}

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("age_s", "refused"),
    [(-DAY_S, {}), (DAY_S // 2, {}), (2 * DAY_S, {"trust.expired": 1})],
    ids=["valid", "ended half a day ago: clocks may be a day off", "expired"],
)
def test_a_newcomers_certificate_ends(age_s: int, refused: dict[str, int], tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path)
        async with node(peers / "a", hold=True) as made:
            key = SigningKey.make()
            cert = JoinCert("toys", "new", key.peer_id, key.public_key, 100, wall_s() - age_s)
            made.group.verifier.introduce(sealed(peers, cert), wall_s() - 10 * DAY_S)
            client, before = PeerClient(peers / "b", made), values(made)
            client.signer = Signer(key, client.documents.charter, 1)
            status, said = await client.send(ExchangeCommit("new", ("new", 1, 1)))
            assert (status, said) == ((403, "trust.expired") if refused else (200, ()))
            assert values(made) == before
            assert made.status()["refused"] == refused

    asyncio.run(scene())


@pytest.mark.parametrize("ahead_s", [-DAY_S, DAY_S], ids=["behind", "ahead"])
def test_a_clock_that_is_a_day_off_keeps_nobody_out(ahead_s: int, tmp_path: Path, monkeypatch: Any) -> None:
    async def scene() -> None:
        peers = folders(tmp_path)
        monkeypatch.setattr(peer_app, "wall_s", lambda: wall_s() + ahead_s)
        async with node(peers / "a", hold=True) as made:
            client, before = PeerClient(peers / "b", made), values(made)
            await reserved(client)
            status, said = await client.send(swap(), blobs=FINE)
            assert (status, type(said[0]).__name__) == (200, "ExchangeAccept")
            assert values(made) != before
            assert not made.group.refusals.counts

    asyncio.run(scene())


def test_an_older_roster_than_the_one_held_is_refused(tmp_path: Path) -> None:
    peers = folders(tmp_path, "ab")
    older = (peers / "a" / "roster.json").read_bytes()
    invite(tmp_path / "job.toml", ToyLearner(1).init(3), [InvitedNode("c", "")], peers)

    async def scene() -> None:
        async with node(peers / "a") as made:
            made.group.save()
            state = (peers / "a" / "state" / "windows.json").read_bytes()
        (peers / "a" / "roster.json").write_bytes(older)
        with pytest.raises(Refused, match=r"roster \(1,\)") as caught:
            async with node(peers / "a"):
                raise AssertionError("it has started")
        assert caught.value.code == "trust.roster-old"
        assert (peers / "a" / "state" / "windows.json").read_bytes() == state

    asyncio.run(scene())


def test_who_waits_for_a_continue_is_refused_without_one(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path)
        async with node(peers / "a", hold=True) as made:
            client = PeerClient(peers / "b", made)
            await reserved(client)
            request, content = client.batch(swap(), blobs=FINE)
            lines = [f"POST /p2p/toys HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(content)}"]
            lines += [f"{name}: {value}" for name, value in request.headers().items()]
            head = "\r\n".join(lines)
            assert b" 100 " in await raw_exchange(made.port, f"{head}\r\n\r\n".encode())  # type: ignore[attr-defined]
            bad = head.replace(request.signature, "0" * 128)
            assert b" 403 " in await raw_exchange(made.port, f"{bad}\r\n\r\n".encode())  # type: ignore[attr-defined]
            big = head.replace(f"Length: {len(content)}", f"Length: {2**31}")
            assert b" 413 " in await raw_exchange(made.port, f"{big}\r\n\r\n".encode())  # type: ignore[attr-defined]

    asyncio.run(scene())


@pytest.mark.parametrize("path", ["/p2p", "/p2p/toys/status", "/p2p/toys/charter"])
def test_a_foreign_host_reads_nothing(tmp_path: Path, path: str) -> None:
    """A page whose name resolves to this machine (DNS rebinding) sends its own name."""

    async def scene() -> None:
        async with node(folders(tmp_path) / "a", hold=True) as made:
            for host, status in (("evil.example", 421), ("127.0.0.1:1", 200), ("10.0.0.1", 200), ("localhost", 200)):
                head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
                found = await raw_exchange(made.port, head.encode())  # type: ignore[attr-defined]
                assert found.startswith(f"HTTP/1.1 {status} ".encode()), (host, found[:200])

    asyncio.run(scene())


def test_who_sends_a_body_too_slowly_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        monkeypatch.setattr(connections, "BODY_GRACE_S", 1)
        peers = folders(tmp_path)
        async with node(peers / "a", hold=True) as made:
            client = PeerClient(peers / "b", made)
            request, content = client.batch(swap(), blobs=FINE)
            lines = [f"POST /p2p/toys HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}"]
            lines += [f"{name}: {value}" for name, value in request.headers().items()]
            reader, writer = await asyncio.open_connection("127.0.0.1", made.port)  # type: ignore[attr-defined]
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + content[:-5])
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()
            await until(lambda: not list((made.state.blobs.folder / "partial").glob("*/*")), "a piece of it is left")
            with made.state.holds.frozen() as awaited:
                assert not awaited

    asyncio.run(scene())


def test_pings_are_answered_while_it_trains_and_while_a_model_is_asked_after(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path, min_peers=1)
        async with node(peers / "a", hold=True) as made:
            client = PeerClient(peers / "b", made)
            await asyncio.wait_for(made.trainer.training.wait(), 60)  # type: ignore[attr-defined]
            status, said = await client.send(Ping("b", 1, 7), ExchangeQuery("b", XID))
            assert status == 200
            assert [type(one).__name__ for one in said if not hasattr(one, "updates") or isinstance(one, PingAck)] == [
                "PingAck",
                "ExchangeAbort",
            ]
            assert not made.gossip.me.local_rounds

    asyncio.run(scene())
