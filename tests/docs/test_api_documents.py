"""Generated documents of the API match the code."""

from __future__ import annotations

from shoal_coordinator.api.openapi import document
from shoal_coordinator.settings import Settings
from tests.docs.tables import ROOT


def test_the_openapi_file_of_the_dashboard_is_in_step() -> None:
    said = (ROOT / "dashboard/openapi.json").read_text()
    assert said == document(), (
        "run `python -m shoal_coordinator.api.openapi > dashboard/openapi.json` and `npm run types`"
    )


def test_every_setting_says_what_it_is() -> None:
    assert not [name for name, field in Settings.model_fields.items() if not field.description]
    text = (ROOT / "docs/operation.md").read_text()
    assert not [name for name in Settings.model_fields if f"`{name}`" not in text]
