"""The table of the comparison: what a round cost each framework, and how many times the floor of the same run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

FLOOR = "floor"
COLUMNS = ("round_s", "server_s", "client_s", "server_mb")
NONE = "-"


def table(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with ratios to the floor of the same nodes and megabytes; a failure is told in its row."""
    floors = {(one["nodes"], one["megabytes"]): one for one in results if one["framework"] == FLOOR}
    return [_row(one, floors.get((one["nodes"], one["megabytes"]), {})) for one in results]


def _row(result: dict[str, Any], floor: dict[str, Any]) -> dict[str, Any]:
    figures = {name: result.get(name, NONE) for name in COLUMNS}
    return {
        **{name: result[name] for name in ("nodes", "megabytes", "framework")},
        "rounds": result.get("rounds", NONE),
        "round_s": figures["round_s"],
        "times_floor": _ratio(result, floor, "round_s"),
        "server_core_s": figures["server_s"],
        "server_times_floor": _ratio(result, floor, "server_s"),
        "client_core_s": figures["client_s"],
        "server_peak_mb": figures["server_mb"],
        "error": result.get("error", ""),
    }


def _ratio(result: dict[str, Any], floor: dict[str, Any], name: str) -> float | str:
    if name not in result or not floor.get(name):
        return NONE
    return float(result[name] / floor[name])
