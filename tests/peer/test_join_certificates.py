"""How a newcomer comes in over HTTP, and what of it is refused."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from shoal.core.errors import InvalidPayload, StorageFailed
from shoal.peering.http.peer_link import wall_s
from shoal.peering.roster.join_certificate import ENTRY_BYTES_MAX, CertificateEntry, read_entry
from shoal.peering.state.peer_state import PeerDocuments, read_documents
from shoal.trust.documents import JoinCert, RosterEntry, sign_document
from shoal.trust.envelope import Signer, sha256
from shoal.trust.keys import SigningKey, load_or_create
from tests.peer.scenario import folders, node, until
from tests.peer.test_peer_group import made_in, running_group, with_roster
from tests.support.ports import free_ports

DAY = 86_400


def newcomer(peers: Path, known: PeerDocuments, url: str, name: str = "d", lasts_s: int = DAY) -> PeerDocuments:
    """The documents of a node that no roster names; the signer of the roster has certified it."""
    key = SigningKey.make()
    cert = JoinCert("toys", name, key.peer_id, key.public_key, 50, wall_s() + lasts_s)
    sealed = sign_document(cert, load_or_create(peers / "operator.pem"), known.charter)
    me = RosterEntry(name, key.peer_id, key.public_key, (url,), True, 50)
    return replace(known, key=key, me=me, certificate=sealed)


async def shown(
    documents: PeerDocuments, to: PeerDocuments, port: int, text: bytes, job: str = "toys"
) -> tuple[int, str]:
    """Return the result of showing this: the status, and a refusal's code."""
    path = f"/p2p/{job}/join-by-certificate"
    request = Signer(documents.key, documents.charter, 1).request(to.me.peer_id, "POST", path, "", sha256(text))
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"http://127.0.0.1:{port}{path}", content=text, headers=request.headers())
    return answer.status_code, "" if answer.status_code == 200 else answer.json()["code"]


def test_it_is_let_in_and_they_call_each_other(tmp_path: Path) -> None:
    async def scene() -> None:
        ports = free_ports(2)
        peers = folders(tmp_path, "a", ports=ports[:1])
        known = read_documents(peers / "a")
        new = newcomer(peers, known, f"http://127.0.0.1:{ports[1]}")
        async with (
            running_group(known, tmp_path / "x", ports[0]) as (a, told_a),
            running_group(new, tmp_path / "y", ports[1]) as (_, told_d),
        ):
            await until(lambda: told_a.live == {"d"} and told_d.live == {"a"})
            assert a.router.links["d"].url == f"http://127.0.0.1:{ports[1]}"
            assert next(peer.examples for peer in a.verifier.members() if peer.node == "d") == 50

    asyncio.run(scene())


def test_the_next_process_calls_who_was_let_in(tmp_path: Path) -> None:
    """It knows where, though no roster says it; and the newcomer need not show its certificate again."""

    async def scene() -> None:
        ports = free_ports(2)
        peers = folders(tmp_path, "a", ports=ports[:1])
        known = read_documents(peers / "a")
        new = newcomer(peers, known, f"http://127.0.0.1:{ports[1]}")
        async with running_group(new, tmp_path / "y", ports[1]) as (_, told_d):
            async with running_group(known, tmp_path / "x", ports[0]) as (a, told_a):
                await until(lambda: told_a.live == {"d"})
                a.save()
            told_d.live = frozenset()
            async with running_group(known, tmp_path / "x", ports[0]) as (again, told_again):
                assert again.router.links["d"].url == f"http://127.0.0.1:{ports[1]}"
                await until(lambda: told_again.live == {"d"})
                again.update_documents(with_roster(known, peers, [known.me]))
                assert set(again.router.links) == {"d"}, "a roster that says nothing of it changes nothing"
                moved = replace(new.me, urls=("http://127.0.0.1:9",))
                again.update_documents(with_roster(again.documents, peers, [known.me, moved]))
                assert again.router.links["d"].url == "http://127.0.0.1:9"
                again.save()
        assert json.loads((tmp_path / "x" / "admitted_by_certificate.json").read_text()) == {}, (
            "the roster knows better by now"
        )

    asyncio.run(scene())


def test_addresses_that_are_damaged_are_named(tmp_path: Path) -> None:
    peers = folders(tmp_path, "a")
    known = read_documents(peers / "a")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "admitted_by_certificate.json").write_text('{"a": ["ftp://x"]}')
    with pytest.raises(StorageFailed, match=r"admitted_by_certificate\.json"):
        made_in(tmp_path / "x", known)


def test_who_may_not_come_in_is_told_why_and_counted(tmp_path: Path) -> None:
    async def scene() -> None:
        (port,) = free_ports(1)
        peers = folders(tmp_path, "ab", ports=[port, 9])
        known = read_documents(peers / "a")
        good = newcomer(peers, known, "http://127.0.0.1:9")
        late = newcomer(peers, known, "http://127.0.0.1:9", lasts_s=-3 * DAY)
        posing = newcomer(peers, known, "http://127.0.0.1:9", name="b")
        async with running_group(known, tmp_path / "x", port) as (a, _):
            for documents, text, refusal in (
                (good, b"{}", (422, "peer.entry")),
                (good, CertificateEntry(b"{}", ()).text(), (409, "trust.document")),
                (good, b"x" * (ENTRY_BYTES_MAX + 1), (413, "body.too-large")),
                (late, CertificateEntry(late.certificate, ()).text(), (403, "trust.expired")),
                (posing, CertificateEntry(posing.certificate, ()).text(), (403, "trust.name-taken")),
                (posing, CertificateEntry(good.certificate, ()).text(), (403, "trust.stranger")),
            ):
                assert await shown(documents, known, port, text) == refusal
                assert a.refusals.counts[refusal[1]] == 1
            assert [peer.node for peer in a.verifier.members()] == ["a", "b"]
            assert (await shown(good, known, port, CertificateEntry(good.certificate, ()).text(), "other"))[
                1
            ] == "path.unknown"
            assert await shown(good, known, port, CertificateEntry(good.certificate, ()).text()) == (200, "")

    asyncio.run(scene())


def test_a_job_without_a_coordinator_has_no_certificates(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path)
        async with node(peers / "a", hold=True) as made:
            new = newcomer(peers, made.group.documents, "http://127.0.0.1:9")
            port = made.port  # type: ignore[attr-defined]
            text = CertificateEntry(new.certificate, ()).text()
            assert await shown(new, made.group.documents, port, text) == (409, "peer.no-certificates")

    asyncio.run(scene())


@pytest.mark.parametrize(
    "values",
    [
        [],
        {"certificate": "x"},
        {"certificate": 1, "urls": []},
        {"certificate": "x", "urls": "http://a"},
        {"certificate": "x", "urls": [1]},
        {"certificate": "x", "urls": ["ftp://a"]},
        {"certificate": "ä", "urls": []},
        {"certificate": "x", "urls": ["http://a"] * 5},
        {"certificate": "x", "urls": ["http://a/" + "b" * 200]},
        {"certificate": "x", "urls": [], "more": 1},
    ],
)
def test_what_is_malformed_is_refused(values: object) -> None:
    with pytest.raises(InvalidPayload) as caught:
        read_entry(json.dumps(values).encode())
    assert caught.value.code == "peer.entry"


def test_an_entry_comes_back() -> None:
    entry = CertificateEntry(b"a certificate", ("http://10.0.0.9:9001",))
    assert read_entry(entry.text()) == entry
