"""The Python client: run a job, follow it, read its results, and change it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import shoal
from shoal.client.api import TICK_S
from shoal.client.client import CoordinatorClient
from shoal.core.errors import InvalidJob, NotAllowed, Refused, ShoalError, Unreachable
from shoal.core.model.tree import Tree
from shoal.model_file import save_model
from shoal.runtime.durable_files import digest_of
from tests.support.coordinator import OPERATOR, Inside, inside
from tests.support.fake_coordinator import FakeCoordinator, raw
from tests.support.node import Node, advance, initial

SIZE = 6
JOB = {"name": "digits", "rounds": 3, "schedule": {"name": "rounds", "min_nodes": 2, "quorum": 2}}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Inside]:
    with inside(tmp_path / "data") as made:
        yield made


@pytest.fixture
def client(running: Inside) -> Iterator[CoordinatorClient]:
    with shoal.connect(running.url, OPERATOR) as made:
        yield made


@pytest.fixture
def nodes(running: Inside) -> Iterator[list[Node]]:
    """Two nodes at work, whose models are known beforehand."""
    made = [Node(lambda: running.url, name, running.token(), {"digits": SIZE}) for name in ("n0", "n1")]
    for node in made:
        node.start()
    yield made
    for node in made:
        node.quit.set()
        node.join(30)
        node.client.close()


def expected(rounds: int) -> np.ndarray:
    model = initial(SIZE)
    for version in range(rounds):
        model = advance(model, version, ["n0", "n1"])
    return model


def test_a_job_is_run_to_its_end_and_its_models_are_read(client: CoordinatorClient, nodes: list[Node]) -> None:
    job = client.run(JOB)
    assert job.wait(60) is job
    assert (job.state, job.status["version"]) == ("done", 3)
    assert np.array_equal(job.model()["w"], expected(3))
    assert np.array_equal(job.model(version=1)["w"], expected(1))
    assert [row["number"] for row in job.versions] == [0, 1, 2, 3]
    columns = job.columns()
    assert (columns["version"], columns["reports"]) == ([0, 1, 2, 3], [0, 2, 2, 2])
    assert columns["bytes"][-1] == job.versions[-1]["total_bytes"] >= columns["up_bytes"][-1] > 0
    assert {len(values) for values in columns.values()} == {4}
    assert sorted(node["name"] for node in job.nodes) == ["n0", "n1"]
    assert sorted(node["name"] for node in client.nodes) == ["n0", "n1"]
    assert job.metrics == job.status["metrics"]
    assert list(client.jobs) == ["digits"]
    assert np.array_equal(client.job("digits").model()["w"], expected(3))
    assert client.jobs["digits"].wait(60).name == "digits", "one that has ended is not waited for"


def test_progress_and_events_are_told(client: CoordinatorClient, nodes: list[Node]) -> None:
    shown: list[tuple[float, str]] = []
    job = client.run(JOB, paused=True)
    assert job.state == "paused"
    events = job.resume().events()
    assert next(events).name == "hello"
    job.wait(60, progress=lambda share, text: shown.append((share, text)))
    assert shown[-1][0] == 1.0
    assert any("version" in text for _, text in shown)
    names = [event.name for event in events]
    assert {"version", "job_event", "job"} <= set(names)


def test_it_waits_no_longer_than_it_is_told(client: CoordinatorClient) -> None:
    job = client.run(JOB)
    with pytest.raises(ShoalError, match=r"digits has not ended within 0\.2 s") as told:
        job.wait(0.2)
    assert told.value.code == "job.time-out"
    assert job.state == "waiting"
    threading.Timer(3 * TICK_S, job.stop, ["enough"]).start()
    *_, last = job.events()
    assert (last.name, last.data["state"]) == ("job", "stopped"), "though nothing came for a while"
    assert "enough" in job.status["state_why"]
    with pytest.raises(ShoalError, match="digits is stopped") as told:
        job.wait(60)
    assert told.value.code == "job.stopped"
    assert next(iter(list(job.events()))).name == "hello", "the events of a job that has ended have an end"


def test_operators_step_in(client: CoordinatorClient) -> None:
    job = client.run(JOB)
    assert job.pause("lunch").state == "paused"
    assert job.status["state_why"].startswith("lunch")
    assert job.resume().state == "waiting"
    with pytest.raises(Refused, match="gossip"):
        job.switch("gossip")


def test_a_job_may_be_a_file_a_mapping_or_a_spec(client: CoordinatorClient, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('name = "from-file"\nrounds = 2\npreset = "dynamic"\n[algorithm]\nlr = 0.5\n')
    fields = {"rounds": 2, "preset": "dynamic", "algorithm": {"lr": 0.5}}
    given = [file, {"name": "from-mapping", **fields}, shoal.JobSpec(name="from-spec", **fields)]
    specs = [{**client.run(one).status["spec"], "name": ""} for one in given]
    assert specs[0] == specs[1] == specs[2]
    assert specs[0]["algorithm"]["lr"] == 0.5
    with pytest.raises(InvalidJob, match="rounds"):
        client.run({"name": "x", "rounds": -1})
    with pytest.raises(Refused, match="from-mapping"):
        client.run({"name": "from-mapping"})


def test_a_job_starts_from_a_model(client: CoordinatorClient, tmp_path: Path) -> None:
    tree = Tree.of({"w": np.arange(4, dtype=np.float32)})
    job = client.run(JOB, start_model=save_model(tree, tmp_path / "start.safetensors"))
    assert np.array_equal(job.model()["w"], tree["w"])


def test_a_base_model_is_uploaded_with_the_job(client: CoordinatorClient, running: Inside, tmp_path: Path) -> None:
    arrays = {"b.running_mean": np.zeros(3, np.float32), "b.running_var": np.ones(3, np.float32)}
    path = save_model(Tree.of(arrays), tmp_path / "base.safetensors")
    foreign = tmp_path / "foreign.safetensors"
    save_file(arrays, foreign, {"format": "pt"})
    shown = {"digest": digest_of([path.read_bytes()]), "bytes": path.stat().st_size, "nodes": 0}
    assert client.run(JOB, base=path).status["base_model"] == shown
    assert client.run({**JOB, "name": "again"}, base=foreign).status["base_model"] == shown, "metadata are left out"


def test_an_interrupted_upload_of_a_base_model_goes_on(fake: FakeCoordinator, tmp_path: Path) -> None:
    path = save_model(Tree.of({"w": np.arange(9, dtype=np.float32)}), tmp_path / "base.safetensors")
    data = path.read_bytes()
    fake.answers["HEAD /bases/*"] = raw(b"", {"Upload-Offset": "20"}, 404)
    fake.answers["PUT /bases/*"] = {}
    fake.answers["POST /jobs"] = {"name": "digits"}
    with shoal.connect(fake.url, "sho_x") as client:
        client.run(JOB, base=path)
        sent = next(one for one in fake.asked if one.method == "PUT")
        assert sent.body == data[20:]
        assert sent.headers["Content-Range"] == f"bytes 20-{len(data) - 1}/{len(data)}"
        assert fake.asked[-1].json()["base_model"] == digest_of([data])
        fake.answers["HEAD /bases/*"] = raw(b"")
        client.run(JOB, base=path)
    assert [one.method for one in fake.asked] == ["HEAD", "PUT", "POST", "HEAD", "POST"], "it is there"


def test_what_is_not_there_or_not_allowed_is_named(client: CoordinatorClient, running: Inside) -> None:
    with pytest.raises(Refused, match="no job is called 'nothing'"):
        client.job("nothing")
    with shoal.connect(running.url, "sho_wrong") as stranger, pytest.raises(NotAllowed):
        stranger.job("digits")
    with pytest.raises(ShoalError, match="color"):
        shoal.connect(running.url, color="red")
    with shoal.connect("http://127.0.0.1:9", "sho_x") as nobody, pytest.raises(Unreachable):
        nobody.job("digits")
    with pytest.raises(ShoalError, match="no model yet"):
        client.run(JOB).model()


def test_a_damaged_model_is_not_returned(fake: FakeCoordinator) -> None:
    fake.answers["GET /jobs/x/models/3"] = raw(b"no model", {"ETag": f'"sha256:{"0" * 64}"'})
    fake.answers["GET /jobs/x"] = {}
    with shoal.connect(fake.url, "sho_x") as client, pytest.raises(ShoalError, match="arrived damaged") as told:
        client.job("x").model(version=3)
    assert told.value.code == "export.damaged"
