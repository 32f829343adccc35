"""What a schedule sees of four nodes, and its decisions in short. Letters stand for nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shoal.core.schedule import Advance, Ask, Close, Decision, Recall, View, Wait, Warn

FOUR = ("a", "b", "c", "d")


def four(reports: str = "", recalled: str = "", waiting: str = "", away: str = "", **more: Any) -> View:
    """Four nodes at work for version 3, ten seconds after it was opened."""
    idle = {*reports, *away}
    return replace(
        View(
            now=100.0,
            version=3,
            opened=90.0,
            population=4,
            members=FOUR,
            busy={node: "train" for node in FOUR if node not in idle},
            asked=frozenset(FOUR),
            reports=tuple(reports),
            failed=frozenset(),
            seconds=(),
            seed=1,
            recalled=frozenset(recalled),
            recalled_at=100.0 if recalled else None,
            waiting=frozenset(waiting),
            norms=dict.fromkeys(reports, 2.0),
            gap=lambda: 0.5,
        ),
        **more,
    )


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
