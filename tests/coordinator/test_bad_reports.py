"""Reports that may not count: each is refused with its cause and its remedy, and leaves everything as it was."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from shoal.core.protocol.metrics import REPORTED_MAX
from shoal.wire import codec
from tests.support.coordinator import Inside, inside
from tests.support.node import displacement
from tests.support.scenario import SIZE, ZEROS, Stage, problem, set_up

Send = Callable[[Stage], httpx.Response]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One job for all of this file: a refused report changes nothing, so the cases are independent."""
    with inside(tmp_path_factory.mktemp("bad") / "data", body_bytes_max=1_000_000) as running:
        made = set_up(running)
        yield made
        made.close()


def with_value(place: int, value: float) -> np.ndarray[Any, Any]:
    values = ZEROS.copy()
    values[place] = value
    return values


def raw(content: bytes, **headers: str) -> Send:
    return lambda stage: stage.send("n0", "POST", f"/jobs/{stage.job}/reports", content=content, headers=headers)


def with_head(text: str) -> Send:
    head = text.encode("utf-8", "surrogatepass")
    return raw(len(head).to_bytes(4, "big") + head)


def of_metrics(metrics: Any) -> Send:
    return lambda stage: stage.report(metrics=metrics)


def of_payload(data: bytes) -> Send:
    return lambda stage: stage.report(data)


def chunked(stage: Stage) -> httpx.Response:
    content = b"".join(stage.frame())
    return stage.send("n0", "POST", f"/jobs/{stage.job}/reports", content=iter([content]))


def digest_of_another(stage: Stage) -> httpx.Response:
    head, _ = stage.frame(ZEROS)
    _, data = stage.frame(with_value(0, 1.0))
    return stage.send("n0", "POST", f"/jobs/{stage.job}/reports", content=head + data)


def truncated(stage: Stage) -> httpx.Response:
    head, data = stage.frame()
    return stage.send("n0", "POST", f"/jobs/{stage.job}/reports", content=head + data[:-1])


def without_its_body(stage: Stage) -> httpx.Response:
    head, _ = stage.frame()
    return stage.send("n0", "POST", f"/jobs/{stage.job}/reports", content=head)


def sent_by(node: str, job: str = "") -> Send:
    """A report on n0's task, by any node, to any job."""

    def send(stage: Stage) -> httpx.Response:
        to = job or stage.job
        content = b"".join(stage.frame(job=to))
        return stage.send(node, "POST", f"/jobs/{to}/reports", content=content)

    return send


def of_a_model(**tensors: Any) -> Send:
    return of_payload(save({name: np.asarray(array) for name, array in tensors.items()}))


W = np.zeros(SIZE, np.float32)

NOTED: dict[str, tuple[Send, int, str]] = {
    "NaN first": (lambda s: s.report(with_value(0, math.nan)), 422, "payload.not-finite"),
    "a norm that overflows": (lambda s: s.report(with_value(0, 3e38)), 422, "payload.not-finite"),
    "truncated payload": (truncated, 422, "payload.length"),
    "another digest": (digest_of_another, 422, "blob.digest"),
    "a tensor more": (of_a_model(w=W, x=W), 422, "payload.length"),
    "no tensor": (of_payload(save({})), 422, "payload.length"),
    "another name": (of_a_model(v=W), 422, "payload.header"),
    "another shape": (of_a_model(w=W.reshape(2, 5)), 422, "payload.length"),
    "float64": (of_a_model(w=W.astype(np.float64)), 422, "payload.length"),
    "no blob": (lambda s: s.report(blob=None), 422, "payload.missing"),
    "weight 0": (lambda s: s.report(weight=0.0), 422, "update.weight"),
    "weight above the job's": (lambda s: s.report(weight=2e9), 422, "update.weight"),
    "weight -1": (lambda s: s.report(weight=-1.0), 422, "head.weight"),
    "weight in words": (lambda s: s.report(weight="many"), 422, "head.invalid"),
    "too many metrics": (of_metrics({f"m{i}": 0.0 for i in range(REPORTED_MAX + 1)}), 422, "head.metrics"),
    "examples below zero": (of_metrics({"eval/examples": -1.0}), 422, "head.metrics"),
    "another version than the task's": (lambda s: s.report(version=7), 422, "head.version"),
    "a version beyond the books": (lambda s: s.report(version=2**63), 422, "head.range"),
}
"""(request, status, code) of what concerns a task that stands: an event of the job tells of it.

One or two for each code: tests/wire tries all that a head and a payload may not be."""

QUIET: dict[str, tuple[Send, int, str]] = {
    "not uploaded": (without_its_body, 409, "blob.missing"),
    "a foreign task": (lambda s: s.report(task=s.tasks["n1"].id), 409, "task.foreign"),
    "a task to come": (lambda s: s.report(task=(1, 999)), 409, "task.foreign"),
    "a task of the next term": (lambda s: s.report(task=(2, 1)), 409, "task.foreign"),
    "a task of nobody": (lambda s: s.report(task=(0, 0)), 409, "task.foreign"),
    "a node without a task": (sent_by("n2"), 409, "task.foreign"),
    "an unknown job": (sent_by("n0", "nope"), 404, "job.unknown"),
    "a frame of another job": (lambda s: s.report(job="other"), 422, "head.type"),
    "a job with a hostile name": (lambda s: s.report(job="../../etc"), 422, "head.name"),
    "nothing": (raw(b""), 422, "head.length"),
    "no JSON": (with_head("{,"), 422, "head.invalid"),
    "deeply nested": (with_head('{"a":' + "[" * 60_000), 422, "head.invalid"),
    "another protocol": (with_head('{"shoal": 2, "job": "main"}'), 426, "protocol.unknown"),
    "another message": (with_head('{"shoal":1,"job":"main","type":"poll","node":"n0"}'), 422, "head.type"),
    "half a character in bytes": (with_head('{"shoal":1,"job":"main","type":"\ud800"}'), 422, "head.invalid"),
    "too long for its place": (
        raw(bytes(4 + codec.HEAD_BYTES_MAX + codec.INLINE_BYTES_MAX + 1)),
        413,
        "body.too-large",
    ),
    "too long to be inline": (lambda s: s.report(bytes(codec.INLINE_BYTES_MAX + 1)), 422, "head.length"),
    "compressed": (raw(b"x", **{"Content-Encoding": "gzip"}), 415, "body.encoding"),
    "without its length": (chunked, 411, "body.length-required"),
    "another protocol in the headers": (raw(b"", **{"Shoal-Protocol": "7"}), 426, "protocol.unknown"),
    "no credential": (raw(b"", Authorization=""), 401, "auth.missing"),
    "a wrong credential": (raw(b"", Authorization="Bearer shn_wrong"), 401, "auth.refused"),
    "a credential of another kind": (raw(b"", Authorization="Basic bjA6eA=="), 401, "auth.refused"),
    "an operator's": (raw(b"", Authorization="Bearer sho_test"), 403, "auth.forbidden"),
}
"""The same of what belongs to no task that stands."""


@pytest.mark.parametrize("name", NOTED)
def test_a_refused_report_changes_nothing_and_is_noted(stage: Stage, name: str) -> None:
    send, status, code = NOTED[name]
    stage.running.coordinator.nodes.presence.activity.pop(
        (stage.job, "n0"), None
    )  # repetitions, and many, would have no event
    before, refused = stage.picture(), len(stage.running.events(stage.job, "refusal"))
    found = problem(send(stage), status, code)
    assert stage.picture() == before
    refusals = stage.running.events(stage.job, "refusal")
    assert len(refusals) == refused + 1
    assert refusals[-1]["node"] == "n0"
    assert found["detail"] in refusals[-1]["text"]
    node = next(n for n in stage.running.get(f"/jobs/{stage.job}/nodes")["nodes"] if n["name"] == "n0")
    assert node["last_error"] == found["detail"]


def test_the_stored_body_of_a_refused_report_is_deleted(coordinator: Inside) -> None:
    size = 20_000  # too large for the journal
    stage = set_up(coordinator, size=size)
    before = stage.picture()
    problem(stage.report(displacement("n0", 0, size), weight=2e9), 422, "update.weight")
    assert stage.picture() == before
    stage.close()


@pytest.mark.parametrize("name", QUIET)
def test_a_report_that_concerns_no_order_changes_nothing(stage: Stage, name: str) -> None:
    send, status, code = QUIET[name]
    before = stage.picture()
    problem(send(stage), status, code)
    assert stage.picture() == before


def test_a_repetition_is_not_noted(stage: Stage) -> None:
    stage.running.coordinator.nodes.presence.activity.pop((stage.job, "n0"), None)
    for _ in range(5):
        problem(stage.report(weight=-7.0), 422, "head.weight")
    assert [event["text"] for event in stage.running.events(stage.job)].count("n0: a weight of -7.0; 0 to 1e+15") == 1


def test_the_place_of_a_number_that_is_not_finite_is_named(stage: Stage) -> None:
    assert "w[0] is not finite" in stage.report(with_value(0, math.nan)).json()["detail"]
    assert f"w[{SIZE - 1}] is not finite" in stage.report(with_value(SIZE - 1, math.inf)).json()["detail"]


def test_a_wrong_length_of_a_body_that_is_here_is_the_senders_fault(stage: Stage) -> None:
    data = save({"w": np.full(SIZE, 0.25, np.float32)})
    digest = hashlib.sha256(data).hexdigest()
    assert stage.send("n0", "PUT", f"/jobs/{stage.job}/blobs/{digest}", content=data).status_code == 201
    before = stage.picture()
    head, _ = stage.frame(blob={"digest": digest, "nbytes": len(data) + 1})
    answer = stage.send("n0", "POST", f"/jobs/{stage.job}/reports", content=head)
    problem(answer, 422, "payload.length")
    assert stage.picture() == before
