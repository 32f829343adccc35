"""A node whose learner has another base model fetches the job's, once, and takes part."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import InvalidJob, InvalidPayload, StorageFailed
from shoal.core.protocol.message import BlobRef
from shoal.learn import TorchLearner
from shoal.model_file import opened, save_base
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import digest_of, storing
from shoal_edge_client.training.base_models import BaseModels
from tests.edge_client.conftest import PLAN, Place
from tests.edge_client.test_crashes import begun
from tests.support import based_learner
from tests.support.based_learner import learner
from tests.support.coordinator import inside
from tests.support.edge_coordinator import Coordinator, has_hung_up, serving
from tests.support.edge_node import EdgeNode
from tests.support.http_servers import Asked, Said
from tests.support.waiting import until

GET = "GET /jobs/j/blobs/DIGEST"
WANTED = learner(base=7)


def base_file(folder: Path) -> tuple[Path, BlobRef]:
    path = save_base(WANTED, folder / "base.safetensors")
    data = path.read_bytes()
    return path, BlobRef(digest_of([data]), len(data))


@pytest.fixture
def offering(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    """Yield a coordinator whose job offers a base model. The parameter: the nodes that it waits for."""
    path, ref = base_file(tmp_path)
    nodes = getattr(request, "param", 1)
    schedule = {"name": "rounds", "min_nodes": nodes, "cohort": nodes, "deadline_s": 60.0}
    plan = {**PLAN, "base_model": ref.digest, "schedule": schedule}
    coordinator = Coordinator(tmp_path / "coordinator", {"j": plan}, ("sht_one", "sht_two"))
    with serving(coordinator) as url:
        with coordinator.blobs.partials.incoming("operator", ref) as incoming:
            incoming.write(path.read_bytes())
            incoming.finish()
        coordinator.bases = {"j": ref}
        yield Place(coordinator, url, tmp_path)


def folder_of(place: Place) -> Path:
    (found,) = (place.folder / "state").glob("*/bases")
    return found


@pytest.mark.parametrize("offering", [2], indirect=True)
def test_it_is_fetched_once_also_by_the_next_process(offering: Place) -> None:
    """The job waits for two nodes, so that it does not end with the first process."""
    first = offering.start(learner())
    coordinator = offering.coordinator
    coordinator.wait(lambda: coordinator.requests["POST /hello"] == 2)
    first.leave()
    assert first.end() is False
    nodes = [
        offering.start(learner(0)),
        offering.start(learner(7), name="b", token="sht_two", state_dir=offering.folder / "b"),
    ]
    for node in nodes:
        node.finish()
    assert nodes[0].learner.layout == WANTED.layout
    assert coordinator.requests[GET] == 1
    assert coordinator.requests["POST /hello"] == 4, "the second process began with the base model of the job"
    assert {node for _, node, _ in coordinator.counted} == {"a", "b"}


def test_a_download_that_breaks_goes_on_at_the_byte(offering: Place) -> None:
    ranges: list[str | None] = []
    answer = offering.coordinator._download

    def noted(asked: Any, ref: BlobRef) -> Any:
        ranges.append(asked.headers.get("Range"))
        return answer(asked, ref)

    offering.coordinator._download = noted  # type: ignore[method-assign]
    offering.coordinator.plant("cut", "GET", "/jobs/j/blobs/")
    assert offering.join(learner())
    assert ranges == [None, f"bytes={offering.coordinator.bases['j'].nbytes // 2}-"]


def test_a_process_that_is_killed_as_it_fetches_one_fetches_the_rest_alone(offering: Place) -> None:
    ranges: list[str | None] = []
    coordinator, answer = offering.coordinator, offering.coordinator._download
    ref, half = coordinator.bases["j"], coordinator.bases["j"].nbytes // 2

    def held(asked: Asked, wanted: BlobRef) -> Said:
        """Send the first half alone to the first process, and wait for its death."""
        ranges.append(asked.headers.get("Range"))
        said = answer(asked, wanted)
        if len(ranges) > 1 or not isinstance(said.body, bytes):
            return said
        return replace(said, body=_stalling(asked, said.body[:half]), headers={**said.headers, "Content-Length": size})

    def _stalling(asked: Asked, first: bytes) -> Iterator[bytes]:
        yield first
        until("the death of the process", lambda: has_hung_up(asked))

    size = str(ref.nbytes)
    coordinator._download = held  # type: ignore[method-assign]
    given = {"learner": str(Path(based_learner.__file__)) + ":learner"}
    first = begun(offering, **given)
    until("half of it on the disk", lambda: [one.stat().st_size for one in partials(offering)] == [half])
    first.kill()
    assert first.wait(60) == -signal.SIGKILL
    assert begun(offering, **given).wait(60) == 0, (offering.folder / "log").read_text()
    assert ranges == [None, f"bytes={half}-"]
    assert coordinator.ended("j")


def partials(place: Place) -> list[Path]:
    return list((place.folder / "state").glob("*/bases/partial/*/*.tmp"))


def test_a_damaged_base_model_is_refused_and_leaves_nothing(offering: Place) -> None:
    for _ in range(3):
        offering.coordinator.plant("corrupt", "GET", "/jobs/j/blobs/")
    with pytest.raises(InvalidJob, match=r"it cannot take the job's base model \w{12}: the bytes that came"):
        offering.join(learner())
    assert [path for path in folder_of(offering).rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("given", "more", "why"),
    [
        ({}, {"base_bytes_max": 10}, r"it has \d+ bytes; at most 10 here \(raise base_bytes_max of the node\)"),
        ({"width": 3}, {}, r"is F32\[3\] in one tree, .* F32\[400\] in the other"),
    ],
)
def test_one_that_does_not_fit_is_refused_by_name(offering: Place, given: Any, more: Any, why: str) -> None:
    with pytest.raises(InvalidJob, match=why):
        offering.join(learner(**given), **more)
    assert offering.coordinator.counted == []


def test_without_an_upload_the_node_is_refused_as_before(offering: Place) -> None:
    offering.coordinator.bases = {}
    with pytest.raises(InvalidJob, match=r"its model differs from the job's \(base model \w{12}, not base model"):
        offering.join(learner())
    assert not list(offering.coordinator.counted)
    assert offering.coordinator.requests[GET] == 0


def test_the_learners_own_base_model_is_back_after_the_job(offering: Place) -> None:
    used = []

    class Watching(TorchLearner):
        def train(self, *given: Any, **more: Any) -> Any:
            used.append((folder_of(offering) / "used.json").exists())
            return super().train(*given, **more)

    mine = learner()
    mine.__class__ = Watching
    assert offering.join(mine)
    assert used == [True] * 3, "an order can go on after a restart without the coordinator"
    assert not (folder_of(offering) / "used.json").exists()


def test_the_whole_way_over_http(tmp_path: Path) -> None:
    path, ref = base_file(tmp_path)
    schedule = {"name": "rounds", "min_nodes": 2, "cohort": 2, "deadline_s": 3600.0}
    with inside(tmp_path / "data") as running, opened(path, base=True) as found:
        assert found.digest == ref.digest
        assert running.request("PUT", f"/api/v1/bases/{ref.digest}", content=path.read_bytes()).status_code == 201
        running.post("/jobs", {"spec": {"name": "j", "rounds": 2, "schedule": schedule}, "base_model": ref.digest})
        common: dict[str, Any] = {"url": running.url, "jobs": ["j"]}
        nodes = {"a": learner(7), "b": learner(1)}
        made = [
            EdgeNode(one, **common, name=name, token=running.token(), state_dir=tmp_path / name).start()
            for name, one in nodes.items()
        ]
        for one in made:
            one.finish()
        rows = running.get("/jobs/j/traffic", by=["kind", "node"])["rows"]
        fetched = {
            row["node"]: row["body_bytes"] for row in rows if row["kind"] == "base" and row["direction"] == "down"
        }
        assert fetched == {"b": ref.nbytes}, "once, by the node that lacked it"
        until("the end", lambda: running.job("j")["state"] == "done")


class Backend:
    """A trainer whose learner takes each base model."""

    def __init__(self) -> None:
        self.model_form = {"model": {"base_model": "0" * 64}}

    def load_base(self, path: Path) -> None:
        self.model_form = {"model": {"base_model": digest_of([path.read_bytes()])}}


DATA = bytes(range(256)) * 8
REF = BlobRef(digest_of([DATA]), len(DATA))


def bases_of(folder: Path) -> tuple[BaseModels, Backend]:
    backend: Any = Backend()
    return BaseModels(folder, backend, len(DATA)), backend


def arrive(_job: str, blobs: FileBlobs, ref: BlobRef) -> None:
    """Receive what is missing of a blob."""
    with blobs.partials.incoming("coordinator", ref, blobs.partials.offset("coordinator", ref.digest)) as incoming:
        incoming.write(DATA[incoming.offset :])
        incoming.finish()


def test_what_a_killed_process_received_is_kept(tmp_path: Path) -> None:
    bases_of(tmp_path)
    left = tmp_path / "partial" / "coordinator" / f"{REF.digest}.01234567.tmp"
    left.parent.mkdir()
    left.write_bytes(DATA[:100])
    bases, backend = bases_of(tmp_path)
    assert bases.blobs.partials.offset("coordinator", REF.digest) == 100
    bases.fetch("j", REF, arrive)
    bases.load("j", REF)
    assert backend.model_form["model"]["base_model"] == bases.digest == REF.digest


class Dead(BaseException):
    """The process dies."""


@pytest.mark.parametrize("step", ["written", "synced", "renamed", "kept"])
def test_a_process_that_dies_as_it_loads_a_base_model_fetches_none_again(tmp_path: Path, step: str) -> None:
    def at(point: str) -> None:
        if point == f"base.{step}":
            raise Dead

    backend: Any = Backend()
    dying = BaseModels(tmp_path, backend, len(DATA), at)
    dying.fetch("j", REF, arrive)
    with pytest.raises(Dead):
        dying.load("j", REF)
    after, _ = bases_of(tmp_path)
    after.restore()
    assert (after.digest, after.job) == ((REF.digest, "j") if step in {"renamed", "kept"} else ("0" * 64, ""))
    assert after.blobs.has(REF.digest)
    after.load("j", REF)
    assert (after.digest, after.job) == (REF.digest, "j")


def test_the_next_process_begins_with_the_base_model_until_the_job_has_ended(tmp_path: Path) -> None:
    bases, _ = bases_of(tmp_path)
    bases.fetch("j", REF, arrive)
    bases.load("j", REF)
    after, _ = bases_of(tmp_path)
    after.restore()
    assert (after.digest, after.job) == (REF.digest, "j")
    assert after.give_up("k", ["j"]) == "", "the job goes on"
    assert after.give_up("k", []) == "; its learner has the base model of job j: start the node again"
    last, _ = bases_of(tmp_path)
    last.restore()
    assert (last.digest, last.job) == ("0" * 64, "")
    assert last.blobs.has(REF.digest), "for later jobs"


def test_another_learner_does_not_begin_with_it(tmp_path: Path) -> None:
    bases, _ = bases_of(tmp_path)
    bases.fetch("j", REF, arrive)
    bases.load("j", REF)
    backend: Any = Backend()
    backend.model_form = {"model": {"base_model": "1" * 64}}
    other = BaseModels(tmp_path, backend, len(DATA))
    other.restore()
    assert other.digest == "1" * 64


def test_a_file_that_was_damaged_on_the_disk_is_deleted(tmp_path: Path) -> None:
    bases, _ = bases_of(tmp_path)
    bases.fetch("j", REF, arrive)
    bases.blobs.path(REF.digest).write_bytes(DATA[::-1])
    with pytest.raises(InvalidPayload, match="is damaged"):
        bases.load("j", REF)
    assert not bases.blobs.has(REF.digest)


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    bases, _ = bases_of(tmp_path)

    def full(_job: str, blobs: FileBlobs, _ref: BlobRef) -> None:
        with storing(blobs.folder):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageFailed, match="no space left for") as told:
        bases.fetch("j", REF, full)
    assert "free some space" in told.value.hint
