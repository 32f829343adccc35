"""Views of four nodes for a schedule, and its decisions in short. Letters stand for nodes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from shoal.core.scheduling.round import Round
from shoal.core.scheduling.schedule import (
    Advance,
    Ask,
    Close,
    Decision,
    ModelMonitor,
    NodeSampler,
    NodeStates,
    Recall,
    View,
    Wait,
    Warn,
)

FOUR = ("a", "b", "c", "d")


PARTS = {"round": Round, "nodes": NodeStates, "sampler": NodeSampler, "monitor": ModelMonitor}
EMPTY = View(100.0, 3, Round(population=4), NodeStates(FOUR, {}))


def change(view: View, **given: Any) -> View:
    """The view with these fields, its own or its parts'; `reports` names the nodes whose reports are in."""
    if "reports" in given:
        given["reporters"] = list(given.pop("reports"))
    for name, part in PARTS.items():
        mine = {one.name: given.pop(one.name) for one in fields(part) if one.name in given}
        given[name] = replace(getattr(view, name), **mine)
    return replace(view, **given)


def make_view(**given: Any) -> View:
    """A view of four idle nodes, with these fields."""
    return change(EMPTY, **given)


def four(reports: str = "", recalled: str = "", waiting: str = "", away: str = "", **more: Any) -> View:
    """Four nodes at work for version 3, ten seconds after it was opened."""
    idle = {*reports, *away}
    known = make_view(
        opened_at=90.0,
        busy={node: "train" for node in FOUR if node not in idle},
        asked=set(FOUR),
        reports=reports,
        seed=1,
        recalled=set(recalled),
        recalled_at=100.0 if recalled else None,
        waiting=frozenset(waiting),
        norms=dict.fromkeys(reports, 2.0),
        divergence=lambda: 0.5,
    )
    return change(known, **more)


def told(decisions: list[Decision]) -> list[str]:
    """Decisions in short, without reasons."""

    def short(one: Decision) -> str:
        match one:
            case Ask():
                return f"ask {''.join(one.nodes)}"
            case Recall():
                return f"recall {''.join(one.nodes)}"
            case Close():
                flags = [name for name in ("keep", "rebase", "last") if getattr(one, name)]
                return " ".join(("close", "".join(one.to), *flags)).replace("  ", " ")
            case Wait():
                return "wait" if one.until is None else f"wait {one.until:g}"
            case Advance():
                return "advance"
            case Warn():
                return f"warn {one.node}"

    return [short(one) for one in decisions]
