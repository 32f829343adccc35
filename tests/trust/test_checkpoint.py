"""The newest signed version among the nodes' checkpoints; invalid ones are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from shoal.core.errors import InvalidPayload
from shoal.jobs.spec import parse_job
from shoal.recovery.checkpoint import TERMS_MAX, CheckpointOffer, RejectedOffer, choose, offer_of
from shoal.trust.documents import Charter, Manifest, Roster, RosterEntry, config_sha, sign_document
from shoal.trust.keys import SigningKey

KEY, OTHER, A = SigningKey.make(), SigningKey.make(), SigningKey.make()
SPEC = parse_job({"name": "digits", "algorithm": {"name": "fedavg", "lr": 0.1}}).model_dump(mode="json")
SHA = "0123456789abcdef" * 4
CHARTER = Charter("digits", config_sha(SPEC), SHA, KEY.public_key, KEY.public_key)
PEER = RosterEntry("a", A.peer_id, A.public_key, (), False, 10)


def manifest(version: int, term: int = 1, *, sha: str = "", charter: Charter = CHARTER, key: SigningKey = KEY) -> bytes:
    return sign_document(Manifest("digits", term, version, sha or f"{version:064x}", (), version), key, charter)


def offer(node: str, *manifests: bytes, roster: int = 1, charter: Charter = CHARTER, **more: Any) -> CheckpointOffer:
    key = KEY if charter.coordinator_public_key == KEY.public_key else OTHER
    documents = [sign_document(document, key, charter) for document in (charter, Roster("digits", roster, (PEER,)))]
    given: dict[str, Any] = {"spec": SPEC, "created_at": "2026-01-02T03:04:05.678Z", "term": 1}
    given |= {"charter": documents[0], "roster": documents[1], "manifests": manifests}
    return CheckpointOffer(f"/srv/{node}", node, "digits", **(given | more))


def codes(rejected: list[RejectedOffer]) -> list[tuple[str, str, str]]:
    return [(one.node, one.what, one.code) for one in rejected]


def test_the_newest_by_term_and_number_is_taken() -> None:
    offers = [offer("a", manifest(7), manifest(6)), offer("b", manifest(3, term=2)), offer("c", manifest(9))]
    ((choice,), rejected) = choose(offers, KEY.public_key)
    assert (choice.manifest.term, choice.manifest.version, rejected) == (2, 3, [])
    assert [one.node for one in choice.holders] == ["b"]


def test_all_who_have_it_and_the_newest_roster_and_the_highest_term() -> None:
    offers = [
        offer("a", manifest(7), roster=3, term=5),
        offer("b", manifest(7), manifest(6), roster=4),
        offer("c", manifest(5), roster=2, term=8),
    ]
    ((choice,), rejected) = choose(offers, KEY.public_key)
    assert ([one.node for one in choice.holders], choice.roster, choice.term) == (["a", "b"], offers[1].roster, 8)
    assert (choice.peers, rejected) == (("a",), [])
    told = choice.restore_request("b")
    assert (told["node"], told["term"], told["manifest"]) == ("b", 8, manifest(7).decode())


def _forged() -> bytes:
    return manifest(99, charter=replace(CHARTER, coordinator_public_key=OTHER.public_key), key=OTHER)


def test_a_forged_newer_one_is_refused_by_name() -> None:
    ((choice,), rejected) = choose([offer("a", manifest(7)), offer("b", _forged(), manifest(6))], KEY.public_key)
    assert choice.manifest.version == 7
    assert codes(rejected) == [("b", "manifest of version 99", "trust.signature")]


WRONG: dict[str, tuple[Callable[[], CheckpointOffer], tuple[str, str, str]]] = {
    "another coordinator's": (
        lambda: offer(
            "b", charter=replace(CHARTER, coordinator_public_key=OTHER.public_key, operator_public_key=OTHER.public_key)
        ),
        ("b", "charter", "restore.key"),
    ),
    "another form of the job": (lambda: offer("b", spec={**SPEC, "seed": 9}), ("b", "charter", "restore.job")),
    "a job that nobody can run": (lambda: offer("b", spec={"name": "digits", "x": 1}), ("b", "charter", "restore.job")),
    "a damaged charter": (
        lambda: replace(offer("b"), charter=b"{}"),
        ("b", "charter", "trust.document"),
    ),
    "a damaged roster": (lambda: replace(offer("b"), roster=b"{}"), ("b", "roster", "trust.document")),
    "a damaged manifest": (lambda: offer("b", b"{}"), ("b", "manifest", "trust.document")),
    "a term that cannot be": (lambda: offer("b", term=7 + TERMS_MAX), ("b", "term", "restore.term")),
    "a fork": (lambda: offer("b", manifest(7, sha="0" * 64)), ("b", "version 7", "restore.fork")),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_count_is_named_and_the_rest_is_taken(what: str) -> None:
    make, wanted = WRONG[what]
    ((choice,), rejected) = choose([make(), offer("a", manifest(7))], KEY.public_key)
    assert (choice.manifest.version, [one.node for one in choice.holders]) == (7, ["a"])
    assert codes(rejected) == [wanted]
    assert all(one.why for one in rejected)
    assert choice.term == 1


def test_without_a_roster_that_counts_there_is_nothing() -> None:
    found, rejected = choose([replace(offer("a", manifest(7)), roster=b"{}")], KEY.public_key)
    assert found == []
    assert ("a", "version 7", "restore.roster") in codes(rejected)


def test_an_offer_travels() -> None:
    made = offer("a", manifest(7))
    assert offer_of(json.dumps(made.values()).encode(), made.source) == made


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"charter": 1}', b"[" * 100_000])
def test_what_is_no_offer_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidPayload):
        offer_of(data, "http://a")
