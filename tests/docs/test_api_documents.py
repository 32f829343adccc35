"""Generated documents of the API match the code."""

from __future__ import annotations

import json
import re

import pytest
from pydantic import BaseModel

from shoal_coordinator.api.openapi import document
from shoal_coordinator.settings import Settings
from shoal_edge_client.settings import EdgeSettings
from tests.conventions.prose import VERBS
from tests.docs.tables import ROOT

VERB_AND_OBJECT = re.compile(f"({'|'.join(verb.lower().replace('-', '_') for verb in VERBS)})(_[a-z]+)+")


def test_the_openapi_file_of_the_dashboard_is_in_step() -> None:
    said = (ROOT / "dashboard/openapi.json").read_text()
    assert said == document(), (
        "run `python -m shoal_coordinator.api.openapi > dashboard/openapi.json` and `npm run types`"
    )


def test_a_schema_has_the_plain_name_of_its_class() -> None:
    schemas = json.loads(document())["components"]["schemas"]
    assert not [name for name in schemas if not re.fullmatch(r"[A-Za-z]+", name)], "not made up of a class's parameters"


def test_an_operation_is_named_by_a_verb_and_its_object() -> None:
    """Show that each method of a generated client says what it does, and that no two have one name."""
    paths = json.loads(document())["paths"]
    names = [operation["operationId"] for operations in paths.values() for operation in operations.values()]
    assert not badly_named(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["jobs", "remove", "job_schema", "list_", "list_jobs_api_v1_jobs_get", "listJobs"])
def test_operations_of_other_names_are_found(name: str) -> None:
    assert badly_named(["list_jobs", name, "re_enrol_node"]) == [name]


def badly_named(operations: list[str]) -> list[str]:
    """Return the ids that are not a verb of `verbs.txt` with an object."""
    return [name for name in operations if not VERB_AND_OBJECT.fullmatch(name)]


@pytest.mark.parametrize(("settings", "page"), [(Settings, "coordinator"), (EdgeSettings, "edge")])
def test_every_setting_says_what_it_is(settings: type[BaseModel], page: str) -> None:
    assert not [name for name, field in settings.model_fields.items() if not field.description]
    text = (ROOT / f"docs/reference/{page}-settings.md").read_text()
    assert not [name for name in settings.model_fields if f"`{name}`" not in text]
