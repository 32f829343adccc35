"""What must not be acted on is refused with its code, counted, and leaves the model as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from shoal import peer_wire
from shoal.core.errors import Refused
from shoal.core.peer_message import Ping, Pong, Reserve, Resolve, Settle, Slot, Swap
from shoal.core.tree import Tree
from shoal.peer_wire import Letter
from shoal.sim.toys import ToyLearner, toy_tree
from shoal.trust.envelope import Signer, sha256
from shoal.trust.keys import Key, load_or_make
from shoal.trust.papers import JoinCert, seal
from shoal_peer import app, metered
from shoal_peer.folder import read_papers
from shoal_peer.invite import Invited, invite
from shoal_peer.node import Node, wall_s
from tests.peer.stage import Voice, body_of, folders, node, raw_exchange, ref_of, until

XID = ("b", 90, 1)
FINE = body_of(toy_tree((1.0, 2.0, 3.0), 1))
OTHER = body_of(Tree.of({"w": np.ones(3, np.float32), "seen": np.array(0), "more": np.ones(1, np.float32)}))


def swap(body: bytes = FINE, *, who: str = "b", weight: float = 2.0) -> Swap:
    return Swap(who, XID, weight, 1e9, ref_of(body), {"b": 1})


async def reserved(voice: Voice) -> None:
    """`a` keeps a slot for `b`, so that only what is wrong with a model keeps it from being mixed."""
    status, said = await voice.says(Reserve("b", XID))
    assert (status, type(said[0])) == (200, Slot), said


async def forged(voice: Voice) -> tuple[int, Any]:
    """`c` signs as `b`."""
    thief = type(voice)(voice.folder.with_name("c"), voice.to)
    thief.signer.key.peer_id = voice.signer.key.peer_id
    return await thief.says(swap(), bodies=FINE)


async def stranger(voice: Voice) -> tuple[int, Any]:
    voice.signer = Signer(Key.make(), voice.papers.charter, 1)
    return await voice.says(swap(), bodies=FINE)


async def speaking_for_another(voice: Voice) -> tuple[int, Any]:
    return await voice.says(swap(who="c"), bodies=FINE)


async def replayed(voice: Voice) -> tuple[int, Any]:
    request, content = voice.letter(Settle("b", XID))
    assert (await voice.sends(request, content))[0] == 200
    return await voice.sends(request, content)


async def of_an_earlier_process(voice: Voice) -> tuple[int, Any]:
    assert (await voice.says(Settle("b", XID)))[0] == 200
    return await type(voice)(voice.folder, voice.to, boot=1).says(swap(), bodies=FINE)


async def for_somebody_else(voice: Voice) -> tuple[int, Any]:
    head = peer_wire.encode(Letter("toys", (swap(),)))
    request = voice.signer.request(voice.papers.me.peer_id, "POST", "/p2p/toys", "", sha256(head))
    return await voice.sends(request, head + FINE)


async def of_another_life_of_the_job(voice: Voice) -> tuple[int, Any]:
    """The same key, and a job of the same name with another charter."""
    voice.signer = Signer(voice.signer.key, replace(voice.papers.charter, config_sha="0" * 64), 2)
    return await voice.says(swap(), bodies=FINE)


async def changed_on_its_way(voice: Voice) -> tuple[int, Any]:
    request, content = voice.letter(swap(), bodies=FINE)
    return await voice.sends(request, content.replace(b'"weight":2.0', b'"weight":9.0'))


async def another_body_than_said(voice: Voice) -> tuple[int, Any]:
    return await voice.says(swap(), bodies=FINE[:-1] + b"\x00")


async def another_model(voice: Voice) -> tuple[int, Any]:
    return await voice.says(swap(OTHER), bodies=OTHER)


async def another_header(voice: Voice) -> tuple[int, Any]:
    other = FINE.replace(b'"seen"', b'"sean"')
    return await voice.says(swap(other), bodies=other)


async def another_job(voice: Voice) -> tuple[int, Any]:
    head = peer_wire.encode(Letter("other", (swap(),)))
    return await voice.sends(voice.signed(head), head + FINE)


async def not_a_number(voice: Voice) -> tuple[int, Any]:
    body = body_of(toy_tree((float("nan"), 2.0, 3.0), 1))
    return await voice.says(swap(body), bodies=body)


async def far_too_long(voice: Voice) -> tuple[int, Any]:
    body = body_of(toy_tree((1000.0, 2000.0, 3000.0), 1))
    return await voice.says(swap(body), bodies=body)


async def too_heavy(voice: Voice) -> tuple[int, Any]:
    return await voice.says(swap(weight=101.0), bodies=FINE)


async def two_models(voice: Voice) -> tuple[int, Any]:
    return await voice.says(swap(), swap(), bodies=FINE + FINE)


async def more_than_said(voice: Voice) -> tuple[int, Any]:
    return await voice.says(swap(), bodies=FINE + b"x")


async def less_than_said(voice: Voice) -> tuple[int, Any]:
    return await voice.says(swap(), bodies=FINE[:-1])


async def two_gigabytes(voice: Voice) -> tuple[int, Any]:
    request, _ = voice.letter(swap(), bodies=FINE)
    return await voice.sends(request, b"", announced=2 * 2**30)


async def compressed(voice: Voice) -> tuple[int, Any]:
    request, content = voice.letter(Settle("b", XID))
    return await voice.sends(request, content, more="Content-Encoding: gzip\r\n")


async def elsewhere(voice: Voice) -> tuple[int, Any]:
    request, content = voice.letter(Settle("b", XID))
    return await voice.sends(request, content, path="/p2p/other")


REFUSALS: dict[Callable[[Voice], Awaitable[tuple[int, Any]]], tuple[int, str]] = {
    forged: (403, "trust.signature"),
    stranger: (403, "trust.stranger"),
    speaking_for_another: (409, "peer.sender"),
    replayed: (403, "trust.replayed"),
    of_an_earlier_process: (403, "trust.boot-old"),
    for_somebody_else: (409, "trust.addressee"),
    of_another_life_of_the_job: (403, "trust.signature"),
    changed_on_its_way: (409, "trust.digest"),
    another_body_than_said: (422, "body.digest"),
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


def values(made: Node) -> bytes:
    return bytes(made.gossip.me.model.buffer)


@pytest.mark.parametrize("wrong", REFUSALS, ids=lambda one: one.__name__)
def test_it_is_refused_and_changes_nothing(wrong: Any, tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path)
        async with node(peers / "a", hold=True) as made:
            before, bodies = values(made), made.desk.bodies.digests()
            await reserved(Voice(peers / "b", made, boot=1))
            status, code = REFUSALS[wrong]
            with capture_logs() as lines:
                assert await wrong(Voice(peers / "b", made, boot=2)) == (status, code)
            assert [line["code"] for line in lines if line["event"] == "refused" and line["why"]] == [code]
            assert values(made) == before
            assert made.status()["refused"] == {code: 1}
            assert made.desk.bodies.digests() == bodies
            with made.desk.awaited.still() as awaited:
                assert not awaited
            # And the same as it should be is taken, so it was that which was wrong with it.
            status, said = await Voice(peers / "b", made, boot=3).says(swap(), bodies=FINE)
            assert (status, type(said[0]).__name__) == (200, "Swapped")
            assert values(made) != before

    asyncio.run(scene())


# Who was let in once


DAY_S = 86_400


def sealed(root: Path, paper: Any) -> bytes:
    """A paper that the operator of these folders has signed."""
    charter = read_papers(root / "a").charter
    return seal(paper, load_or_make(root / "operator.pem"), charter)


def test_who_was_revoked_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path)
        async with node(peers / "a", hold=True) as made:
            voice = Voice(peers / "b", made)
            await reserved(voice)
            before, roster = values(made), made.papers.roster
            left = tuple(peer for peer in roster.peers if peer.node != "b")
            gone = replace(roster, version=2, peers=left, revoked=(voice.papers.me.peer_id,))
            made.gate.take_roster(sealed(peers, gone))
            assert await voice.says(swap(), bodies=FINE) == (403, "trust.revoked")
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
            key = Key.make()
            cert = JoinCert("toys", "new", key.peer_id, key.pub, 100, wall_s() - age_s)
            made.gate.introduce(sealed(peers, cert), wall_s() - 10 * DAY_S)
            voice, before = Voice(peers / "b", made), values(made)
            voice.signer = Signer(key, voice.papers.charter, 1)
            status, said = await voice.says(Settle("new", ("new", 1, 1)))
            assert (status, said) == ((403, "trust.expired") if refused else (200, ()))
            assert values(made) == before
            assert made.status()["refused"] == refused

    asyncio.run(scene())


@pytest.mark.parametrize("ahead_s", [-DAY_S, DAY_S], ids=["behind", "ahead"])
def test_a_clock_that_is_a_day_off_keeps_nobody_out(ahead_s: int, tmp_path: Path, monkeypatch: Any) -> None:
    async def scene() -> None:
        peers = folders(tmp_path)
        monkeypatch.setattr(app, "wall_s", lambda: wall_s() + ahead_s)
        async with node(peers / "a", hold=True) as made:
            voice, before = Voice(peers / "b", made), values(made)
            await reserved(voice)
            status, said = await voice.says(swap(), bodies=FINE)
            assert (status, type(said[0]).__name__) == (200, "Swapped")
            assert values(made) != before
            assert not made.refused

    asyncio.run(scene())


def test_an_older_roster_than_the_one_held_is_refused(tmp_path: Path) -> None:
    peers = folders(tmp_path, "ab")
    older = (peers / "a" / "roster.json").read_bytes()
    invite(tmp_path / "job.toml", ToyLearner(1).init(3), [Invited("c", "")], peers)

    async def scene() -> None:
        async with node(peers / "a") as made:
            made._keep()
            state = (peers / "a" / "state" / "gate.json").read_bytes()
        (peers / "a" / "roster.json").write_bytes(older)
        with pytest.raises(Refused, match=r"roster \(1,\)") as caught:
            async with node(peers / "a"):
                raise AssertionError("it has started")
        assert caught.value.code == "trust.roster-old"
        assert (peers / "a" / "state" / "gate.json").read_bytes() == state

    asyncio.run(scene())


def test_who_waits_for_a_continue_is_refused_without_one(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path)
        async with node(peers / "a", hold=True) as made:
            voice = Voice(peers / "b", made)
            await reserved(voice)
            request, content = voice.letter(swap(), bodies=FINE)
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


def test_a_head_has_a_limit(tmp_path: Path) -> None:
    async def scene() -> None:
        async with node(folders(tmp_path) / "a", hold=True) as made:
            for long in (b"X-A: " + b"a" * 10_000_000, b"x: y\r\n" * 100_000, b"x: y\r\n" * 128):
                reader, writer = await asyncio.open_connection("127.0.0.1", made.port)  # type: ignore[attr-defined]
                writer.write(b"GET /p2p HTTP/1.1\r\nHost: 127.0.0.1\r\n" + long + b"\r\n\r\n")
                async with asyncio.timeout(60):
                    found = await reader.read()
                assert found.startswith(b"HTTP/1.1 431 ")
                assert b'"code": "head.too-large"' in found
                writer.close()

    asyncio.run(scene())


def test_who_never_ends_his_head_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        monkeypatch.setattr(metered, "HEAD_RECEIPT_S", 1)
        async with node(folders(tmp_path) / "a", hold=True) as made:
            reader, writer = await asyncio.open_connection("127.0.0.1", made.port)  # type: ignore[attr-defined]
            writer.write(b"POST /p2p/toys HTTP/1.1\r\nHost:")
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()

    asyncio.run(scene())


def test_who_sends_a_body_too_slowly_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        monkeypatch.setattr(metered, "BODY_GRACE_S", 1)
        peers = folders(tmp_path)
        async with node(peers / "a", hold=True) as made:
            voice = Voice(peers / "b", made)
            request, content = voice.letter(swap(), bodies=FINE)
            lines = [f"POST /p2p/toys HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}"]
            lines += [f"{name}: {value}" for name, value in request.headers().items()]
            reader, writer = await asyncio.open_connection("127.0.0.1", made.port)  # type: ignore[attr-defined]
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + content[:-5])
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()
            await until(lambda: not list((made.desk.bodies.folder / "partial").glob("*/*")), "a piece of it is left")
            with made.desk.awaited.still() as awaited:
                assert not awaited

    asyncio.run(scene())


def test_pings_are_answered_while_it_trains_and_while_a_model_is_asked_after(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path, min_peers=1)
        async with node(peers / "a", hold=True) as made:
            voice = Voice(peers / "b", made)
            await asyncio.wait_for(made.trainer.training.wait(), 60)  # type: ignore[attr-defined]
            status, said = await voice.says(Ping("b", 1, 7), Resolve("b", XID))
            assert status == 200
            assert [type(one).__name__ for one in said if not hasattr(one, "news") or isinstance(one, Pong)] == [
                "Pong",
                "Never",
            ]
            assert not made.gossip.me.round

    asyncio.run(scene())
