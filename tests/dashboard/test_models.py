"""The tab of a job's models: what there is to download, and which of them is promoted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.axe import violations
from tests.dashboard.screens import each_screen
from tests.dashboard.sign_in import sign_in
from tests.support.coordinator import Inside, inside
from tests.support.scenario import Stage, set_up, task_of
from tests.support.waiting import until

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def stage(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A job of three versions, of whose models the first is gone. (The browser is there first.)"""
    with inside(tmp_path_factory.mktemp("models") / "data", lease_s=86_400.0, models_kept=2) as running:
        made = set_up(running, checkpoint_every=2)
        made.dismiss("n2")
        for version in (1, 2):
            for node in made.nodes[:2]:
                made.tasks[node.node], _ = task_of(node, "main")
                assert made.report(node=node.node, metrics={"train/loss": 0.5 / version}).status_code == 200
            until("the version", lambda version=version: running.job("main")["version"] == version)
        kept = lambda: [row["version"] for row in running.get("/jobs/main/models", kept=True)["models"]]  # noqa: E731
        until("an old model to go", lambda: kept() == [2, 1])
        yield made
        made.close()


@pytest.fixture
def running(stage: Stage) -> Iterator[Inside]:
    """Without labels, before and after."""
    yield stage.running
    for label in stage.running.job("main")["labels"]:
        stage.running.request("DELETE", f"/api/v1/jobs/main/labels/{label}")


def test_a_version_is_promoted_downloaded_and_withdrawn(running: Inside, page: Page, errors: list[str]) -> None:
    page.goto(f"{running.url}/jobs/main")
    sign_in(page)
    page.get_by_role("tab", name="Models").click()
    rows = page.get_by_test_id("models-table").locator("tbody tr")
    expect(rows).to_have_count(2)
    page.get_by_label("Promote version 1").click()
    expect(page.get_by_test_id("effect")).to_have_text("production refers to version 1, and its model is kept.")
    page.get_by_label("Label").fill("12")
    expect(page.get_by_test_id("confirm")).to_be_disabled()
    page.get_by_label("Label").fill("candidate")
    page.get_by_label("Reason").fill("best so far")
    page.get_by_test_id("confirm").click()
    expect(page.get_by_test_id("model-1").locator(".model-label")).to_contain_text("candidate")
    assert running.job("main")["labels"] == {"candidate": 1}
    with page.expect_download() as saved:
        page.get_by_label("Download version 1").click()
    assert saved.value.suggested_filename == "main-1.safetensors"
    found = hashlib.sha256(Path(saved.value.path()).read_bytes()).hexdigest()
    expect(page.get_by_test_id("model-1").locator("code")).to_have_text(found[:12])
    page.get_by_label("Remove label candidate").click()
    expect(page.get_by_test_id("effect")).to_contain_text("candidate no longer refers to a model.")
    page.get_by_test_id("confirm").click()
    expect(page.get_by_test_id("model-1").locator(".model-label")).to_have_count(0)
    assert running.job("main")["labels"] == {}
    assert not errors


def test_another_operators_promotion_is_seen_at_once_and_by_viewers_who_have_no_button(
    running: Inside, page: Page
) -> None:
    page.goto(f"{running.url}/jobs/main?view=models&models=all")
    sign_in(page, running.post("/tokens", {"role": "viewer"})["token"])
    expect(page.get_by_test_id("model-0")).to_contain_text("deleted")
    expect(page.get_by_test_id("models-table").locator("tr", has_text="checkpoint")).to_have_count(1)
    expect(page.get_by_test_id("model-2")).to_contain_text("checkpoint")
    running.request("PUT", "/api/v1/jobs/main/labels/production", json={"version": 2})
    expect(page.get_by_test_id("model-2").locator(".model-label")).to_contain_text("production")
    for act in ("Promote version 2", "Remove label production"):
        expect(page.get_by_label(act)).to_have_count(0)
    refused = page.evaluate(
        """() => fetch("/api/v1/jobs/main/labels/production", {method: "DELETE"}).then((answer) => answer.json())"""
    )
    assert (refused["status"], refused["code"]) == (403, "auth.forbidden")
    assert running.job("main")["labels"] == {"production": 2}


def test_a_jobs_page_names_its_base_model(running: Inside, page: Page, errors: list[str]) -> None:
    running.post("/jobs", {"spec": {"name": "adapters", "base_model": "ab" * 32}})
    page.goto(f"{running.url}/jobs/adapters")
    sign_in(page)
    shown = page.get_by_test_id("base-model")
    expect(shown).to_have_text("base model abababababab · not uploaded, so each node must hold it")
    assert not errors


def test_the_run_is_saved_by_anybody_who_may_read(running: Inside, page: Page, errors: list[str]) -> None:
    page.goto(f"{running.url}/jobs/main")
    with page.expect_download() as saved:
        page.get_by_test_id("export-run").click()
    assert saved.value.suggested_filename == "main.jsonl"
    lines = [json.loads(line) for line in Path(saved.value.path()).read_text(encoding="utf-8").splitlines()]
    assert [line["number"] for line in lines if line["type"] == "version"] == [0, 1, 2]
    assert lines[-1]["type"] == "end"
    assert not errors


@each_screen
def test_everybody_can_read_it(running: Inside, browser: Browser, scheme: Any, width: int) -> None:
    running.request("PUT", "/api/v1/jobs/main/labels/production", json={"version": 2})
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(f"{running.url}/jobs/main?view=models&models=all")
    sign_in(page)
    expect(page.get_by_label("Remove label production")).to_be_visible()
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
