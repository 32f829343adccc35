"""The same words for states and columns in the command line and the dashboard, and the API's values behind both."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.commands.job_peers import peer_table
from shoal.cli.commands.jobs import node_table
from shoal.cli.failures import OUTCOMES, PHASES
from shoal.peering.http.node_overview import MODES
from tests.cli.test_job_peers import a_peer

DASHBOARD = Path(__file__).parents[2] / "dashboard"
ONLY_HERE = {"term", "weight"}
"""Columns that the dashboard shows elsewhere: the term below the mode, the weight with the reports."""


def source(path: str) -> str:
    return (DASHBOARD / "src" / path).read_text(encoding="utf-8")


def labels(path: str, name: str) -> dict[str, str]:
    """Return the texts of a table of the dashboard by value: `value: "Text"` or `value: { text: "Text" }`."""
    body = source(path).partition(f"export const {name}")[2].partition("\n};")[0]
    return dict(re.findall(r'^  "?([\w-]+)"?: (?:\{ \w+: )?"([^"]+)"', body, re.MULTILINE))


def values(schema: str, field: str) -> set[str]:
    """Return the values of a field in the API."""
    found: dict[str, Any] = json.loads((DASHBOARD / "openapi.json").read_text(encoding="utf-8"))
    return set(found["components"]["schemas"][schema]["properties"][field]["enum"])


def titles(path: str) -> set[str]:
    """Return the titles of a table's columns."""
    return {title.lower() for title in re.findall(r'(?:title: |figure\()"([^"]+)"', source(path))}


def test_outcomes_of_failures() -> None:
    shown = labels("failures/failures.ts", "OUTCOMES")
    assert set(shown) == set(OUTCOMES) == values("FailureView", "outcome")
    assert {value: text.lower() for value, text in shown.items()} == OUTCOMES


def test_phases_of_failures() -> None:
    shown = labels("failures/failures.ts", "PHASES")
    assert set(shown) == values("FailureView", "phase")
    assert {value: text for value, text in shown.items() if text != value} == PHASES


def test_kinds_of_alerts() -> None:
    """The command line shows the API's values."""
    shown = labels("alerts/alerts.ts", "ALERT_KINDS")
    assert set(shown) == values("AlertView", "kind")
    assert {text.lower().replace(" ", "-") for text in shown.values()} == set(shown)


def test_modes_of_peers() -> None:
    shown = labels("peers/peerStatus.ts", "STATUS_STYLES")
    assert {value: shown[value].lower() for value in MODES if value != "coordinated"} == {
        value: text for value, text in MODES.items() if value != "coordinated"
    }


@pytest.mark.parametrize(
    ("table", "path"),
    [(node_table([]), "job/NodesTable.tsx"), (peer_table([a_peer("a")]), "peers/PeersTable.tsx")],
    ids=["nodes", "peers"],
)
def test_columns(table: Any, path: str) -> None:
    columns = {str(column.header) for column in table.columns}
    assert columns - ONLY_HERE <= titles(path)
