"""A document is read as it was signed, or not at all; and of two it is clear which one holds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import NotAllowed, Refused
from shoal.core.protocol.machine import HUB
from shoal.trust.documents import (
    CLOCK_SLACK_S,
    PEERS_MAX,
    REVOKED_MAX,
    Charter,
    Document,
    Invitation,
    JoinCert,
    Manifest,
    ModeRecord,
    Roster,
    RosterEntry,
    canonical,
    open_charter,
    sign_document,
    supersedes,
    verify_document,
)
from tests.trust.job import CHARTER, DAY, NOW, SHA, cert, documents, key, mode, peer, roster, sealed

NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True).filter(lambda name: name != HUB)
SHAS = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
WHOLE = st.integers(0, 2**53)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200)
KEYS = st.sampled_from([key(str(n)) for n in range(20)])
URLS = st.lists(st.from_regex(r"https?://[!-~]{1,200}", fullmatch=True), max_size=4).map(tuple)
MODES = st.sampled_from(["gossip", "server"])
JOB = st.just("digits")
PEERS = st.builds(
    lambda name, mine, urls, is_reachable, n: RosterEntry(name, mine.peer_id, mine.public_key, urls, is_reachable, n),
    *(NAMES, KEYS, URLS, st.booleans(), WHOLE),
)
CERTS = st.builds(
    lambda name, mine, n, at: JoinCert("digits", name, mine.peer_id, mine.public_key, n, at), NAMES, KEYS, WHOLE, WHOLE
)


@st.composite
def rosters(draw: st.DrawFn) -> Roster:
    inside = draw(st.lists(PEERS, max_size=6, unique_by=(lambda one: one.node, lambda one: one.peer_id)))
    ids = {one.peer_id for one in inside}
    out = draw(st.sets(KEYS.map(lambda mine: mine.peer_id), max_size=6)) - ids
    return Roster("digits", draw(WHOLE), tuple(sorted(inside, key=lambda one: one.node)), tuple(sorted(out)))


SIGNERS = st.sampled_from(["coordinator", "operator"])
EACH: dict[type[Document], st.SearchStrategy[Any]] = {
    JoinCert: CERTS,
    Roster: rosters(),
    ModeRecord: st.builds(ModeRecord, JOB, WHOLE, WHOLE, MODES, WHOLE, SHAS, TEXTS, SIGNERS),
    Manifest: st.builds(Manifest, JOB, WHOLE, WHOLE, SHAS, st.lists(SHAS, max_size=4).map(tuple), WHOLE),
    Invitation: st.builds(
        Invitation, JOB, st.from_regex(r"[0-9a-f]{32}", fullmatch=True), st.integers(1, 4096), WHOLE, WHOLE
    ),
}
PAPERS: st.SearchStrategy[Document] = st.one_of(*EACH.values())
POLICIES = st.dictionaries(NAMES, st.one_of(TEXTS, WHOLE, st.booleans()), max_size=5)
CHARTERS = st.builds(
    Charter, NAMES, SHAS, SHAS, KEYS.map(lambda k: k.public_key), st.just(key("operator").public_key), POLICIES
)


def label(document: Document) -> str:
    """Name a document by its type and its signer."""
    return f"{document.TYPE} {getattr(document, 'signer', '')}"


def code_of(action: Callable[[], object]) -> str:
    """Return "taken", or the error's code, if it is one that may be told."""
    try:
        action()
    except (NotAllowed, Refused) as error:
        return error.code if error.hint and len(error.message) < 1000 else f"not fit to be told: {error!r}"
    return "taken"


def reads(data: bytes, kind: type[Document], charter: Charter = CHARTER) -> str:
    return code_of(lambda: verify_document(data, kind, charter))


def forged(document: Document, spoil: Callable[[dict[str, Any]], object]) -> bytes:
    """Sign, with the coordinator's own key, a document that its code would never make."""
    values = json.loads(canonical(dataclasses.asdict(document)))
    spoil(values)
    text = f"shoal-document-1\n{document.TYPE}\n{CHARTER.digest}\n".encode() + canonical(values)
    return canonical({"document": values, "signature": key("coordinator").sign(text), "type": document.TYPE})


@given(PAPERS)
def test_a_document_is_read_as_it_was_signed(document: Document) -> None:
    data = sealed(document)
    assert verify_document(data, type(document), CHARTER) == document
    assert data.isascii()
    assert data == canonical(json.loads(data))


@given(CHARTERS)
def test_a_charter_is_read_as_it_was_signed(charter: Charter) -> None:
    data = sign_document(charter, key("operator"), charter)
    assert open_charter(data) == charter
    assert open_charter(data).digest == charter.digest


def test_the_signed_text_is_what_the_documentation_says() -> None:
    data = json.loads(sealed(mode()))
    text = (
        f"shoal-document-1\nmoderecord\n{CHARTER.digest}\n"
        f'{{"base_sha256":"{SHA}","base_version":7,"job":"digits","mode":"gossip","seq":1,'
        '"signer":"coordinator","term":3,"why":"the coordinator is silent"}'
    )
    assert data["signature"] == key("coordinator").sign(text.encode())


@pytest.mark.parametrize("document", documents(), ids=label)
def test_every_flipped_bit_is_refused(document: Document) -> None:
    data = sealed(document)
    for place in range(len(data)):
        for bit in range(8):
            spoilt = bytearray(data)
            spoilt[place] ^= 1 << bit
            assert reads(bytes(spoilt), type(document)) in {"trust.document", "trust.signature", "trust.job"}


@given(PAPERS, st.data())
def test_every_changed_field_is_refused(document: Document, data: st.DataObject) -> None:
    other = data.draw(EACH[type(document)])
    name = data.draw(st.sampled_from([field.name for field in dataclasses.fields(document)]))
    values = json.loads(sealed(document))
    changed = json.loads(canonical(dataclasses.asdict(other)))[name]
    if values["document"][name] != changed:
        values["document"][name] = changed
        assert reads(canonical(values), type(document)) in {"trust.document", "trust.signature"}


@pytest.mark.parametrize("document", documents(), ids=label)
def test_the_same_in_another_spelling_is_refused(document: Document) -> None:
    data = sealed(document)
    values = json.loads(data)
    turned = {**values, "document": dict(reversed(values["document"].items()))}
    spellings = [
        json.dumps(values).encode(),  # with space
        json.dumps(turned, separators=(",", ":")).encode(),
        data + b"\n",
        b"\xef\xbb\xbf" + data,
        data.replace(b'"document":', b'"document":{},"document":', 1),
        data.replace(b"digits", b"d\\u0069gits", 1),
        data.replace(b'"type":', b'"more":1,"type":', 1),
        data.decode().encode("utf-16"),
    ]
    assert {reads(one, type(document)) for one in spellings} == {"trust.document"}


def test_no_document_passes_for_another_type() -> None:
    for document in documents():
        for kind in {type(one) for one in documents()} - {type(document)}:
            assert reads(sealed(document), kind) == "trust.document"
    values = json.loads(sealed(mode()))
    text = f"shoal-document-1\nmanifest\n{CHARTER.digest}\n".encode() + canonical(values["document"])
    values["signature"] = key("coordinator").sign(text)
    assert reads(canonical(values), ModeRecord) == "trust.signature"


def test_a_document_of_another_job_is_refused() -> None:
    other = replace(CHARTER, job="mnist")
    foreign = sign_document(replace(roster(), job="mnist"), key("coordinator"), other)
    assert reads(foreign, Roster) == "trust.job"
    again = replace(CHARTER, config_sha=SHA[::-1])  # the job was removed, and made again under its old name
    assert reads(sealed(roster()), Roster, again) == "trust.signature"


@pytest.mark.parametrize("document", documents(), ids=label)
@pytest.mark.parametrize("name", ["coordinator", "operator", "a"])
def test_a_document_counts_if_its_signer_may_sign_it(document: Document, name: str) -> None:
    operators = isinstance(document, Charter | Invitation) or getattr(document, "signer", "") == "operator"
    right = name == ("operator" if operators else "coordinator")
    assert code_of(lambda: sign_document(document, key(name), CHARTER)) == ("taken" if right else "trust.signer")
    values = json.loads(sealed(document))
    root = "root" if isinstance(document, Charter) else CHARTER.digest
    values["signature"] = key(name).sign(
        f"shoal-document-1\n{document.TYPE}\n{root}\n".encode() + canonical(values["document"])
    )
    assert reads(canonical(values), type(document)) == ("taken" if right else "trust.signature")


@pytest.mark.parametrize("field", ["job", "version", "peers", "revoked_peer_ids"])
@pytest.mark.parametrize("value", [None, True, 1.0, -1, 2**53 + 1, 10**19, 10**25, "", "A", [1], [[]], {}, [{}]])
def test_a_field_out_of_range_is_refused_even_if_signed(field: str, value: object) -> None:
    assert reads(forged(roster(), lambda values: values.update({field: value})), Roster) == "trust.document"


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda v: v["peers"].reverse(), id="peers out of order"),
        pytest.param(lambda v: v["peers"].append(v["peers"][-1]), id="a peer twice"),
        pytest.param(lambda v: v["peers"][0].update(v["peers"][1], node="a"), id="a key twice"),
        pytest.param(lambda v: v["peers"][0].update(peer_id=key("z").peer_id), id="another key's peer id"),
        pytest.param(lambda v: v["peers"][0].update(public_key=key("z").public_key), id="another peer id's key"),
        pytest.param(
            lambda v: v["peers"][0].update(node=HUB) or v["peers"].sort(key=lambda p: p["node"]), id="the hub"
        ),
        pytest.param(lambda v: v["peers"][0].update(urls=["ftp://a"]), id="an address of another kind"),
        pytest.param(lambda v: v["peers"][0].update(urls=["http://a"] * 5), id="many addresses"),
        pytest.param(lambda v: v["peers"][0].update(examples=-1), id="a negative weight"),
        pytest.param(lambda v: v["peers"][0].update(more=1), id="an unknown field"),
        pytest.param(lambda v: v["peers"][0].pop("is_reachable"), id="a missing field"),
        pytest.param(lambda v: v.update(more=1), id="an unknown field of the roster"),
        pytest.param(lambda v: v.update(revoked_peer_ids=[key("z").peer_id] * 2), id="revoked twice"),
        pytest.param(lambda v: v.update(revoked_peer_ids=[v["peers"][0]["peer_id"]]), id="in and revoked"),
        pytest.param(lambda v: v.update(job="dígits"), id="a name of other letters"),
        pytest.param(lambda v: v.pop("revoked_peer_ids"), id="a default left out"),
    ],
)
def test_a_roster_that_contradicts_itself_is_refused_even_if_signed(spoil: Callable[[dict[str, Any]], object]) -> None:
    assert reads(forged(roster(), spoil), Roster) == "trust.document"


def test_a_refusal_says_what_is_wrong() -> None:
    with pytest.raises(Refused, match=r"roster: peers\.0\.more: Unexpected"):
        verify_document(forged(roster(), lambda values: values["peers"][0].update(more=1)), Roster, CHARTER)
    with pytest.raises(Refused, match=r"roster: version: Input should be a valid integer"):
        verify_document(forged(roster(), lambda values: values.update(version="1")), Roster, CHARTER)
    with pytest.raises(Refused, match="a roster was expected, not a moderecord"):
        verify_document(sealed(mode()), Roster, CHARTER)


def test_what_no_reader_would_take_is_not_signed() -> None:
    wrong = [
        replace(roster(), peers=(peer("b"), peer("a"))),
        replace(cert(), peer_id=key("z").peer_id),
        replace(cert(), node=HUB),
        replace(mode(), seq=1.5),  # type: ignore[arg-type]
        replace(mode(), why="x" * 201),
    ]
    assert {code_of(lambda document=document: sealed(document)) for document in wrong} == {"trust.document"}


def test_long_documents_are_refused_before_they_are_parsed() -> None:
    for document in documents():
        assert reads(b"[" * (document.BYTES_MAX + 1), type(document)) == "trust.too-large"
        assert reads(b"[" * document.BYTES_MAX, type(document)) == "trust.document"
    assert reads(b'{"a":' * 100_000, Roster) == "trust.document"


def test_the_largest_documents_fit() -> None:
    letters, wide = str.maketrans("0189", "abcd"), "\U0001f41f" * 200
    ids = [f"{n:020d}".translate(letters) for n in range(REVOKED_MAX)]
    one = replace(peer("a"), urls=("https://" + "u" * 200,) * 4, examples=2**53)
    inside = tuple(replace(one, node=f"{n:063d}", peer_id=ids[n]) for n in range(PEERS_MAX))
    largest = [
        replace(CHARTER, job="j" * 63, policy={f"{n:063d}": wide for n in range(64)}),
        replace(mode(), job="j" * 63, why=wide, signer="coordinator"),
        Roster("j" * 63, 2**53, inside, tuple(ids)),
        Manifest("j" * 63, 2**53, 2**53, SHA, (SHA,) * PEERS_MAX, 2**53),
    ]
    around = len(canonical({"document": "", "signature": "0" * 128, "type": "moderecord"}))
    assert [p.TYPE for p in largest if len(canonical(dataclasses.asdict(p))) + around > p.BYTES_MAX] == []


# Which of two holds


def test_the_newer_one_holds() -> None:
    assert supersedes(roster(2), roster(1))
    assert supersedes(mode(3, 2), mode(3, 1))
    assert supersedes(mode(4, 0), mode(3, 9))
    for one in (roster(), mode()):
        assert supersedes(one, None)
        assert not supersedes(one, one)


@pytest.mark.parametrize(
    ("new", "held", "code"),
    [
        (roster(1), roster(2), "trust.roster-old"),
        (roster(2), roster(2, "ab"), "trust.roster-forked"),
        (mode(3, 1), mode(3, 2), "trust.mode-old"),
        (mode(2, 9), mode(3, 1), "trust.mode-old"),
        (mode(3, 1, mode="server"), mode(3, 1), "trust.mode-forked"),
    ],
)
def test_an_older_or_contradicting_one_is_refused(new: Any, held: Any, code: str) -> None:
    assert code_of(lambda: supersedes(new, held)) == code


@given(
    st.lists(st.builds(mode, st.integers(0, 3), st.integers(0, 3), mode=MODES), min_size=1, max_size=12), st.randoms()
)
def test_peers_agree_in_whatever_order_they_hear(records: list[ModeRecord], random: Any) -> None:
    """As long as no two coordinators contradict each other."""
    one_each = list({(record.term, record.seq): record for record in records}.values())
    ends = []
    for _ in range(2):
        random.shuffle(one_each)
        held: ModeRecord | None = None
        for record in one_each:
            if code_of(lambda record=record, held=held: supersedes(record, held)) == "taken":
                held = record
        ends.append(held)
    assert ends[0] == ends[1] == max(one_each, key=lambda record: (record.term, record.seq))


def test_a_certificate_runs_out_by_a_clock_that_may_be_a_day_off() -> None:
    document = cert(not_after=NOW)
    assert CLOCK_SLACK_S == DAY
    assert not document.expired(NOW + DAY)
    assert document.expired(NOW + DAY + 1)
