"""Hostile bytes give a typed error or a genuine document, request or snapshot.

The counts stand in the log: `pytest tests/trust/test_hostile.py --log-cli-level=INFO`.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from random import Random

from shoal.core.errors import NotAllowed, Refused, ShoalError, StorageFailed
from shoal.trust.documents import KINDS, Charter, canonical, open_charter, verify_document
from shoal.trust.envelope import check_answer, check_request, read_answer, read_request
from shoal.trust.request_verifier import RequestVerifier
from tests.trust.job import CHARTER, NOW, ask, cert, come, documents, gate, key, sealed, signer
from tests.wire.mutations import NASTY, spoilt_bytes, spoilt_json

log = logging.getLogger(__name__)

CASES = 5000
SNAPSHOTS = 1000
SEED = 1


def note(counts: Counter[str], error: ShoalError) -> None:
    assert error.hint
    assert len(error.message) < 1000
    error.message.encode()  # fit for a log
    counts[error.code] += 1


def test_mutated_documents_are_refused() -> None:
    random, counts = Random(SEED), Counter[str]()
    corpus = [sealed(document) for document in documents()]
    genuine = set(corpus)
    for case in range(CASES):
        data = random.choice(corpus)
        spoilt = spoilt_bytes(data, corpus, random) if case % 2 else spoilt_json(data, random)
        kind = KINDS[json.loads(data)["type"]]
        try:
            (open_charter(spoilt) if kind is Charter else verify_document(spoilt, kind, CHARTER))
            assert spoilt in genuine
            counts["taken"] += 1
        except (NotAllowed, Refused) as error:
            note(counts, error)
    log.info("%d papers: %s", CASES, dict(counts))
    assert counts["trust.document"] > CASES / 2
    assert counts["trust.signature"] > 0


def test_mutated_documents_with_a_valid_signature_are_refused() -> None:
    """As a coordinator might that is not ours."""
    random, counts = Random(SEED), Counter[str]()
    corpus = [json.loads(sealed(document)) for document in documents() if not isinstance(document, Charter)]
    for _ in range(CASES):
        values = random.choice(corpus)
        head, kind = f"shoal-document-1\n{values['type']}\n{CHARTER.digest}\n".encode(), KINDS[values["type"]]
        body = spoilt_json(canonical(values["document"]), random)
        signature = key("operator" if b'"operator"' in body else "coordinator").sign(head + body)
        rest = b'"signature":"' + signature.encode() + b'","type":"' + values["type"].encode() + b'"}'
        try:
            document = verify_document(b'{"document":' + body + b"," + rest, kind, CHARTER)
            assert sealed(document) == b'{"document":' + body + b"," + rest  # accepted bytes are canonical
            counts["taken"] += 1
        except (NotAllowed, Refused) as error:
            note(counts, error)
    log.info("%d signed papers: %s", CASES, dict(counts))
    assert counts["trust.document"] > CASES / 2
    assert 0 < counts["taken"] < CASES / 4


def spoilt_text(text: str, random: Random) -> str:
    match random.randrange(4):
        case 0:
            return random.choice(NASTY)
        case 1:
            return text[: random.randrange(len(text) + 1)]
        case 2:
            return text + random.choice(["\n", "\0", "\r\n", "0", "é", "\ud800", ",", text])
        case _:
            place = random.randrange(len(text) + 1)
            return text[:place] + chr(random.randrange(300)) + text[place + 1 :]


def test_mutated_requests_and_answers_are_refused() -> None:
    random, counts = Random(SEED), Counter[str]()
    said = ask(signer())
    answer = signer("a").answer(said, 200, said.digest)
    for case in range(CASES):
        row = list((answer if case % 3 == 0 else said).headers().items())
        line = [said.method, said.path, said.query]
        for _ in range(random.randint(1, 2)):
            place = random.randrange(len(row) + 3)
            if place < 3:
                line[place] = spoilt_text(line[place], random)
                continue
            name, value = row[place - 3]
            row[place - 3] = (
                (spoilt_text(name, random), value) if random.random() < 0.2 else (name, spoilt_text(value, random))
            )
        try:
            if case % 3 == 0:
                reply = read_answer(200, row)
                check_answer(reply, said, key("a").public_key, CHARTER)
                assert reply == answer
            else:
                found = read_request(line[0], line[1], line[2], row)
                check_request(found, key("b").public_key, CHARTER)
                assert found == said
            counts["taken"] += 1
        except (NotAllowed, Refused) as error:
            note(counts, error)
    log.info("%d requests and answers: %s", CASES, dict(counts))
    assert counts["trust.head"] > CASES / 2
    assert counts["trust.signature"] > CASES / 50


def test_mutated_snapshots_are_refused() -> None:
    random, counts = Random(SEED), Counter[str]()
    keeper = gate()
    keeper.introduce(sealed(cert()), NOW)
    for name in "bcd":
        come(keeper, ask(signer(name)))
    kept = json.dumps(keeper.snapshot()).encode()
    for _ in range(SNAPSHOTS):
        try:
            spoilt = json.loads(spoilt_json(kept, random))
        except (ValueError, RecursionError):  # no JSON: not this code's business
            counts["no JSON"] += 1
            continue
        try:
            found = RequestVerifier.restore(CHARTER, key("a").peer_id, spoilt)
            assert {peer.node for peer in found.members()} <= set("abcd")
            counts["taken"] += 1
        except StorageFailed as error:
            note(counts, error)
    log.info("%d snapshots: %s", SNAPSHOTS, dict(counts))
    assert counts["trust.snapshot"] > SNAPSHOTS / 2
