"""What axe-core finds on a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

SCRIPT = Path(__file__).parents[2] / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"
FIND = """axe.run().then(({ violations }) =>
    violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map(({ html }) => html).join(" ")}`))"""


def script() -> str:
    """It is put into the page past its policy."""
    if not SCRIPT.is_file():
        pytest.skip("axe-core is not installed: npm ci in dashboard/")
    return SCRIPT.read_text(encoding="utf-8")


def violations(page: Page) -> Any:
    """What axe-core objects to, once the page has come into the frame around it, which is there first."""
    page.locator("h1").first.wait_for()
    page.evaluate(script())
    return page.evaluate(FIND)
