"""Periodic averaging's decisions about who is asked, as tables of what the coordinator sees and what it does."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.core.scheduling.schedule import View
from shoal.schedules.periodic import Periodic
from tests.schedules.views import FOUR, four, told


def done(nodes: str) -> frozenset[str]:
    return frozenset(nodes)


TABLE: dict[str, tuple[dict[str, Any], View, list[str]]] = {
    "a newcomer": ({}, four(away="c"), ["ask c"]),
    "who has trained enough is left alone": ({}, four(away="c", finished=done("c")), ["wait"]),
    "and is not asked beside those who learn": ({}, four(away="bc", finished=done("c")), ["ask b"]),
    "the others are averaged without it": ({}, four("abd", away="c", finished=done("c")), ["close abd rebase"]),
    "nobody learns any more, and nobody has said so in this version": (
        {},
        four(away="abcd", finished=done("abcd")),
        ["ask abcd"],
    ),
    "all say so": ({}, four("abcd", finished=done("abcd")), ["close rebase last"]),
    "a share: who has trained enough is left alone": (
        {"fraction": 0.5},
        four(away="c", waiting="abd", finished=done("c")),
        ["recall ab"],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_who_is_asked(name: str) -> None:
    fields, seen, wanted = TABLE[name]
    decisions = told(Periodic(**fields).decide(seen))
    if wanted == ["recall ab"]:  # which two is drawn
        assert [word.split()[0] for word in decisions] == ["recall"]
        assert set(decisions[0].split()[1]) < {*FOUR} - {"c"}
        return
    assert decisions == wanted
