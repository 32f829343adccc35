"""A split job between a coordinator and nodes: the bits of the simulation, also through crashes; bad frames."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal.core.errors import InvalidJob, InvalidPayload, LearnerFailed, Refused, StorageFailed
from shoal.core.model.tree import Tree, digest
from shoal.core.protocol.machine import HUB, Timer
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.split_message import PartyIds, SplitAnswer, SplitRequest
from shoal.jobs.split_spec import load_split_job, parse_split_job
from shoal.learn import TorchLearner
from shoal.runtime.durable_files import STEPS, digest_of, write_file
from shoal.runtime.http.coordinator_url import parse
from shoal.runtime.split import split_pump
from shoal.wire import split_codec
from shoal.wire.payload import payload_pieces
from shoal_coordinator.split import split_runner
from shoal_coordinator.split.split_runner import SplitJobRunner
from shoal_edge_client.identity import StateFolder
from shoal_edge_client.settings import EdgeSettings
from shoal_edge_client.split.split_agent import SplitWork
from tests.support.split_learners import JOB, KNOWN, PARTS, PEOPLE, clinic, network, party, simulated, toml


class Crash(BaseException):
    """The end of a process."""


class Crashes:
    """Crash points of one side: it ends at its third pass of each of `points`, one after another."""

    def __init__(self, points: list[str]) -> None:
        self.left, self._passes = points, 0

    def __call__(self, name: str) -> None:
        if self.left and name == self.left[0]:
            self._passes += 1
            if self._passes == (1 if name.startswith("splitmodel") else 3):
                self._passes = 0
                self.left.pop(0)
                raise Crash


async def started(folder: Path, job: dict[str, Any]) -> SplitJobRunner:
    runner = SplitJobRunner(parse_split_job(job), folder / "coordinator", lambda _: None)
    await runner.start()
    return runner


def described(runner: SplitJobRunner) -> dict[str, object]:
    return {"id": runner.about["id"], "spec": runner.about["spec"], "form": runner.form, "forms": runner.forms}


class Clinic:
    """The processes of one node, one after another."""

    def __init__(
        self, folder: Path, name: str, runner: SplitJobRunner, at: Crashes, learner: TorchLearner | None = None
    ) -> None:
        self.state = StateFolder(folder / name, parse("http://127.0.0.1"), at)
        self.name, self._job, self._at = name, described(runner), at
        self._learner = learner or clinic(PARTS[name])
        self.begin()

    def begin(self) -> None:
        while True:
            try:
                self.work = SplitWork(EdgeSettings(split_job="clinics"), self.state, self.name, self._at)
                self.told = self.work.start(self._learner, self._job)
                return
            except Crash:
                continue

    def frame(self) -> bytes:
        """The next message, as bytes."""
        message = self.told.get(HUB) or self.work.pump.feed(Timer())[HUB]
        return self.work.frame(message)

    def take(self, answer: bytes) -> None:
        try:
            self.told = self.work.take(split_codec.decode(answer, self.work.answer_bytes_max))
        except Crash:
            self.begin()


async def trained(folder: Path, job: dict[str, Any], of_runner: Crashes, of_node: Crashes) -> Tree:
    """The model of a job whose processes end at these points."""
    runner = await started(folder, job)
    nodes = [Clinic(folder, name, runner, of_node) for name in PARTS]
    while going := [node for node in nodes if not node.work.pump.machine.ended]:
        for node in going:
            frame = split_codec.decode(node.frame(), runner.payload_bytes_max)
            try:
                answer = await runner.handle(frame.message, frame.payload)
            except (Crash, StorageFailed) as failure:
                if isinstance(failure, Crash):
                    await runner.stop()
                    runner = await started(folder, job)
                continue
            assert answer is not None
            node.take(split_codec.encode(split_codec.SplitFrame("clinics", *answer)))
    assert [one["number"] for one in runner.about["versions"]] == [1, 2]
    await runner.stop()
    return shoal.load_model(folder / "coordinator" / "model.safetensors")


POINTS = [f"{what}.{step}" for what in ("split", "blob") for step in STEPS]
OF_RUNNER = [*POINTS, "split.fed", *(f"splitmodel.{step}" for step in STEPS)]


@pytest.mark.parametrize(
    ("of_runner", "of_node", "more"),
    [
        ([], [], {"order": "parallel", "filters": [{"name": "half"}]}),
        (OF_RUNNER, [], {"labels": "coordinator", "cut": 2}),
        ([], POINTS, {}),
    ],
    ids=["no crash", "coordinator", "node"],
)
def test_the_model_of_the_simulation_through_crashes(
    of_runner: list[str], of_node: list[str], more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, at_runner, at_node = {**JOB, **more}, Crashes([*of_runner]), Crashes([*of_node])
    monkeypatch.setattr(split_runner, "crashpoint", at_runner)
    found = asyncio.run(trained(tmp_path, job, at_runner, at_node))
    assert digest(found) == digest(simulated(job))
    assert at_runner.left == at_node.left == []


def sent(values: Tree, message: SplitRequest) -> tuple[SplitRequest, bytes]:
    """A request with other activations."""
    payload = b"".join(bytes(piece) for piece in payload_pieces({next(iter(values)): values}))
    return replace(message, blob=BlobRef(digest_of([payload]), len(payload))), payload


def zeros(examples: int, width: int = 6, first: float = 0.0, name: str = "activations") -> Tree:
    values = np.zeros((examples, width), np.float32)
    values[0, 0] = first
    return Tree.of({name: values})


REFUSED = [
    (zeros(8, 5), {}, InvalidPayload, "activations"),
    (zeros(7), {}, InvalidPayload, "activations"),
    (zeros(8, first=np.nan), {}, InvalidPayload, "not finite"),
    (zeros(8), {"leg": 1}, InvalidPayload, "slots"),
    (zeros(8), {"leg": 2}, Refused, "leg 2"),
    (zeros(13), {"examples": 13}, Refused, "13 examples"),
    (zeros(8), {"examples": 0}, Refused, "0 examples"),
]


async def asked(folder: Path) -> tuple[SplitJobRunner, SplitRequest, bytes]:
    """A job with one node, and the first request of that node."""
    runner = await started(folder, {**JOB, "nodes": 1})
    node = Clinic(folder, "a", runner, Crashes([]))
    found = split_codec.decode(node.frame(), runner.payload_bytes_max)
    answer = await runner.handle(found.message, found.payload)
    assert answer is not None
    node.take(split_codec.encode(split_codec.SplitFrame("clinics", *answer)))
    request = split_codec.decode(node.frame(), runner.payload_bytes_max)
    assert isinstance(request.message, SplitRequest)
    return runner, request.message, request.payload


async def begin_again(folder: Path) -> None:
    runner, first, _ = await asked(folder)
    await runner.stop()
    shutil.rmtree(folder / "coordinator")
    runner, again, _ = await asked(folder)
    assert again == first
    await runner.stop()


def test_a_job_that_begins_again_takes_no_state_of_the_job_before(tmp_path: Path) -> None:
    asyncio.run(begin_again(tmp_path))


async def refuse(folder: Path) -> None:
    """Send a runner what it does not take, then what it does."""
    runner, request, body = await asked(folder)
    before = stored(folder)
    for values, change, kind, text in REFUSED:
        message, payload = sent(values, replace(request, **change))
        with pytest.raises(kind, match=text):
            await runner.handle(message, payload)
    with pytest.raises(InvalidPayload):
        await runner.handle(request, sent(zeros(8), request)[1])
    assert await runner.handle(replace(request, batch=1), body) is None
    assert stored(folder) == before
    answer = await runner.handle(request, body)
    assert isinstance(answer.message if answer is not None else None, SplitAnswer)
    before = stored(folder)
    message, payload = sent(zeros(7, name="gradient"), replace(request, leg=1, examples=7))
    with pytest.raises(Refused, match="different numbers of examples"):
        await runner.handle(message, payload)
    assert stored(folder) == before
    await runner.stop()


def stored(folder: Path) -> tuple[bytes, set[str]]:
    """The coordinator's state on the disk, and the names of its blobs."""
    blobs = folder / "coordinator" / "blobs"
    return (blobs.parent / "state.json").read_bytes(), {path.name for path in blobs.iterdir() if path.is_file()}


def test_requests_that_are_refused_leave_the_state_as_it_is(tmp_path: Path) -> None:
    asyncio.run(refuse(tmp_path))


async def fill_disk(folder: Path, full: Callable[[bool], None]) -> None:
    runner, request, body = await asked(folder)
    before = stored(folder)
    full(True)
    for _ in range(2):
        with pytest.raises(StorageFailed):
            await runner.handle(request, body)
    full(False)
    assert stored(folder)[0] == before[0]
    answer = await runner.handle(request, body)
    assert isinstance(answer.message if answer is not None else None, SplitAnswer)
    await runner.stop()


def test_nothing_is_answered_that_a_full_disk_did_not_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> None:
        raise StorageFailed("no space left", code="storage.full")

    fill = {True: write, False: write_file}
    asyncio.run(fill_disk(tmp_path, lambda full: monkeypatch.setattr(split_pump, "write_file", fill[full])))


def broken(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    raise ValueError("no such class")


async def fail(folder: Path) -> None:
    runner = await started(folder, {**JOB, "nodes": 1})
    x, y = torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)
    node = Clinic(folder, "a", runner, Crashes([]), TorchLearner(network, (x, y), loss=broken))
    try:
        while True:
            found = split_codec.decode(node.frame(), runner.payload_bytes_max)
            answer = await runner.handle(found.message, found.payload)
            assert answer is not None
            node.take(split_codec.encode(split_codec.SplitFrame("clinics", *answer)))
    finally:
        assert "no such class" in runner.state.ended
        await runner.stop()


def test_an_error_of_a_nodes_code_ends_its_process_when_the_coordinator_knows(tmp_path: Path) -> None:
    with pytest.raises(LearnerFailed, match="no such class"):
        asyncio.run(fail(tmp_path))


def wider() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 7), nn.Linear(7, 6), *network()[2:])


async def begin_with(folder: Path, learner: TorchLearner) -> None:
    runner = await started(folder, JOB)
    try:
        Clinic(folder, "a", runner, Crashes([]), learner)
    finally:
        assert runner.state.nodes == []
        await runner.stop()


def test_a_learner_with_another_cut_does_not_begin(tmp_path: Path) -> None:
    x, y = torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)
    with pytest.raises(InvalidJob, match="other tensors than the job"):
        asyncio.run(begin_with(tmp_path, TorchLearner(wider, (x, y))))


async def begin_party(folder: Path, name: str, job: dict[str, Any]) -> None:
    runner = SplitJobRunner(parse_split_job(job), folder / "coordinator", lambda _: None)
    await runner.start()
    found = described(runner) | {"merge_small": runner.merge_small}
    try:
        state = StateFolder(folder / name, parse("http://127.0.0.1"))
        with state:
            SplitWork(EdgeSettings(split_job="people"), state, name, Crashes([])).start(party("bank"), found)
    finally:
        await runner.stop()


@pytest.mark.parametrize(
    ("name", "job", "text"),
    [
        ("shop", PEOPLE, "other tensors than the job"),
        ("farm", PEOPLE, "farm is not a party"),
        ("bank", KNOWN, "0 ids for 35 rows; the job allows 100"),
    ],
)
def test_a_party_without_its_head_or_its_ids_does_not_begin(
    name: str, job: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidJob, match=text):
        asyncio.run(begin_party(tmp_path, name, job))


async def send_ids(folder: Path, job: dict[str, Any], slots: dict[str, Tree]) -> None:
    """Send a runner a party's ids; it keeps no blob of those that it refuses."""
    runner = SplitJobRunner(parse_split_job(job), folder / "coordinator", lambda _: None)
    await runner.start()
    before, payload = stored(folder), b"".join(bytes(piece) for piece in payload_pieces({**slots}))
    blob = BlobRef(digest_of([payload]), len(payload))
    try:
        await runner.handle(PartyIds("bank", 1, 0, blob.digest, blob), payload)
    finally:
        assert stored(folder) == before
        await runner.stop()


@pytest.mark.parametrize(
    ("job", "nbytes", "slot"),
    [(KNOWN, 101 * 32, "ids"), (KNOWN, 33, "ids"), (KNOWN, 64, "labels"), (PEOPLE, 64, "ids")],
    ids=["too many", "half an id", "another slot", "aligned"],
)
def test_ids_of_another_form_are_refused(job: dict[str, Any], nbytes: int, slot: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidPayload):
        asyncio.run(send_ids(tmp_path, job, {slot: Tree.of({slot: np.zeros(nbytes, np.uint8)})}))


def test_a_job_that_has_begun_keeps_its_file(tmp_path: Path) -> None:
    asyncio.run(begin_with(tmp_path, clinic(0)))
    with pytest.raises(InvalidJob, match="has begun with another file"):
        asyncio.run(started(tmp_path, {**JOB, "lr": 0.2}))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"cut": "auto"}, "no cut is measured here"),
        ({"cut": [0, 3]}, "cut"),
        ({"cut": 9}, "a cut at 9"),
        ({"labels": "nowhere"}, "labels"),
        ({"filters": [{"name": "top_k"}]}, "does not suit activations"),
        ({"learner": ""}, "names no learner"),
        ({"more": 1}, "more: unknown key"),
        ({"parties": ["a", "b"]}, "give a cut, or parties"),
        (
            PEOPLE | {"parties": ["bank", "farm"], "labels": "bank"},
            "the heads of .* are bank, shop, the parties bank, farm",
        ),
        (PEOPLE | {"labels": "coordinator"}, "labels is 'coordinator'; use bank or shop"),
        (PEOPLE | {"nodes": 2}, "leave nodes and order out"),
        (KNOWN | {"parties": ["bank", "shop", "farm"]}, "ids_max needs two parties"),
    ],
)
def test_files_that_are_refused(change: dict[str, Any], text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(toml(change if "name" in change else {**JOB, **change}))

    async def begin() -> None:
        await SplitJobRunner(load_split_job(path), tmp_path / "coordinator", lambda _: None).start()

    with pytest.raises(InvalidJob, match=text):
        asyncio.run(begin())
