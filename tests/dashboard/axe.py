"""Findings of axe-core on a page."""

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
    """Return the findings of axe-core, once the page has come into its frame, which is there first."""
    page.locator("h1").first.wait_for()
    page.evaluate(script())
    return page.evaluate(FIND)
