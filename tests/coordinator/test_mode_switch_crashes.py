"""kill -9 while a job is with its nodes, and on its way there and back: it goes on where it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import httpx
import numpy as np
import pytest

from shoal import wire
from shoal.core.message import Ack
from tests.coordinator.node import initial
from tests.coordinator.server import Inside, Server, until
from tests.coordinator.stage import SIZE, Stage, set_up
from tests.coordinator.test_switching import ALL, GOSSIP, merged, model_of, orders, report
from tests.nightly import at_night

POINTS = {
    "driver.fed": (2, 2, 2, 2),
    "driver.journaled": (2, 2, 2, 2),
    "driver.projected": (3, 3, 3, 3),
    "journal.append": (2, 2, 2, 2),
    "journal.project": (3, 3, 3, 3),
    "journal.before-commit": (9, 10, 11, 12),
    "journal.after-commit": (9, 10, 11, 12),
    "order.answer": (1, 2, 3, 2),
    "report.received": (1, 2, 1, 1),
    "report.answer": (1, 2, 1, 1),
}
"""One life after the other ends when a point is passed so often; the first passes are those of the start."""

OFTEN = ("driver.fed", "driver.projected", "journal.before-commit", "order.answer", "report.answer")


class Lives:
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
    """Nodes n0 and n1 hold orders of version 0, n2 is there too."""
    return set_up(cast("Inside", running), gossip=GOSSIP, **spec)


def test_a_restart_in_each_mode_changes_nothing(server: Callable[..., Server]) -> None:
    running = server(lease_s=3600.0).start()
    stage = set_out(running)
    away = running.post("/jobs/main/switch", {"to": "gossip"})
    orders(stage, *ALL, recall=False)
    running.kill()
    running.start()
    job = running.job("main")
    assert (job["mode"], job["state_why"]) == ("away", "3 nodes carry on from version 0")
    assert job["mode_since"] == away["mode_since"] > job["started_at"]
    orders(stage, *ALL, recall=False)
    given = {name: order.id for name, order in stage.orders.items()}
    assert {boot for boot, _ in given.values()} == {2}, "given anew in the new term"
    back = running.post("/jobs/main/switch", {"to": "server"})
    orders(stage, *ALL, recall=True)
    assert {name: order.id for name, order in stage.orders.items()} == given, "the same orders stand, amended"
    assert report(stage, "n1").status_code == 200
    running.kill()
    running.start()
    job = running.job("main")
    assert (job["mode"], job["state_why"]) == ("returning", "1 of 3 nodes have handed back")
    assert job["mode_since"] == back["mode_since"]
    again = wire.decode(report(stage, "n1").content).message
    assert isinstance(again, Ack)
    assert again.counted, "the same answer as before"
    orders(stage, "n0", "n2", recall=True)
    for name in ("n0", "n2"):
        assert report(stage, name).status_code == 200
    assert np.array_equal(model_of(running, 1), merged(initial(SIZE), *ALL))
    running.kill()
    running.start()
    job = running.job("main")
    assert (job["mode"], job["version"]) == ("server", 1)
    stage.close()


def test_a_snapshot_taken_at_the_move_knows_of_it(server: Callable[..., Server]) -> None:
    """What was reported makes a version as the job goes away: the events before it are trimmed with the next one."""
    running = server(lease_s=3600.0).start()
    stage = set_out(running)
    assert stage.report(node="n0").status_code == 200
    away = running.post("/jobs/main/switch", {"to": "gossip"})
    until("the snapshot", lambda: running.rows("SELECT state FROM snapshots WHERE state LIKE '%away%'"))
    running.kill()
    running.start()
    job = running.job("main")
    assert (job["mode"], job["version"], job["mode_since"]) == ("away", 1, away["mode_since"])
    orders(stage, *ALL, recall=False)
    running.post("/jobs/main/switch", {"to": "server"})
    orders(stage, *ALL, recall=True)
    for name in ALL:
        assert report(stage, name).status_code == 200
    assert np.array_equal(model_of(running, 2), merged(model_of(running, 1), *ALL))
    stage.close()


def measured(stage: Stage, node: str, accuracy: float) -> httpx.Response:
    """A node's answer to an order to evaluate."""
    return stage.report(b"", node, body=None, metrics={"eval/accuracy": accuracy})


@pytest.mark.timeout(180)
@pytest.mark.parametrize("point", at_night(POINTS, but=OFTEN))
def test_deaths_on_the_way_there_and_back(point: str, server: Callable[..., Server]) -> None:
    running = server(lease_s=3600.0).start()
    stage = set_up(cast("Inside", running), gossip={**GOSSIP, "gate": 0.02})
    running.end()
    lives = Lives(running, point, POINTS[point])

    def switch(to: str) -> None:
        answer = lives.surely(lambda: running.request("POST", "/api/v1/jobs/main/switch", json={"to": to}))
        assert answer.status_code == 200, answer.text

    def poll(name: str, kind: str = "gossip", *, recall: bool = False) -> None:
        def look() -> bool:
            answer = lives.surely(lambda: stage.send(name, "GET", "/work", params={"wait_s": 1, "job": "main"}))
            if answer.status_code == 200:
                stage.orders[name] = cast("Any", wire.decode(answer.content).message)
            return stage.orders[name].kind == kind and stage.orders[name].recall == recall

        stage.orders.setdefault(name, stage.orders["n0"])
        until(f"the order of {name}", look)

    def reported(name: str) -> bool:
        ack = wire.decode(lives.surely(lambda: report(stage, name)).content).message
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
            stage.orders[name] = replace(stage.orders[name], kind="train")  # of an earlier life: it stands anew
            poll(name, recall=True)
    for accuracy in (0.5, 0.75):
        for name in ALL:
            poll(name, "evaluate")
            lives.surely(lambda name=name, found=accuracy: measured(stage, name, found))
            stage.orders[name] = replace(stage.orders[name], kind="train")  # done with: the next one is wanted
    assert not lives.left, f"{point} was not passed so often: make the scenario pass it"
    lives.surely(lambda: running.request("GET", "/readyz"))
    job = running.job("main")
    assert (job["mode"], job["version"]) == ("server", 1)
    assert np.array_equal(model_of(running, 1), merged(initial(SIZE), *ALL))
    moves = [note["text"] for note in running.notes("main", "mode")]
    assert moves == [
        "the peers carry on: by an operator",
        "back to the server: by an operator",
        "back at the server",
    ]
    why = running.rows("SELECT why FROM versions WHERE number = 1")
    assert "accuracy 0.75 after 0.5, measured by 3 nodes" in str(why)
    stage.close()
