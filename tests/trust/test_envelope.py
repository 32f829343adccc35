"""A request or an answer that was changed anywhere is refused."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import Refused
from shoal.trust.envelope import (
    SignedAnswer,
    SignedRequest,
    check_answer,
    check_request,
    read_answer,
    read_request,
    sha256,
)
from tests.trust.job import BODY, CHARTER, SHA, arrived, ask, key, signer
from tests.trust.test_documents import code_of

PATHS = st.from_regex(r'/[!-"$->@-~]{0,40}', fullmatch=True)
QUERIES = st.from_regex(r'[!-"$-~]{0,40}', fullmatch=True)
COUNTS = st.integers(1, 2**63 - 1)
IDS = st.sampled_from([key(str(n)).peer_id for n in range(9)])
DIGESTS = st.binary(max_size=9).map(sha256)
REQUESTS = st.builds(
    SignedRequest,
    method=st.sampled_from(["GET", "PUT", "POST"]),
    path=PATHS,
    query=QUERIES,
    sender=IDS,
    to=IDS,
    job=st.sampled_from(["digits", "mnist"]),
    process_number=COUNTS,
    seq=COUNTS,
    digest=DIGESTS,
)
ANSWERS = st.builds(SignedAnswer, st.integers(100, 599), IDS, DIGESTS)


def checked(request: SignedRequest, name: str = "b") -> str:
    return code_of(lambda: check_request(request, key(name).public_key, CHARTER))


def test_a_request_arrives_as_it_was_signed() -> None:
    said = ask(signer())
    assert arrived(said) == said
    assert checked(said) == "taken"
    assert checked(said, "c") == "trust.signature"


@given(REQUESTS)
def test_headers_carry_every_field(request: SignedRequest) -> None:
    signed = replace(request, signature=key("b").sign(request.lines(CHARTER)))
    assert arrived(signed) == signed
    assert checked(signed) == "taken"


@given(REQUESTS, REQUESTS)
def test_different_requests_are_different_texts(one: SignedRequest, other: SignedRequest) -> None:
    assert (one == other) == (one.lines(CHARTER) == other.lines(CHARTER))


@given(REQUESTS, REQUESTS, st.sampled_from([field.name for field in fields(SignedRequest)]))
def test_every_changed_field_is_refused(one: SignedRequest, other: SignedRequest, name: str) -> None:
    signed, foreign = (replace(r, signature=key("b").sign(r.lines(CHARTER))) for r in (one, other))
    changed = replace(signed, **{name: getattr(foreign, name)})
    assert checked(changed) == ("taken" if changed == signed else "trust.signature")


def test_every_flipped_bit_is_refused() -> None:
    said = ask(signer())
    values = {"method": said.method, "path": said.path, "query": said.query, **said.headers()}
    for name, value in values.items():
        for place in range(len(value)):
            for bit in range(7):
                letter = chr(ord(value[place]) ^ 1 << bit)
                found = {**values, name: value[:place] + letter + value[place + 1 :]}
                line = [found.pop(part) for part in ("method", "path", "query")]

                def comes(line: list[str] = line, found: dict[str, str] = found) -> None:
                    check_request(read_request(line[0], line[1], line[2], found.items()), key("b").public_key, CHARTER)

                assert code_of(comes) in {"trust.head", "trust.signature"}, (name, letter)


def test_headers_may_come_in_any_order_case_and_company() -> None:
    said = ask(signer())
    mixed = [("Accept", "*/*"), *((name.upper(), value) for name, value in reversed(said.headers().items()))]
    mixed += [("shoal-protocol", "1"), ("from", "nobody")]
    assert read_request(said.method, said.path, said.query, mixed) == said


@pytest.mark.parametrize("name", list(ask(signer()).headers()))
def test_a_header_comes_once(name: str) -> None:
    said = ask(signer())
    headers = list(said.headers().items())
    twice = [*headers, (name.lower(), said.headers()[name])]
    missing = [(other, value) for other, value in headers if other != name]
    for wrong in (twice, missing):
        with pytest.raises(Refused) as caught:
            read_request(said.method, said.path, said.query, wrong)
        assert caught.value.code == "trust.head"
        assert name in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("Shoal-Seq", text) for text in ["0", "-1", "+1", "01", "1.0", "1e3", " 1", "1\n", "", "١", str(2**63)]),
        *(("Shoal-Process", text) for text in ["0", "9" * 5000, "0x1"]),
        *(("Shoal-From", text) for text in ["A" * 20, "a" * 19, "a" * 21, "1" * 20, ""]),
        *(("Shoal-To", text) for text in ["*", "é" * 20]),
        *(("Shoal-Job", text) for text in ["", "Digits", "a/b", "a" * 64, "digits\n"]),
        *(("Shoal-Digest", text) for text in [SHA.upper(), SHA[1:], SHA + "0", ""]),
        *(("Shoal-Signature", text) for text in ["", "0", "g" * 128, "0" * 127]),
    ],
)
def test_a_malformed_header_is_refused(name: str, value: str) -> None:
    said = ask(signer())
    headers = {**said.headers(), name: value}
    assert code_of(lambda: read_request(said.method, said.path, said.query, headers.items())) == "trust.head"


@pytest.mark.parametrize(
    "line",
    [
        *(("get", "/", ""), ("", "/", ""), ("GET\n", "/", ""), ("A" * 17, "/", "")),
        *(("GET", path, "") for path in ["", "a", "/ ", "/?", "/#", "/é", "/\n", "/" * 2049]),
        *(("GET", "/", query) for query in [" ", "#", "\n", "é", "a" * 2049]),
    ],
    ids=repr,
)
def test_what_stands_on_no_request_line_is_neither_signed_nor_taken(line: tuple[str, str, str]) -> None:
    said = signer()
    assert code_of(lambda: said.request(key("a").peer_id, *line, sha256(BODY))) == "trust.head"
    assert code_of(lambda: read_request(*line, ask(said).headers().items())) == "trust.head"
    assert said.request(key("a").peer_id, "GET", "/?"[:1], "a=?", sha256(b"")).seq == 2  # none was used up


def test_numbers_rise() -> None:
    said = signer(process_number=7)
    assert [(one.process_number, one.seq) for one in (ask(said), ask(said), ask(said))] == [(7, 1), (7, 2), (7, 3)]


def test_the_signed_text_is_what_the_documentation_says() -> None:
    said = ask(signer(process_number=2))
    me, you, body = key("b").peer_id, key("a").peer_id, hashlib.sha256(BODY).hexdigest()
    path, query = "/p2p/x/b.1.7", "slot=1&q=%20"
    text = f"shoal-request-1\n{CHARTER.digest}\nPUT\n{path}\n{query}\n{me}\n{you}\ndigits\n2\n1\n{body}"
    assert said.signature == key("b").sign(text.encode())
    answer = signer("a").answer(said, 409, SHA)
    answered = f"shoal-answer-1\n{hashlib.sha256(text.encode()).hexdigest()}\n409\n{you}\n{SHA}"
    assert answer.signature == key("a").sign(answered.encode())


# Answers


def accepted(answer: SignedAnswer, request: SignedRequest, name: str = "a") -> str:
    return code_of(lambda: check_answer(answer, request, key(name).public_key, CHARTER))


def test_an_answer_is_to_one_request() -> None:
    said = signer()
    one, other = ask(said), ask(said)  # they differ in their numbers alone
    answer = signer("a").answer(one, 200, sha256(b"mine"))
    assert read_answer(200, answer.headers().items()) == answer
    assert accepted(answer, one) == "taken"
    assert accepted(answer, other) == "trust.signature"
    assert accepted(answer, replace(one, digest=SHA)) == "trust.signature"
    assert accepted(answer, one, "c") == "trust.signature"


@given(REQUESTS, ANSWERS, ANSWERS, st.sampled_from([field.name for field in fields(SignedAnswer)]))
def test_every_changed_field_of_an_answer_is_refused(
    request: SignedRequest, one: SignedAnswer, other: SignedAnswer, name: str
) -> None:
    signed, foreign = (replace(a, signature=key("a").sign(a.lines(request, CHARTER))) for a in (one, other))
    changed = replace(signed, **{name: getattr(foreign, name)})
    assert accepted(changed, request) == ("taken" if changed == signed else "trust.signature")


def test_a_signed_request_is_neither_an_answer_nor_a_document() -> None:
    said = ask(signer())
    for text in (b"shoal-answer-1", b"shoal-document-1"):
        assert not said.lines(CHARTER).startswith(text)
    other = replace(CHARTER, config_sha=SHA[::-1])  # the same job made again
    assert code_of(lambda: check_request(said, key("b").public_key, other)) == "trust.signature"
