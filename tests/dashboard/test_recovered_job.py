"""A job that goes on at a coordinator which had lost its disk says so on its page."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.scenario import PATIENCE_MS
from tests.support.coordinator import inside
from tests.support.lost_coordinator import go_on, keep, one_round
from tests.support.peers import GOSSIP, OPEN, join_as_peers
from tests.support.scenario import set_up

pytestmark = [pytest.mark.timeout(300)]


def test_where_it_goes_on_from_and_what_is_lost(page: Page, errors: list[str], tmp_path: Path) -> None:
    with inside(tmp_path / "lost", **OPEN) as running:
        stage = set_up(running, gossip=GOSSIP)
        join_as_peers(stage, "n0", "n1")
        page.goto(f"{running.url}/jobs/main", timeout=PATIENCE_MS)
        expect(page.get_by_test_id("job-state")).to_be_visible(timeout=PATIENCE_MS)
        expect(page.get_by_test_id("job-restored")).to_have_count(0)
        one_round(stage)
        kept = keep(stage, tmp_path)
        stage.close()
        page.goto("about:blank")
    (tmp_path / "new").mkdir()
    shutil.copy2(kept.key, tmp_path / "new" / "coordinator.pem")
    errors.clear()  # of a page whose coordinator went away
    with inside(tmp_path / "new", **OPEN) as running:
        assert go_on(running, kept, node="n0").status_code == 201
        page.goto(f"{running.url}/jobs/main", timeout=PATIENCE_MS)
        found = page.get_by_test_id("job-restored")
        expect(found).to_contain_text("restored from n0 at version 1, term 1002", timeout=PATIENCE_MS)
        expect(found).to_contain_text("earlier versions, metrics and byte counts are lost")
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.screenshot(path=str(tmp_path / f"{width}.png"))
            box = found.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
        page.goto("about:blank")
    assert errors == []
