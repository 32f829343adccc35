"""The page of a split job in a real browser: its rounds, its turns and the bytes of its steps, live."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from shoal.core.protocol.split_message import SplitMessage, SplitPoll, TurnFailed
from shoal.wire.split_codec import SplitFrame, encode
from shoal_coordinator.split.split_runner import SplitJobRunner
from tests.coordinator.test_split_jobs import Clinic, Crashes
from tests.dashboard import axe
from tests.dashboard.screens import each_screen
from tests.support.coordinator import Inside, inside
from tests.support.split_learners import JOB, PARTS, toml

pytestmark = [pytest.mark.timeout(300)]

WHY = "no such class"


class Clinics:
    """Two nodes that exchange frames by hand, and one that fails in its first turn."""

    def __init__(self, running: Inside, folder: Path) -> None:
        self.running = running
        self.runner: SplitJobRunner = running.coordinator.jobs.split.runner("clinics")
        self._headers = {name: self._enrol(name) for name in (*PARTS, "c")}
        self.nodes = [Clinic(folder, name, self.runner, Crashes([])) for name in PARTS]

    def _enrol(self, name: str) -> dict[str, str]:
        body = {"token": self.running.token(), "name": name, "info": {}}
        credential = self.running.request("POST", "/api/v1/enrol", json=body).json()["credential"]
        return {"Authorization": f"Bearer {credential}"}

    def _post(self, node: str, frame: bytes) -> bytes:
        answer = self.running.request("POST", "/api/v1/split/clinics", content=frame, headers=self._headers[node])
        assert answer.status_code < 300, answer.text
        return answer.content

    def say(self, message: SplitMessage) -> None:
        """Send a message of the third node."""
        self._post("c", encode(SplitFrame("clinics", message)))

    def train(self, until: Callable[[], bool]) -> None:
        """Exchange messages until this holds."""
        while not until():
            for node in self.nodes:
                if not until() and (answer := self._post(node.name, node.frame())):
                    node.take(answer)

    def turn_of(self, name: str) -> int | None:
        """The batches of a node's open turn that are done."""
        return next((one.part.next_batch for one in self.runner.state.open if one.node == name), None)


@pytest.fixture(scope="module")
def clinics(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinics]:
    """A job in its third round, one batch of which is done."""
    folder = tmp_path_factory.mktemp("split")
    (folder / "job.toml").write_text(toml({**JOB, "rounds": 4}))
    with inside(folder / "data", split_jobs=[str(folder / "job.toml")], lease_s=86_400.0) as running:
        made = Clinics(running, folder)
        made.train(lambda: made.turn_of("a") == 1)
        made.say(SplitPoll("c"))
        made.train(lambda: made.turn_of("c") is not None)
        made.say(TurnFailed("c", made.runner.state.turns, WHY))
        made.train(lambda: made.turn_of("a") == 1)
        yield made


@each_screen
def test_nothing_sticks_out_or_is_objected_to(clinics: Clinics, browser: Browser, scheme: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    for place, shown in (("", "split-jobs"), ("split/clinics", "chart-split-bytes")):
        page.goto(f"{clinics.running.url}/{place}")
        expect(page.get_by_test_id(shown)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, place
        assert axe.violations(page) == [], place
    page.close()


def test_a_split_job_is_followed_to_its_end(clinics: Clinics, page: Page, errors: list[str]) -> None:
    page.goto(clinics.running.url)
    page.get_by_test_id("split-jobs").get_by_role("link", name="clinics").click()
    expect(page).to_have_url(f"{clinics.running.url}/split/clinics")
    expect(page.get_by_test_id("split-round")).to_have_text("2 of 4")
    expect(page.get_by_test_id("split-turn")).to_have_text("a")
    rows = page.get_by_test_id("split-nodes").locator("tbody tr")
    expect(rows).to_have_count(3)
    for row, text in enumerate(("1 step", "Idle", f"excluded: {WHY}")):
        expect(rows.nth(row)).to_contain_text(text)
    for chart in ("loss", "bytes"):
        place = page.get_by_test_id(f"chart-split-{chart}")
        place.get_by_role("button", name="show as table").click()
        expect(place.locator("tbody tr")).to_have_count(2)
    expect(page.get_by_test_id("chart-split-bytes")).to_contain_text("By formula: 384 B up, 384 B down")
    clinics.train(lambda: bool(clinics.runner.state.ended))
    expect(page.get_by_test_id("split-state")).to_have_attribute("data-state", "done")
    expect(page.get_by_test_id("split-turn")).to_have_text("–")
    expect(page.get_by_test_id("chart-split-loss").locator("tbody tr")).to_have_count(4)
    assert not errors


def test_a_split_job_that_is_not_there(clinics: Clinics, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"{clinics.running.url}/split/nothing")
    expect(page.get_by_role("heading", name="Job not found")).to_be_visible()
    page.close()
