"""The page on which jobs are written: a form, its file, the coordinator's word on it, and the way into the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.sign_in import sign_in
from tests.support.coordinator import Inside, inside

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture
def running(browser: Browser, tmp_path: Path) -> Iterator[Inside]:
    """A coordinator. (The browser is there first: without one there is nothing to do.)"""
    with inside(tmp_path / "data", lease_s=86_400.0) as made:
        yield made


@pytest.fixture
def form(running: Inside, page: Page) -> Page:
    """An operator at an empty form."""
    page.goto(running.url)
    sign_in(page)
    page.get_by_test_id("new-job").click()
    expect(page.get_by_role("heading", name="New job")).to_be_visible()
    return page


def test_a_form_becomes_a_file_and_a_job(running: Inside, form: Page, errors: list[str]) -> None:
    name = form.locator(".field", has=form.get_by_label("name required"))
    expect(form.get_by_test_id("validation")).to_contain_text("Enter a name")
    expect(name.locator(".field-mistake")).to_have_count(0)  # no node has had a chance to give one
    expect(form.get_by_test_id("create-paused")).to_be_disabled()
    form.get_by_test_id("start-job").click()
    expect(name.locator(".field-mistake")).to_contain_text("must have 1 to 63 of a-z")
    expect(form.get_by_test_id("start-job")).to_be_disabled()
    form.get_by_label("name required").fill("digits")
    form.get_by_label("rounds", exact=True).first.fill("3")
    form.get_by_label("algorithm", exact=True).select_option("fedprox")
    form.get_by_label("mu", exact=True).fill("0.5")
    form.locator("summary", has_text="filters").click()
    form.get_by_role("button", name="Add").click()
    form.get_by_label("filters 1", exact=True).select_option("quantize")
    form.get_by_label("bits").select_option("4")
    expect(form.get_by_test_id("validation")).to_contain_text("Valid")
    wanted = 'name = "digits"\nrounds = 3\n\n[algorithm]\nname = "fedprox"\nmu = 0.5\n\n'
    wanted += '[schedule]\nname = "rounds"\n\n[[filters]]\nname = "quantize"\nbits = 4\n'
    assert sorted(form.get_by_test_id("toml").input_value().split("\n\n")) == sorted(wanted.split("\n\n"))
    expect(form.get_by_test_id("command")).to_contain_text(f"shoal run digits.toml --url {running.url}")
    form.get_by_test_id("start-job").click()
    expect(form.get_by_role("heading", name="digits")).to_be_visible()
    spec = running.job("digits")["spec"]
    assert (spec["algorithm"], spec["filters"]) == ({"name": "fedprox", "mu": 0.5}, [{"name": "quantize", "bits": 4}])
    assert not errors


def test_stages_are_rows_of_fields(form: Page, errors: list[str]) -> None:
    form.get_by_label("name required").fill("growing")
    form.get_by_label("rounds", exact=True).first.fill("9")
    stages = form.locator("details", has=form.locator("summary", has_text="stages"))
    stages.locator("summary").click()
    for _ in range(3):
        stages.get_by_role("button", name="Add").click()
    stages.locator("fieldset").first.get_by_label("rounds", exact=True).fill("3")
    stages.get_by_role("button", name="Remove stages 3").click()
    expect(form.get_by_test_id("validation")).to_contain_text("Valid")
    assert "[[stages]]\nrounds = 3\n\n[[stages]]" in form.get_by_test_id("toml").input_value()
    assert not errors


def test_fields_follow_the_choice_and_mistakes_stand_at_their_fields(form: Page) -> None:
    form.get_by_label("name required").fill("Not A Name")
    expect(form.get_by_label("mu", exact=True)).to_have_count(0)
    form.get_by_label("schedule", exact=True).select_option("divergence")
    field = form.locator(".field", has=form.get_by_label("algorithm", exact=True))
    expect(form.locator(".field", has=form.get_by_label("name required"))).to_contain_text("must have 1 to 63 of a-z")
    form.get_by_label("name required").fill("a")
    expect(field).to_contain_text("schedule divergence waits until nodes that train on report a violation")
    expect(field).to_contain_text("dynamic")
    form.get_by_label("algorithm", exact=True).select_option("dynamic")
    expect(form.get_by_test_id("start-job")).to_be_enabled()
    form.get_by_label("algorithm", exact=True).select_option("fda")
    expect(form.get_by_label("schedule", exact=True)).to_have_value("variance")
    expect(form.get_by_test_id("start-job")).to_be_enabled()


def test_the_file_may_be_written_by_hand(form: Page) -> None:
    text = 'name = "b"\n# a remark\n[algorithm]\nname = "fedavg"\nlr = 0.25\nepoch = 2\n'
    form.get_by_test_id("toml").fill(text)
    expect(form.get_by_label("lr", exact=True)).to_have_value("0.25")
    expect(form.get_by_text("did you mean 'epochs'?")).to_be_visible()
    form.get_by_test_id("toml").fill(text.replace("epoch =", "epochs ="))
    expect(form.get_by_test_id("start-job")).to_be_enabled()
    assert "# a remark" in form.get_by_test_id("toml").input_value()
    form.get_by_test_id("toml").fill("name = ")
    expect(form.get_by_test_id("validation")).to_contain_text("at end of document")
    expect(form.get_by_label("lr", exact=True)).to_have_value("0.25")


def test_a_copy_of_a_job_has_what_it_had_under_another_name(running: Inside, form: Page) -> None:
    running.begin("old", nodes=2, rounds=7, title="<b>bold</b>", algorithm={"name": "fedavg", "lr": 0.5})
    form.goto(f"{running.url}/new?from=old")
    expect(form.get_by_label("name required")).to_have_value("old-2")
    expect(form.get_by_label("title")).to_have_value("<b>bold</b>")
    expect(form.get_by_label("lr", exact=True)).to_have_value("0.5")
    assert "gossip" not in form.get_by_test_id("toml").input_value()
    form.get_by_label("lr", exact=True).fill("0.125")
    form.wait_for_url("**0.125**")
    form.reload()
    expect(form.get_by_label("lr", exact=True)).to_have_value("0.125")


def test_a_hostile_address_is_only_text(running: Inside, form: Page, errors: list[str]) -> None:
    form.set_viewport_size({"width": 390, "height": 900})
    name = "<img src=x onerror=alert(1)>\u202e" + "x" * 4000
    form.goto(f'{running.url}/new?spec={quote(f"""{{"name": "{name}", "algorithm": 7, "filters": "x"}}""")}')
    expect(form.get_by_test_id("validation")).to_have_attribute("data-errors", "3")
    expect(form.get_by_test_id("start-job")).to_be_disabled()
    assert form.evaluate("document.documentElement.scrollWidth") <= 390
    assert not errors


def test_by_keyboard_alone(running: Inside, form: Page) -> None:
    form.get_by_label("name required").focus()
    form.keyboard.type("keys")
    expect(form.get_by_test_id("start-job")).to_be_enabled()
    form.keyboard.press("Enter")
    expect(form.get_by_role("heading", name="keys")).to_be_visible()


def test_who_takes_part_is_chosen_in_the_form(running: Inside, form: Page, errors: list[str]) -> None:
    form.get_by_label("name required").fill("chosen")
    form.get_by_label("selection", exact=True).select_option("power_of_choice")
    form.get_by_label("tags", exact=True).fill("phone, ")
    expect(form.get_by_label("tags", exact=True)).to_have_value("phone, ")
    form.get_by_label("tags", exact=True).fill("phone, eu")
    form.get_by_label("hours", exact=True).fill("9-17")
    expect(form.get_by_text("'9-17' are not hours")).to_be_visible()
    form.get_by_label("hours", exact=True).fill("phone 22:00-06:00")
    expect(form.get_by_test_id("start-job")).to_be_enabled()
    form.set_viewport_size({"width": 390, "height": 900})
    assert form.evaluate("document.documentElement.scrollWidth") <= 390
    form.get_by_test_id("start-job").click()
    expect(form.get_by_role("heading", name="chosen")).to_be_visible()
    wanted = {"name": "power_of_choice", "tags": ["phone", "eu"], "hours": ["phone 22:00-06:00"]}
    assert running.job("chosen")["spec"]["selection"] == wanted
    assert not errors
