"""Messages of peers arrive unchanged, and nothing else arrives at all."""

import dataclasses
import json
import logging
from dataclasses import MISSING
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidPayload, Refused
from shoal.core.protocol import peer_message as said
from shoal.core.protocol.message import BlobRef, Poll, Report
from shoal.wire import codec, peer_codec
from shoal.wire.peer_codec import MessageBatch
from tests.wire import mutations
from tests.wire.peer_strategies import BATCHES, PEER_MESSAGES
from tests.wire.test_hostile import SMALL_PEAK_BYTES, Meter

log = logging.getLogger(__name__)

CASES = 6000
REF = BlobRef("0123456789abcdef" * 4, 19512)
ID = ("a", 3, 17)
SEEN = {"a": 3, "b": 0}
NEWS = (said.MemberUpdate("b", "suspect", 4, ("a", "c")), said.MemberUpdate("c", "dead", 0))
SAMPLES: tuple[said.PeerMessage, ...] = (
    said.ExchangeRequest("a", ID),
    said.ExchangeGrant("b", ID),
    said.ExchangeDeny("b", ID, "in an exchange", 12.5),
    said.ExchangeOffer("a", ID, 359.0, 2.0**1000, REF, SEEN),
    said.ExchangeAccept("b", ID, 72.0, 1.0, REF, SEEN),
    said.ExchangeAbort("b", ID, "it never came"),
    said.ExchangeQuery("a", ID),
    said.ExchangeCommit("a", ID),
    said.ModelOffer("a", 4, REF, SEEN),
    said.PushShare("a", ID, 0.5, REF, SEEN),
    said.Received("b", ID),
    said.RingChunk("a", 4, 2, 1, 359.0, REF, SEEN),
    said.CoordinatorProbe("a", 3),
    said.CoordinatorStatus("a", 3, True, False, 9, REF),
    said.DeclareFailover("a", 3, 9, REF, "the hub is silent"),
    said.RelayRequest("a", Report("a", (1, 2), 3, 5.0, REF, {"train/loss": 0.5})),
    said.RelayResponse("a", Poll("b")),
    said.PeerHello("a", 1, NEWS),
    said.Ping("a", 1, 7, NEWS),
    said.PingAck("a", 1, 7, "a", NEWS),
    said.PingRequest("a", 1, 7, "b", NEWS),
    said.PingNack("a", 1, 7, "b", NEWS),
    said.StateSync("a", 1, NEWS),
)


def heads() -> list[bytes]:
    rich = [
        peer_codec.encode(MessageBatch("digits", (SAMPLES[3],))),
        peer_codec.encode(MessageBatch("digits", (SAMPLES[18], SAMPLES[2]))),
    ]
    return [*(peer_codec.encode(MessageBatch("digits", (one,))) for one in SAMPLES), *rich * 4]


def values_of(message: said.PeerMessage) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(peer_codec.encode(MessageBatch("digits", (message,)))[4:])["messages"][0]
    return found


def refused(*messages: Any, **more: Any) -> str:
    """The code with which a head of these messages is refused."""
    text = json.dumps({"shoal": 1, "job": "digits", "messages": list(messages), **more}).encode()
    with pytest.raises(InvalidPayload) as caught:
        peer_codec.decode(text)
    assert len(caught.value.message) < 500
    return caught.value.code


def read(data: bytes) -> None:
    """Return a receiver's result for a head, and check that accepted heads are canonical."""
    length = peer_codec.head_bytes(data[:4])
    if len(data) != 4 + length:
        raise InvalidPayload("cut short, or too long", code="head.length")
    batch = peer_codec.decode(data[4:])
    again = peer_codec.encode(batch)
    assert peer_codec.encode(peer_codec.decode(again[4:])) == again
    assert batch.blobs == peer_codec.decode(again[4:]).blobs


def test_every_message_is_tried() -> None:
    kinds = set(get_args(said.PeerMessage))
    assert set(PEER_MESSAGES) == kinds == {type(one) for one in SAMPLES}
    assert {field.name for kind in kinds for field in dataclasses.fields(kind)} - {"message"} == set(peer_codec._CHECKS)


@given(BATCHES)
def test_a_batch_comes_back(found: tuple[str, tuple[said.PeerMessage, ...]]) -> None:
    sent = MessageBatch(*found)
    data = peer_codec.encode(sent)
    assert peer_codec.head_bytes(data[:4]) == len(data) - 4
    came = peer_codec.decode(data[4:])
    assert repr(came) == repr(sent)  # the same in types and signs too, and where a relayed metric is NaN
    assert [type(one) for one in came.messages] == [type(one) for one in sent.messages]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda one: type(one).__name__)
def test_a_batch_names_its_blobs(message: said.PeerMessage) -> None:
    carries = isinstance(
        message, said.ExchangeOffer | said.ExchangeAccept | said.ModelOffer | said.PushShare | said.RingChunk
    )
    assert MessageBatch("digits", (message,)).blobs == ([REF] if carries else [])


def test_mutated_heads_end_in_typed_errors() -> None:
    random, corpus, meter = Random(1), heads(), Meter()
    for _ in range(CASES):
        data = mutations.frame(corpus, random)
        meter.run(lambda data=data: read(data))
    meter.show("mutated batches")
    assert meter.peak < SMALL_PEAK_BYTES
    assert meter.lines < 2 * peer_codec.HEAD_BYTES_MAX
    wanted = {f"head.{what}" for what in ("length", "invalid", "type", "name", "range", "digest")}
    assert {"taken", "protocol.unknown"} | wanted <= set(meter.codes)
    assert meter.codes["taken"] < CASES / 2


@pytest.mark.parametrize("message", SAMPLES, ids=lambda one: type(one).__name__)
def test_unknown_and_missing_fields_are_refused(message: said.PeerMessage) -> None:
    values = values_of(message)
    assert refused({**values, "more": 1}) == "head.invalid"
    usual = {one.name for one in dataclasses.fields(message) if one.default is not MISSING}
    for name in (
        values.keys() - usual - {"version_vector"} - ({"updates"} if not isinstance(message, said.StateSync) else set())
    ):
        left = {key: value for key, value in values.items() if key != name}
        assert refused(left) in ("head.invalid", "head.type")


WRONG = {
    "node": ["", "A", "a/b", "a" * 64, "a\n"],
    "of": ["", "A"],
    "target": ["../a"],
    "id": [["A", 1, 2], ["a", -1, 2], ["a", 1, 2**63], ["a", 1], [1, 1, 1], ["a", 1.0, 2], ["a", True, 2]],
    "weight": [-1, 1e16, "NaN", True, None],
    "mass": [-0.1, 1e16],
    "longest_step": [-1.0, "Infinity"],
    "wait_s": [-1.0, "Infinity", True],
    "norm": [-1.0, "Infinity"],
    "step_fraction": [-0.1, 1.01, "NaN"],
    "blob": [None, {"digest": "a" * 63, "nbytes": 1}, {"digest": "A" * 64, "nbytes": 1}, {"digest": "a" * 64}],
    "model": [{"digest": "a" * 64, "nbytes": 0}, 1],
    "round": [-1, 2**63, 1.0, True],
    "rounds": [-1, 2**63, 1.0, True],
    "step": [-1],
    "piece": [-1],
    "term": [-1],
    "version": [2**63],
    "incarnation": [-1, 2**63],
    "seq": [-1, "1"],
    "hears_hub": [1, "true"],
    "is_gossiping": [0],
    "why": ["x" * (peer_codec.TEXT_MAX + 1), 1],
    "group": ["x" * (peer_codec.TEXT_MAX + 1), 1],
    "version_vector": [
        {"A": 1},
        {"a": -1},
        {"a": 1.5},
        {f"p{n}": 1 for n in range(peer_codec.VERSION_VECTOR_MAX + 1)},
        [],
    ],
    "updates": [
        [{"node": "b", "state": "gone", "incarnation": 1, "suspected_by": []}],
        [{"node": "B", "state": "dead", "incarnation": 1, "suspected_by": []}],
        [{"node": "b", "state": "dead", "incarnation": -1, "suspected_by": []}],
        [{"node": "b", "state": "dead", "incarnation": 1, "suspected_by": ["a"] * (peer_codec.SUSPECTED_BY_MAX + 1)}],
        [{"node": "b", "state": "dead", "incarnation": 1, "suspected_by": ["A"]}],
        [{"node": "b", "state": "dead", "incarnation": 1, "suspected_by": []}] * (peer_codec.MEMBER_UPDATES_MAX + 1),
    ],
}


@pytest.mark.parametrize("field", WRONG)
def test_wrong_values_are_refused(field: str) -> None:
    assert set(WRONG) == set(peer_codec._CHECKS)
    kinds = [values_of(one) for one in SAMPLES if field in values_of(one)]
    assert kinds
    for values in kinds:
        for wrong in WRONG[field]:
            if field == "blob" or wrong is not None:
                assert refused({**values, field: wrong}).startswith("head.")


@pytest.mark.parametrize(
    "messages", [[], [1], [None], [[]], [{}], [{"type": "task"}], [{"type": "timer"}], [{"type": 1}]]
)
def test_no_other_messages_are_known(messages: list[Any]) -> None:
    assert refused(*messages) in ("head.invalid", "head.type")


def test_what_is_passed_on_is_checked_as_well() -> None:
    values = values_of(said.RelayRequest("a", Report("a", (1, 2), 3, 5.0)))
    for wrong in ({"type": "timer"}, {"type": "relay_request"}, {"type": "poll", "node": "A"}, 1, None):
        assert refused({**values, "message": wrong}).startswith("head.")
    assert refused({**values, "message": {**values["message"], "norm": 1.0}}) == "head.invalid"
    assert refused({**values, "node": 1}) == "head.invalid"


def test_a_batch_has_no_more_than_it_may() -> None:
    ping, swap = values_of(SAMPLES[18]), values_of(SAMPLES[3])
    peer_codec.decode(peer_codec.encode(MessageBatch("digits", (SAMPLES[18],) * peer_codec.MESSAGES_MAX))[4:])
    assert refused(*[ping] * (peer_codec.MESSAGES_MAX + 1)) == "head.invalid"
    assert refused(*[swap] * (peer_codec.BLOBS_MAX + 1)) == "head.invalid"
    assert refused(ping, more=1) == "head.invalid"
    with pytest.raises(Refused, match="protocol 2"):
        peer_codec.decode(json.dumps({"shoal": 2, "job": "digits", "messages": [ping]}).encode())
    with pytest.raises(InvalidPayload, match="1048576 bytes"):
        peer_codec.head_bytes((peer_codec.HEAD_BYTES_MAX + 1).to_bytes(4, "big"))


@given(st.lists(st.sampled_from(SAMPLES), max_size=150))
def test_what_fits_into_a_batch_is_taken(messages: list[said.PeerMessage]) -> None:
    while messages:
        count = peer_codec.fitting(messages)
        assert count > 0
        head = peer_codec.encode(MessageBatch("digits", tuple(messages[:count])))
        assert peer_codec.decode(head[4:]).messages == tuple(messages[:count])
        messages = messages[count:]


def test_a_head_is_written_as_the_document_says() -> None:
    data = peer_codec.encode(MessageBatch("digits", (said.ExchangeCommit("a", ID),)))
    text = b'{"shoal":1,"job":"digits","messages":[{"type":"exchange_commit","node":"a","id":["a",3,17]}]}'
    assert data == len(text).to_bytes(4, "big") + text
    assert codec.PROTOCOLS[-1] == 1
