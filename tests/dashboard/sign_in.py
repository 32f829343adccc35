"""Signing in, for tests of pages."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.support.coordinator import OPERATOR


def sign_in(page: Page, token: str = OPERATOR) -> None:
    """Through the dialog, as people do."""
    page.get_by_test_id("sign-in").click()
    page.get_by_label("Token").fill(token)
    page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
