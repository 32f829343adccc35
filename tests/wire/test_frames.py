"""Messages arrive unchanged, and nothing else arrives at all."""

import dataclasses
import json
import math
import sys
from base64 import b64encode
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidPayload, Refused
from shoal.core.protocol import machine, message
from shoal.core.protocol.message import Report
from shoal.wire import codec
from shoal.wire.head_size import head_size
from tests.wire.strategies import EVENTS, JOBS, MEASURED, MESSAGES

DIGEST = "0123456789abcdef" * 4
BODY = {"digest": DIGEST, "nbytes": 9}
HEADS: dict[str, dict[str, Any]] = {
    "join": {"node": "a"},
    "poll": {"node": "a"},
    "coordinator_ping": {"node": "a", "term": 5},
    "task": {"id": [1, 2], "node": "a", "kind": "train", "version": 3, "seed": 4, "blob": BODY},
    "amendment": {"task": [1, 2], "revision": 1, "recall": True, "checks_allowed": 3},
    "task_status": {"node": "a", "task": [1, 2], "check": 3, "values": {"train/loss": 0.5}, "monitor_state": "AAEC"},
    "report": {"node": "a", "task": [1, 2], "version": 3, "weight": 5.0, "blob": BODY, "metrics": {"train/loss": 0.5}},
    "task_failed": {"node": "a", "task": [1, 2], "error": "no data"},
    "leave": {"node": "a"},
    "no_task": {"newest_task": [1, 2]},
    "ack": {"task": [1, 2], "counted": True, "why": ""},
    "coordinator_alive": {"term": 5},
    "pause": {"why": ""},
    "resume": {"why": ""},
    "stop": {"why": "", "when": "now", "model_differs": True},
    "switch_mode": {"to": "gossip", "why": ""},
    "change_settings": {"values": {"algorithm.lr": 0.5}, "why": ""},
    "drain_node": {"node": "a", "why": "", "withdraw": True},
}
OPTIONAL = {
    "blob",
    "reference",
    "metrics",
    "numbers",
    "revision",
    "recall",
    "checks_allowed",
    "values",
    "monitor_state",
    "why",
    "when",
    "gossip_rounds",
    "withdraw",
    "model_differs",
}

IDS = [None, 1, "1.2", {}, [], [1], [1, 2, 3], [1.0, 2], [True, 2], [1, "2"], [-1, 2], [1, -1], [2**63, 0], [0, 2**64]]
COUNTS = [None, True, False, "3", 3.0, 3.5, -1, 2**63, 10**19, [3], {}]
WORDS = [None, 1, True, 1.5, ["x"], {}]
NAMES = ("", "/a", " a", "a ", "-a", "a" * 65, 'a"b', "a\\b", "é", "a\n", "a\x00", "\ud800")
NO_METRICS: list[Any] = [
    *(None, 1, True, "", [], [["a", 1.0]]),
    *({"a": v} for v in (None, True, False, "", "1", "nan", "inf", "-NaN", "+Infinity", [1.0], {})),
    *({n: 1.0} for n in NAMES),
    {f"m{n}": 1.0 for n in range(521)},
]
NO_BLOBS: list[Any] = [
    *("", 1, True, [], {}, [DIGEST, 9], {"digest": DIGEST}, {"nbytes": 9}, BODY | {"more": 1}),
    *(BODY | {"nbytes": n} for n in (0, -1, True, 9.0, "9", None, 2**53 + 1, 10**19)),
    *(BODY | {"digest": d} for d in ("", DIGEST.upper(), DIGEST[1:], DIGEST + "0", DIGEST[1:] + "\n", 1, None)),
]
WRONG: dict[str, list[Any]] = {
    "node": [*WORDS, "", "A", "a b", "a/b", "a" * 64, "-a", ".", "a\n", "é", "\x00", "\ud800"],
    "id": IDS,
    "task": IDS,
    "newest_task": IDS,
    "gossip_rounds": [wrong for wrong in IDS if wrong is not None],
    "term": [*(wrong for wrong in COUNTS if wrong != -1), -2, 2**53 + 1],
    "to": [*WORDS, "", "Gossip", "away"],
    "version": COUNTS,
    "seed": COUNTS,
    "kind": [*WORDS, "", "Train", "pause"],
    "weight": [None, True, "5", "NaN", "Infinity", -1e-9, 1.0000001e15, 10**19, [5.0], {}],
    "blob": NO_BLOBS,
    "reference": NO_BLOBS,
    "metrics": [*NO_METRICS, *({"eval/examples": v} for v in (-1.0, 1.1e15, "NaN", "Infinity"))],
    "values": NO_METRICS,
    "numbers": [*NO_METRICS, {"a": "NaN"}, {"a": "Infinity"}],
    "revision": COUNTS,
    "checks_allowed": COUNTS,
    "check": COUNTS,
    "recall": [None, 0, 1, "true", [True]],
    "monitor_state": [*WORDS, "A", "AAE", "é", "AAEC ", "-_-_", b64encode(bytes(codec.STATE_BYTES_MAX + 1)).decode()],
    "error": [*WORDS, "\ud800"],
    "phase": [*WORDS, "fold", "Train"],
    "traceback": [*WORDS, "\ud800", "x" * 8001],
    "counted": [None, 0, 1, "true", [True]],
    "why": [*WORDS, "\ud800"],
    "when": [*WORDS, "", "later"],
    "model_differs": [None, 0, 1, "true", [True]],
    "withdraw": [None, 0, 1, "true", [True]],
}
RIGHT: dict[str, list[Any]] = {
    "node": ["a", "0", "a" * 63, "a.b_c-d"],
    "id": [[0, 0], [2**63 - 1, 2**63 - 1]],
    "version": [0, 2**63 - 1],
    "kind": ["init", "train", "evaluate", "gossip"],
    "gossip_rounds": [None, [0, 0], [2**63 - 1, 2**63 - 1]],
    "term": [0, 2**53],
    "to": ["gossip", "server"],
    "weight": [0, 0.0, 359, 1e15],
    "blob": [None, BODY | {"nbytes": 1}, BODY | {"nbytes": 2**53}],
    "metrics": [
        *({}, {f"m{n}": 1 for n in range(520)}, {"a" * 64: 1.0}, {"Top-5 of A/B (%)": 1.0}, {"eval/examples": 1e15}),
        *({"a": v} for v in ("NaN", "Infinity", "-Infinity", 0, -0.0, 5e-324)),
    ],
    "values": [{}, {"a": "NaN"}],
    "numbers": [{}, {"delta": 0.5}],
    "revision": [0, 2**63 - 1],
    "recall": [True, False],
    "monitor_state": ["", b64encode(bytes(codec.STATE_BYTES_MAX)).decode()],
    "when": ["now", "round"],
}


def framed(head: bytes | dict[str, Any], payload: bytes = b"") -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return len(text).to_bytes(4, "big") + text + payload


def head_of(kind: str, /, **changes: Any) -> dict[str, Any]:
    return {"shoal": 1, "job": "digits", "type": kind, **HEADS[kind], **changes}


def refused(data: bytes) -> str:
    """The code with which `decode` refuses."""
    with pytest.raises(InvalidPayload) as caught:
        codec.decode(data)
    assert len(caught.value.message) < 500
    return caught.value.code


def verdict(data: bytes) -> str:
    """The code with which `decode` refuses, or "taken"."""
    try:
        codec.decode(data)
    except InvalidPayload as error:
        return error.code if len(error.message) < 500 else "too long a message"
    return "taken"


# Messages arrive


def test_every_message_and_event_is_tried() -> None:
    assert set(MESSAGES) == set(get_args(message.Message)) == set(codec.MESSAGES.values())
    assert (
        set(EVENTS)
        == set(MESSAGES) | {machine.Timer, machine.Restarted, machine.NodeLost}
        == set(codec._EVENTS.values())
    )
    assert set(HEADS) == set(codec.MESSAGES)
    fields = {field.name for kind in MESSAGES for field in dataclasses.fields(kind)}
    assert set(WRONG) == fields - set(codec.NEVER_SENT)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(st.data())
def test_a_frame_comes_back(kind: type, data: st.DataObject) -> None:
    sent = codec.Frame(data.draw(JOBS), data.draw(MESSAGES[kind]), data.draw(st.binary(max_size=40)))
    came = codec.decode(codec.encode(sent))
    assert repr(came) == repr(sent)  # equal even where NaN is not, and the same in types and signs
    assert codec.encode(came) == codec.encode(sent)


@given(st.one_of(*MESSAGES.values()), JOBS)
def test_a_heads_length_is_known_without_encoding_it(found: message.Message, job: str) -> None:
    assert head_size(job, found) == len(codec.encode_head(job, found))


@given(JOBS, MEASURED)
def test_a_norm_never_travels(job: str, report: Report) -> None:
    data = codec.encode(codec.Frame(job, report))
    assert b'"norm"' not in data
    came = codec.decode(data).message
    assert isinstance(came, Report)
    assert came.norm == 0.0
    assert repr(came.with_norm(report.norm)) == repr(report)


@pytest.mark.parametrize("norm", [0.0, 0, 7.5, -1.0, "NaN", None])
def test_a_sender_may_not_tell_its_norm(norm: Any) -> None:
    assert refused(framed(head_of("report", norm=norm))) == "head.invalid"


@pytest.mark.parametrize("kind", ["join", "poll"])
@pytest.mark.parametrize("node_info", [{"tags": ["gpu"]}, {}, None])
def test_a_sender_may_not_say_here_what_it_is(kind: str, node_info: Any) -> None:
    assert refused(framed(head_of(kind, node_info=node_info))) == "head.invalid"
    sent = getattr(message, kind.title())("a", node_info=message.NodeInfo(("gpu",)))
    assert codec.decode(codec.encode(codec.Frame("j", sent))).message == dataclasses.replace(
        sent, node_info=message.NodeInfo()
    )


@given(st.one_of(*EVENTS.values()))
def test_an_event_comes_back_from_the_journal(event: machine.Event) -> None:
    """With the norm of a report; its other fields are written as in a frame."""
    line = json.dumps(codec.to_json(event), allow_nan=False)
    assert repr(codec.from_json(json.loads(line))) == repr(event)


@pytest.mark.parametrize("kind", ["timer", "restarted", "node_lost"])
def test_events_of_the_inside_do_not_come_by_frame(kind: str) -> None:
    node = {"node": "a"} if kind == "node_lost" else {}
    assert codec.from_json({"type": kind, **node}).type_name == kind
    assert refused(framed({"shoal": 1, "job": "digits", "type": kind, **node})) == "head.type"


def test_a_term_below_all_is_only_asked_with() -> None:
    assert verdict(framed(head_of("coordinator_ping", term=-1))) == "taken"
    assert refused(framed(head_of("coordinator_alive", term=-1))) == "head.range"


def test_a_frame_is_written_as_the_document_says() -> None:
    data = codec.encode(codec.Frame("digits", message.Poll("a"), b"body"))
    assert data == b"\x00\x00\x00\x33" + b'{"shoal":1,"job":"digits","type":"poll","node":"a"}' + b"body"


def test_what_is_usual_is_left_out() -> None:
    """A check in step costs a status and an amendment, and little else."""
    status = codec.encode_head("digits", message.TaskStatus("clinic-a", (1, 17), 12))
    amendment = codec.encode_head("digits", message.Amendment((1, 17), 11, checks_allowed=13))
    assert status[4:] == b'{"shoal":1,"job":"digits","type":"task_status","node":"clinic-a","task":[1,17],"check":12}'
    assert (
        amendment[4:]
        == b'{"shoal":1,"job":"digits","type":"amendment","task":[1,17],"revision":11,"checks_allowed":13}'
    )


# Nothing else arrives


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_as_it_should_be_is_taken(kind: str) -> None:
    assert type(codec.decode(framed(head_of(kind))).message) is codec.MESSAGES[kind]


@pytest.mark.parametrize("kind", HEADS)
def test_unknown_and_missing_fields_are_refused(kind: str) -> None:
    for name in ("more", "Node", "", "weight ", "type2", "x" * 60_000):
        assert refused(framed(head_of(kind, **{name: 1}))) == "head.invalid"
    for name in HEADS[kind]:
        left = {field: value for field, value in head_of(kind).items() if field != name}
        if name in OPTIONAL and (kind, name) != ("change_settings", "values"):
            codec.decode(framed(left))
        else:
            assert refused(framed(left)) == "head.invalid"


@pytest.mark.parametrize("field", WRONG)
def test_wrong_values_are_refused(field: str) -> None:
    for kind in (kind for kind, fields in HEADS.items() if field in fields):
        codec.decode(framed(head_of(kind)))
        taken = [v for v in WRONG[field] if not verdict(framed(head_of(kind, **{field: v}))).startswith("head.")]
        assert taken == []


@pytest.mark.parametrize("field", RIGHT)
def test_values_at_the_limits_are_taken(field: str) -> None:
    for kind in (kind for kind, fields in HEADS.items() if field in fields):
        for value in RIGHT[field]:
            codec.decode(framed(head_of(kind, **{field: value})))


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1e400", "-1e999", "9" * 5000, "-" + "9" * 20])
@pytest.mark.parametrize("place", ['"weight":5.0', '"version":3', '{"train/loss":0.5}'])
def test_no_number_is_not_finite_or_endless(token: str, place: str) -> None:
    text = json.dumps(head_of("report"), separators=(",", ":"))
    assert place in text
    name = place.partition(":")[0]
    closing = "}" * place.count("}")
    assert refused(framed(text.replace(place, f"{name}:{token}{closing}").encode())) == "head.invalid"


@pytest.mark.parametrize(("text", "meant"), [("NaN", math.nan), ("Infinity", math.inf), ("-Infinity", -math.inf)])
def test_a_diverged_metric_is_seen(text: str, meant: float) -> None:
    found = codec.decode(framed(head_of("report", metrics={"train/loss": text}))).message
    assert isinstance(found, Report)
    assert repr(found.metrics["train/loss"]) == repr(meant)
    assert json.loads(codec.encode_head("a", found)[4:])["metrics"] == {"train/loss": text}


@pytest.mark.parametrize("kind", ["", "Report", "norm", "frame", None, 1, True, [], {}, "x" * 60_000])
def test_no_other_type_is_known(kind: Any) -> None:
    assert refused(framed(head_of("poll", type=kind))) == "head.type"


@pytest.mark.parametrize("job", [None, 1, True, "", "A", "a" * 64, "a/b", "../a", "a\n", [], {}])
def test_no_other_job_is_a_name(job: Any) -> None:
    assert refused(framed(head_of("poll", job=job))) == "head.name"


@pytest.mark.parametrize("key", ["type", "job"])
def test_half_a_character_stands_nowhere(key: str) -> None:
    assert refused(framed(head_of("poll", **{key: "\ud800"}))) == "head.invalid"


@pytest.mark.parametrize("protocol", [0, 2, -1, 1.0, True, "1", None, [1], {}, 10**19])
def test_another_protocol_is_refused_as_such(protocol: Any) -> None:
    with pytest.raises(Refused, match="this side speaks 1") as caught:
        codec.decode(framed(head_of("poll", shoal=protocol)))
    assert caught.value.code == "protocol.unknown"
    assert caught.value.hint


@pytest.mark.parametrize("key", ['"version":3', '"shoal":1', '"nbytes":9', '"train/loss":0.5', '"type":"report"'])
def test_a_key_stands_once(key: str) -> None:
    """Which of the two counts would be each reader's own choice."""
    text = json.dumps(head_of("report"), separators=(",", ":"))
    codec.decode(framed(text.encode()))
    assert text.count(key) == 1
    with pytest.raises(InvalidPayload, match="stands twice") as caught:
        codec.decode(framed(text.replace(key, f"{key},{key}").encode()))
    assert caught.value.code == "head.invalid"


def test_a_head_without_protocol_is_refused() -> None:
    with pytest.raises(Refused, match="protocol None"):
        codec.decode(framed({"job": "digits", "type": "poll", "node": "a"}))


@pytest.mark.parametrize(
    "text", [b"[]", b"11", b'""', b"null", b"true", b"  ", b"{ ", b"{}{}", b"{'a':1}", b'{"a":1,}']
)
def test_a_head_is_an_object(text: bytes) -> None:
    assert refused(framed(text)) == "head.invalid"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_a_head_is_utf_8(encoding: str) -> None:
    assert refused(framed(json.dumps(head_of("poll")).encode(encoding))) == "head.invalid"


def test_surrogates_are_no_utf_8() -> None:
    text = json.dumps(head_of("task_failed", error="\ud83d\ude00"), ensure_ascii=False)
    assert refused(framed(text.encode("utf-8", "surrogatepass"))) == "head.invalid"
    assert codec.decode(framed(head_of("task_failed", error="\N{GRINNING FACE}"))).message == message.TaskFailed(
        "a", (1, 2), "\N{GRINNING FACE}"
    )


def test_the_length_of_a_head() -> None:
    text = json.dumps(head_of("poll")).encode()
    for length in (0, 1, len(text) + 1, codec.HEAD_BYTES_MAX + 1, 2**31, 2**32 - 1):
        assert refused(length.to_bytes(4, "big") + text) == "head.length"
    for length in (2, len(text) - 1):
        assert refused(length.to_bytes(4, "big") + text) == "head.invalid"
    for cut in range(4):
        assert refused(framed(text)[:cut]) == "head.length"
    full = text.ljust(codec.HEAD_BYTES_MAX)
    assert codec.decode(framed(full)).message == message.Poll("a")
    assert refused(framed(full + b" ")) == "head.length"


def test_a_longer_payload_travels_alone() -> None:
    most = b"x" * codec.INLINE_BYTES_MAX
    assert codec.decode(framed(head_of("poll"), most)).payload == most
    assert refused(framed(head_of("poll"), most + b"x")) == "head.length"


@pytest.mark.parametrize(("opening", "middle", "closing"), [("[", "", "]"), ("[", "1", "]"), ('{"a":', "{}", "}")])
def test_no_depth_is_too_deep(opening: str, middle: str, closing: str) -> None:
    limit = sys.getrecursionlimit()
    for depth in range(limit - 250, limit + 10):  # somewhere here reading just works, and writing does not
        text = json.dumps(head_of("poll", node="?")).replace('"?"', opening * depth + middle + closing * depth)
        assert refused(framed(text.encode())) == "head.invalid"


# Versions


@pytest.mark.parametrize("offered", [[1], [1, 2], [2, 1, 3], (1,), {1}, iter([1])])
def test_the_common_protocol_is_chosen(offered: Any) -> None:
    assert codec.negotiate(offered) == 1


def test_the_newest_common_protocol_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "PROTOCOLS", (1, 2, 3))
    assert codec.negotiate([4, 2, 1]) == 2
    assert json.loads(codec.encode_head("a", message.Poll("b"))[4:])["shoal"] == 3


@pytest.mark.parametrize("offered", [[], [2], [0, 2, 3], iter([7])])
def test_no_common_protocol_is_refused(offered: Any) -> None:
    with pytest.raises(Refused) as caught:
        codec.negotiate(offered)
    assert caught.value.code == "protocol.unknown"


def test_a_refusal_names_what_was_offered() -> None:
    with pytest.raises(Refused, match=r"speaks protocol \[7\], this one \[1\]"):
        codec.negotiate(iter([7]))
