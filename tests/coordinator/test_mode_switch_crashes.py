"""kill -9 while a job is with its nodes, and on its way there and back: it goes on where it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import httpx
import numpy as np
import pytest

from shoal.core.protocol.message import Ack
from shoal.wire import codec
from tests.coordinator.test_mode_switch import ALL, GOSSIP, merged, model_of, report, tasks
from tests.support.coordinator import Inside, Server
from tests.support.node import initial
from tests.support.sampling import nightly
from tests.support.scenario import SIZE, Stage, set_up
from tests.support.waiting import until

POINTS = {
    "runner.fed": (2, 2, 2, 2),
    "runner.journaled": (2, 2, 2, 2),
    "runner.projected": (3, 3, 3, 3),
    "journal.append": (2, 2, 2, 2),
    "journal.project": (3, 3, 3, 3),
    "journal.before-commit": (9, 10, 11, 12),
    "journal.after-commit": (9, 10, 11, 12),
    "task.answer": (1, 2, 3, 2),
    "report.received": (1, 2, 1, 1),
    "report.answer": (1, 2, 1, 1),
}
"""Each process ends at its n-th pass of a crash point; the first passes are those of the start."""

OFTEN = ("runner.fed", "runner.projected", "journal.before-commit", "task.answer", "report.answer")


class CrashSequence:
    """A coordinator that dies whenever its point is passed for the k-th time in a life, until it need not any more."""

    def __init__(self, running: Server, point: str, passes: tuple[int, ...]) -> None:
        self.running, self.point, self.left = running, point, list(passes)
        self.begin()

    def begin(self) -> None:
        """The next life."""
        self.running.start(crash=f"{self.point}#{self.left.pop(0)}" if self.left else "")

    def surely(self, ask: Callable[[], httpx.Response]) -> httpx.Response:
        """Ask until there is an answer, over any number of deaths."""
        while True:
            try:
                answer = ask()
            except httpx.TransportError:
                until("the death", lambda: self.running.ended() is not None)
                self.begin()
                continue
            if answer.status_code < 500:
                return answer


def set_out(running: Server, **spec: Any) -> Stage:
    """Nodes n0 and n1 hold tasks of version 0, n2 is there too."""
    return set_up(cast("Inside", running), gossip=GOSSIP, **spec)


def test_a_restart_in_each_mode_changes_nothing(server: Callable[..., Server]) -> None:
    running = server(lease_s=3600.0).start()
    stage = set_out(running)
    away = running.post("/jobs/main/switch", {"to": "gossip"})
    tasks(stage, *ALL, recall=False)
    running.kill()
    running.start()
    job = running.job("main")
    assert (job["mode"], job["state_why"]) == ("gossip", "3 nodes carry on from version 0")
    assert job["mode_since"] == away["mode_since"] > job["started_at"]
    tasks(stage, *ALL, recall=False)
    given = {name: task.id for name, task in stage.tasks.items()}
    assert {term for term, _ in given.values()} == {2}, "given anew in the new term"
    back = running.post("/jobs/main/switch", {"to": "server"})
    tasks(stage, *ALL, recall=True)
    assert {name: task.id for name, task in stage.tasks.items()} == given, "the same tasks stand, amended"
    assert report(stage, "n1").status_code == 200
    running.kill()
    running.start()
    job = running.job("main")
    assert (job["mode"], job["state_why"]) == ("returning", "1 of 3 nodes have handed back")
    assert job["mode_since"] == back["mode_since"]
    again = codec.decode(report(stage, "n1").content).message
    assert isinstance(again, Ack)
    assert again.counted, "the same answer as before"
    tasks(stage, "n0", "n2", recall=True)
    for name in ("n0", "n2"):
        assert report(stage, name).status_code == 200
    assert np.array_equal(model_of(running, 1), merged(initial(SIZE), *ALL))
    running.kill()
    running.start()
    job = running.job("main")
    assert (job["mode"], job["version"]) == ("server", 1)
    stage.close()


MOVED = """SELECT state FROM snapshots WHERE state LIKE '%"mode": "gossip"%'"""


def test_a_snapshot_taken_at_the_move_knows_of_it(server: Callable[..., Server]) -> None:
    """The reports make a version as the job goes away: the events before it are trimmed with the next one."""
    running = server(lease_s=3600.0).start()
    stage = set_out(running)
    assert stage.report(node="n0").status_code == 200
    away = running.post("/jobs/main/switch", {"to": "gossip"})
    until("the snapshot", lambda: running.rows(MOVED))
    running.kill()
    running.start()
    job = running.job("main")
    assert (job["mode"], job["version"], job["mode_since"]) == ("gossip", 1, away["mode_since"])
    tasks(stage, *ALL, recall=False)
    running.post("/jobs/main/switch", {"to": "server"})
    tasks(stage, *ALL, recall=True)
    for name in ALL:
        assert report(stage, name).status_code == 200
    assert np.array_equal(model_of(running, 2), merged(model_of(running, 1), *ALL))
    stage.close()


def measured(stage: Stage, node: str, accuracy: float) -> httpx.Response:
    """A node's answer to a task to evaluate."""
    return stage.report(b"", node, blob=None, metrics={"eval/accuracy": accuracy})


@pytest.mark.timeout(180)
@pytest.mark.parametrize("point", nightly(POINTS, but=OFTEN))
def test_deaths_on_the_way_there_and_back(point: str, server: Callable[..., Server]) -> None:
    running = server(lease_s=3600.0).start()
    stage = set_up(cast("Inside", running), gossip={**GOSSIP, "accuracy_drop_max": 0.02})
    running.end()
    crashes = CrashSequence(running, point, POINTS[point])

    def switch(to: str) -> None:
        answer = crashes.surely(lambda: running.request("POST", "/api/v1/jobs/main/switch", json={"to": to}))
        assert answer.status_code == 200, answer.text

    def poll(name: str, kind: str = "gossip", *, recall: bool = False) -> None:
        def look() -> bool:
            answer = crashes.surely(lambda: stage.send(name, "GET", "/work", params={"wait_s": 1, "job": "main"}))
            if answer.status_code == 200:
                stage.tasks[name] = cast("Any", codec.decode(answer.content).message)
            return stage.tasks[name].kind == kind and stage.tasks[name].recall == recall

        stage.tasks.setdefault(name, stage.tasks["n0"])
        until(f"the order of {name}", look)

    def reported(name: str) -> bool:
        ack = codec.decode(crashes.surely(lambda: report(stage, name)).content).message
        assert isinstance(ack, Ack)
        return ack.counted

    switch("gossip")
    for name in ALL:
        poll(name, recall=False)
    switch("server")
    for name in ALL:
        poll(name, recall=True)
    for name in ALL:
        while not reported(name):
            stage.tasks[name] = replace(stage.tasks[name], kind="train")  # of an earlier process: it exists again
            poll(name, recall=True)
    for accuracy in (0.5, 0.75):
        for name in ALL:
            poll(name, "evaluate")
            crashes.surely(lambda name=name, found=accuracy: measured(stage, name, found))
            stage.tasks[name] = replace(stage.tasks[name], kind="train")  # done with: the next one is wanted
    assert not crashes.left, f"{point} was not passed so often: make the scenario pass it"
    crashes.surely(lambda: running.request("GET", "/readyz"))
    job = running.job("main")
    assert (job["mode"], job["version"]) == ("server", 1)
    assert np.array_equal(model_of(running, 1), merged(initial(SIZE), *ALL))
    moves = [event["text"] for event in running.events("main", "mode")]
    assert moves == [
        "the peers carry on: by an operator",
        "back to the server: by an operator",
        "back at the server",
    ]
    why = running.rows("SELECT why FROM versions WHERE number = 1")
    assert "accuracy 0.75 after 0.5, measured by 3 nodes" in str(why)
    stage.close()
