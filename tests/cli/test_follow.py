"""Output while a command waits for a job, and how long it waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli.commands import run
from tests.cli.command_cases import run_answers
from tests.cli.conftest import Shoal
from tests.support.coordinator_views import a_job
from tests.support.fake_coordinator import Answer, FakeCoordinator, at
from tests.support.http_servers import Asked
from tests.support.waiting import pause

pytestmark = pytest.mark.usefixtures("quick")


def test_what_operators_are_told_of_is_said_once_to_who_waits(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    """A job that waits for room on the disk says nothing itself."""
    run_answers(fake, place)
    low = {"id": 1, "kind": "disk-low", "job": "", "jobs": [], "text": "12 MiB [are] left", "cleared_at": None}
    lost = {**low, "id": 2, "kind": "node-lost", "jobs": ["digits"], "text": "node-2 has fallen silent"}
    elsewhere = ("alert", {**lost, "id": 5, "jobs": ["other"]})
    fake.answers["GET /alerts"] = {"alerts": [{**low, "id": 3, "job": "other"}, low]}
    fake.answers["GET /jobs/digits"] = a_job()
    over = ("alert", {**lost, "id": 4, "cleared_at": "2026-01-02T03:04:12.000Z"})
    fake.events = [[("hello", {}), ("alert", low), ("alert", lost), over, elsewhere, ("job", a_job(state="done"))]]
    said = shoal("run", "job.toml", env=at(fake)).stderr.splitlines()
    assert [line for line in said if line.startswith("warning")] == [
        "warning: disk-low: 12 MiB [are] left",
        "warning: node-lost: node-2 has fallen silent",
    ]
    assert any("active=true" in asked.query for asked in fake.asked if asked.path.endswith("/alerts"))


def test_a_coordinator_that_takes_long_over_a_given_model_is_waited_for(
    shoal: Shoal, fake: FakeCoordinator, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_answers(fake, place)
    made = fake.answers["POST /jobs"]

    def slowly(asked: Asked) -> Answer:
        pause(0.6)
        return made(asked) if callable(made) else made

    fake.answers["POST /jobs"] = slowly
    monkeypatch.setattr(run, "send_model", lambda *_: "0" * 64)
    impatient = at(fake) | {"SHOAL_CLIENT__TIMEOUT_S": "0.3"}
    assert shoal("run", "job.toml", "--model", "m.safetensors", env=impatient).exit_code == 0
    assert shoal("run", "job.toml", env=impatient).exit_code == 3
