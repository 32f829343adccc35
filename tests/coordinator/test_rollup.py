"""Old rounds are rolled up: a job's rows stop growing, and no byte is lost or moved to another node."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, func, select

from shoal.results.run_record import record_of_job
from shoal_coordinator.models import version_history
from shoal_coordinator.models.rollup import OVERLAP, VersionRollup
from shoal_coordinator.storage.tables import jobs, metadata, traffic, versions
from shoal_coordinator.telemetry.traffic import TrafficCounter
from tests.support.coordinator import inside
from tests.support.node import Node
from tests.support.postgres import Cluster
from tests.support.sse import listening
from tests.support.waiting import until

Swarm = Callable[..., list[Node]]

KEPT = 50
NODES = ("", "n0", "n1")


@pytest.fixture(params=["sqlite", "postgresql"])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    url = "sqlite://"
    if request.param == "postgresql":
        cluster: Cluster = request.getfixturevalue("cluster")
        url = cluster.database().replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url)
    metadata.create_all(engine)
    with engine.connect() as found:
        found.execute(jobs.insert().values(name="a", spec={}, created_at=0.0))
        yield found
    engine.dispose()


class Job:
    """A job that closes versions and records the bytes of each."""

    def __init__(self, connection: Connection, first: int = 0) -> None:
        self.connection, self.next, self.rng = connection, first, random.Random(7)
        self.booked: Counter[tuple[int, str, str, str]] = Counter()
        self.pending: Counter[tuple[int, str, str, str]] = Counter()

    def close(self, count: int) -> None:
        """Close that many versions, each with bytes of its own; some come late, for an earlier round."""
        rows = []
        for number in range(self.next, self.next + count):
            metrics = {"eval/accuracy": 0.99 if number == 13 else self.rng.random() * 0.9}
            common = {
                "seq": number,
                "digest": f"{number}",
                "nbytes": 1,
                "why": "",
                "opened_s": 0.0,
                "closed_s": float(number),
            }
            more = {
                "closed_at": 0.0,
                "weight": 1.0,
                "asked": 1,
                "reports": [],
                **version_history.columns(metrics, True),
            }
            rows.append({"job": "a", "number": number, **common, **more})
            for node in NODES:
                late = number - self.rng.randrange(3) if number > 3 else number
                for way in ("up", "down"):
                    self.pending[late if node else -1, node, "task", way] += self.rng.randrange(1, 1000)
        self.connection.execute(versions.insert(), rows)
        self.next += count

    def flush(self) -> None:
        """Write the counts down, as `TelemetryWriter` does."""
        for (version, node, kind, way), size in self.pending.items():
            key = {"job": "a", "version": version, "node": node, "kind": kind, "direction": way}
            here = [traffic.c[name] == value for name, value in key.items()]
            grown = traffic.update().where(*here).values(head_bytes=traffic.c.head_bytes + size)
            if not self.connection.execute(grown).rowcount:
                row = {**key, "requests": 1, "head_bytes": size, "body_bytes": 0}
                self.connection.execute(traffic.insert(), row)
        self.booked += self.pending
        self.pending.clear()

    def numbers(self) -> list[int]:
        return list(self.connection.execute(select(versions.c.number).order_by(versions.c.number)).scalars())

    def spent(self) -> dict[int, int]:
        """All bytes that were booked before each version, as they were told."""
        of: Counter[int] = Counter()
        for (version, *_), size in self.booked.items():
            of[version] += size
        order = range(-1, self.next)
        sums = dict(zip(order, accumulate(of[n] for n in order), strict=True))
        return {number: sums[number - 1] for number in range(self.next)}


def by(connection: Connection, *names: str) -> dict[Any, int]:
    columns = [traffic.c[name] for name in names]
    size = func.sum(traffic.c.head_bytes + traffic.c.body_bytes)
    return {row[:-1]: int(row[-1]) for row in connection.execute(select(*columns, size).group_by(*columns))}


def test_rows_stop_growing_and_sums_stay_exact(connection: Connection) -> None:
    job, rolling = Job(connection), VersionRollup(KEPT)
    connection.execute(jobs.update().values(labels={"production": {"version": 77, "at": 0.0, "why": ""}}))
    most = 0
    for _ in range(40):
        job.close(25)
        job.flush()
        rolling.run(connection, "a")
        numbers = job.numbers()
        most = max(most, len(numbers))
        assert numbers[-KEPT:] == list(range(max(0, job.next - KEPT), job.next)), "the newest are all there"
        assert {n for n in (0, 13, 77) if n < job.next} <= set(numbers)
    assert len(numbers) <= 2 * KEPT + 3 < most + KEPT
    assert most <= 2 * KEPT + 25 + 3
    assert {row[0] for row in connection.execute(select(traffic.c.version).distinct())} <= {-1, *numbers}
    told: Counter[tuple[str, str, str]] = Counter()
    for (_, *key), size in job.booked.items():
        told[tuple(key)] += size  # type: ignore[index]
    assert by(connection, "node", "kind", "direction") == told
    loaded = TrafficCounter()
    loaded.load(connection)
    spent = job.spent()
    assert [sum(one) for one in loaded.spent("a", numbers)] == [spent[number] for number in numbers]
    assert [sum(one) for one in loaded.spent("a", numbers[-3:])] == [spent[number] for number in numbers[-3:]]


def test_the_rows_of_checkpoints_stay(connection: Connection) -> None:
    job, rolling = Job(connection), VersionRollup(KEPT)
    connection.execute(jobs.update().values(spec={"checkpoint_every": 75}))
    for _ in range(16):
        job.close(25)
        rolling.run(connection, "a")
    assert set(range(0, job.next, 75)) <= set(job.numbers())
    assert len(job.numbers()) <= 2 * KEPT + 8


def test_counters_in_memory_are_rolled_up_like_the_tables(connection: Connection) -> None:
    job, rolling = Job(connection), VersionRollup(KEPT)
    ledger = TrafficCounter()
    for _ in range(20):
        job.close(25)
        rows = [
            {"job": "a", "version": version, "node": node, "kind": kind, "direction": way}
            | {"requests": 1, "head_bytes": size, "body_bytes": 0}
            for (version, node, kind, way), size in job.pending.items()
        ]
        ledger.add_rows_of_follower(rows)
        job.flush()
        ledger.roll_up("a", rolling.run(connection, "a"))
    numbers, spent = job.numbers(), job.spent()
    assert [sum(one) for one in ledger.spent("a", numbers)] == [spent[number] for number in numbers]
    assert len(ledger._of_version["a"]) <= len(numbers) + 1


def test_a_pass_looks_only_at_what_has_become_old(connection: Connection) -> None:
    """Each begins where the last has ended, but for bytes that come late."""
    job, rolling = Job(connection), VersionRollup(KEPT)
    job.close(2000)
    assert rolling.run(connection, "a")[0] == 0
    job.close(10)
    assert rolling.run(connection, "a")[0] >= 2000 - KEPT - OVERLAP - 64


def test_nothing_is_rolled_up_while_there_are_few(connection: Connection) -> None:
    job, rolling = Job(connection), VersionRollup(KEPT)
    job.close(2 * KEPT)
    assert rolling.run(connection, "a") == []
    assert job.numbers() == list(range(2 * KEPT))


def test_a_job_that_goes_on_from_a_later_version(connection: Connection) -> None:
    job, rolling = Job(connection, first=1_000_003), VersionRollup(KEPT)
    job.close(500)
    job.flush()
    rolling.run(connection, "a")
    assert job.numbers()[0] == 1_000_003
    assert len(job.numbers()) <= 2 * KEPT + 2
    assert sum(by(connection, "node").values()) == job.booked.total()


def test_all_who_read_a_long_run_find_it_whole(tmp_path: Path, swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal_coordinator.models.retention.TRIM_EVERY", 8)
    with inside(tmp_path / "data", rounds_kept=10) as running:
        running.begin("a", nodes=1, rounds=99)
        with listening(running.url, None, "a") as live:
            for node in swarm(running, 1, {"a": 10}):
                node.finish()
            until("the job to have ended", lambda: running.job("a")["ended_at"])
            shown = running.get("/jobs/a/versions")["versions"]
            told = set()
            for event in live:
                if event.name == "version":
                    told.add(event.data["number"])
                    if event.data["number"] == 99:
                        break
        numbers = [one["number"] for one in shown]
        assert len(numbers) <= 35
        assert set(range(90, 100)) <= set(numbers)
        assert told >= set(range(90, 100)), "whatever was rolled up meanwhile, the stream goes on"
        for one, two in pairwise(shown[1:]):
            assert one["total_bytes"] + two["up_bytes"] + two["down_bytes"] == two["total_bytes"]
        job = running.job("a")
        whole = running.get("/jobs/a/traffic", by=["version", "node", "kind"])
        assert whole["total"] == {"up": job["up_bytes"], "down": job["down_bytes"]}
        assert {row["version"] for row in whole["rows"]} <= {-1, *numbers}
        compared = running.get("/compare", run=["a"], points=1000)
        assert compared["runs"][0]["line"]["total_bytes"][1:] == [one["total_bytes"] for one in shown[1:]]
        run = [json.loads(line) for line in running.request("GET", "/api/v1/jobs/a/export").text.splitlines()]
        assert [line["number"] for line in run if line["type"] == "version"] == numbers
        assert run[-1]["type"] == "end"
        record = record_of_job(job, shown, whole)
        assert [one.bytes for one in record.versions[1:]] == [one["total_bytes"] for one in shown[1:]]
        last = running.rows("SELECT max(id) FROM job_events")[0][0]
        replayed = []
        with listening(running.url, 0, "a") as missed:
            for event in missed:
                replayed += [event.data["number"]] if event.name == "version" else []
                if event.id == last:
                    break
        assert replayed == numbers
