"""What is known of nodes while this process runs: signs of life, progress, the last thing that each did."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sqlalchemy import Row

from shoal.core.errors import Refused
from shoal.core.message import About, Drain, OrderId
from shoal.core.roster import Leases
from shoal.core.selection import of_info
from shoal.core.tree import ModelForm

REPETITION_S = 10.0
"""The same error of the same node within that time is no news."""

REFUSALS_MAX, REFUSAL_S = 5, 60.0
"""People are told of so many refusals of a node in a job at once, and of one more in so many seconds."""

Availability = Literal["active", "drained", "blocked"]
"""Whether a node is asked. Drained: it finishes what it has. Blocked: its orders are withdrawn too."""

TURNED_AWAY_S = 60.0

LAYOUTS_KEPT = 64
"""Each may have 64 KiB."""

LOSSES_KEPT = 32
"""A node's losses that are shown as a line."""


@dataclass
class Doing:
    """A node's part in one job, as people see it. Nothing here decides anything."""

    progress: float | None = None
    order: OrderId | None = None
    asked_at: float | None = None  # monotonic
    seconds: float | None = None
    reports: int = 0
    weight: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    losses: deque[Any] = field(default_factory=lambda: deque(maxlen=LOSSES_KEPT))
    last_error: str | None = None
    last_error_at: float = 0.0  # monotonic
    failures: int = 0
    _told: float = 0.0
    """Refusals that people were told of lately: it falls by one in `REFUSAL_S`."""
    _told_at: float = 0.0
    _untold: int = 0

    def begin(self, order: OrderId) -> None:
        """The node was sent that order (perhaps again)."""
        if self.order != order:
            self.order, self.progress, self.asked_at = order, 0.0, time.monotonic()

    def asked(self, order: OrderId) -> float | None:
        """When the node was sent the order that it works on; None for any other."""
        return self.asked_at if self.order == order else None

    def finish(self, order: OrderId, asked_at: float | None, weight: float | None, metrics: dict[str, Any]) -> None:
        """Its report on that order was counted. The next one may have been sent to it meanwhile."""
        if asked_at is not None:
            self.seconds = time.monotonic() - asked_at
        if self.order == order:
            self.order, self.progress = None, None
        self.reports += 1
        self.metrics = self.metrics | metrics
        if "train/loss" in metrics:
            self.losses.append(metrics["train/loss"])
        self.weight = self.weight if weight is None else weight

    def fail(self, error: str) -> bool:
        """Its order failed, or what it sent was refused; whether people are told: not of repetitions, nor of more than
        `REFUSALS_MAX` at once and one in `REFUSAL_S`, for a node could bury all else so."""
        now = time.monotonic()
        since = now - self._told_at
        self._told = max(0.0, self._told - since / REFUSAL_S)
        self._told_at = now
        news = error != self.last_error or now - self.last_error_at > REPETITION_S
        news = news and self._told <= REFUSALS_MAX - 1
        self._told += news
        self._untold += not news
        self.order, self.progress = None, None
        self.failures += 1
        self.last_error, self.last_error_at = error, now
        return news

    def untold(self) -> str:
        """To be added to what people are told now: how much they were not."""
        count, self._untold = self._untold, 0
        return f" ({count} more before were not shown)" if count else ""


class Presence:
    """All nodes. Times are this process's monotonic clock, in seconds."""

    def __init__(self, lease_s: float) -> None:
        self.leases = Leases(lease_s)
        self.lease_s = lease_s
        self.info: dict[str, dict[str, Any]] = {}
        self.joined_at: dict[str, float] = {}
        self.doing: defaultdict[tuple[str, str], Doing] = defaultdict(Doing)
        self._about: dict[str, About] = {}
        self._layouts: dict[str, dict[str, str]] = {}
        self._turned_away: dict[str, dict[str, float]] = {}  # by node and job, when it was told so last (monotonic)
        self.held: dict[str, Availability] = {}
        """Nodes that operators have drained or blocked."""
        self._last: dict[str, float] = {}
        self._open: defaultdict[str, int] = defaultdict(int)
        self.changed: set[str] = set()
        self.lost: set[str] = set()
        """Nodes that fell silent, until they are heard again."""

    def heard(self, node: str) -> None:
        """A sign of life."""
        now = time.monotonic()
        self.leases.heard(node, now)
        self._last[node] = max(now, self._last.get(node, now))
        self.lost.discard(node)
        self.changed.add(node)

    def tell(self, node: str, info: dict[str, Any]) -> None:
        """A node says this of itself. Raises `Refused` for tags or hours that are none."""
        self._about[node], self.info[node] = of_info(info), info
        self._turned_away.pop(node, None)

    def take_up(self, row: Row[Any]) -> None:
        """Know a node as the database has it."""
        self.joined_at[row.name] = row.joined_at
        self.info[row.name] = row.info
        self.hold(row.name, row.availability)
        with suppress(Refused):  # one that said so before tags were looked at
            self.tell(row.name, row.info)

    def turn_away(self, node: str, job: str) -> bool:
        """Whether to tell a node now that its model is not the job's: at once, and again in case that was lost."""
        told, now = self._turned_away.setdefault(node, {}), time.monotonic()
        if now - told.get(job, -TURNED_AWAY_S) < TURNED_AWAY_S:
            return False
        told[job] = now
        return True

    def show_layout(self, node: str, layout: dict[str, str] | None) -> None:
        """A node names the tensors of its learner's model; kept for the newest `LAYOUTS_KEPT` forms of models."""
        form = self.about(node).model
        if form is not None and layout is not None:
            self._layouts.pop(form.digest, None)
            self._layouts[form.digest] = layout
            while len(self._layouts) > LAYOUTS_KEPT:
                del self._layouts[next(iter(self._layouts))]

    def layout(self, form: ModelForm) -> dict[str, str] | None:
        """The tensors of models of that form; None where none that is there has named them."""
        return self._layouts.get(form.digest)

    def about(self, node: str) -> About:
        """What bears on whether a node is asked: what it has said of itself, and what operators want."""
        about, availability = self._about.get(node, About()), self.held.get(node)
        return about if availability is None else replace(about, held=f"{availability} by an operator")

    def hold(self, node: str, availability: Availability) -> None:
        """Operators want that of a node."""
        if availability == "active":
            self.held.pop(node, None)
        else:
            self.held[node] = availability
        self.changed.add(node)

    def drain(self, node: str) -> Drain:
        """The same as it is told to a job."""
        return Drain(node, self.about(node).held, withdraw=self.held.get(node) == "blocked")

    def introduce(self, node: str) -> None:
        """A node that is known, though it has not said anything here yet."""
        self.info.setdefault(node, {})
        self.joined_at.setdefault(node, time.time())

    def expect(self, node: str, spare_s: float = 0.0) -> None:
        """A member of a job: it has a whole lease, and so much more, from now on if it has none, as after a restart."""
        now = time.monotonic()
        if self.leases.age(node, now) is None:
            self.leases.heard(node, now + spare_s)

    def ages(self) -> dict[str, float]:
        """Seconds since the last sign of life of each node that is not lost; below 0: it was asked to stay away."""
        now = time.monotonic()
        found = {node: now - last for node, last in self._last.items() if self.leases.age(node, now) is not None}
        return found | {node: 0.0 for node, polls in self._open.items() if polls}

    def learn(self, ages: dict[str, float]) -> None:
        """Another coordinator, which nodes poll, has heard of them that long ago."""
        now = time.monotonic()
        for node, age in ages.items():
            self.leases.heard(node, now - age)
            self._last[node] = max(now - age, self._last.get(node, now - age))
            self.lost.discard(node)

    def spare(self) -> None:
        """Nobody could be heard for a while: all who were there have a whole lease from now on."""
        now = time.monotonic()
        for node in [node for node in self._last if self.leases.age(node, now) is not None]:
            self.leases.heard(node, now)

    def pause(self, node: str, seconds: float) -> None:
        """A node was asked to stay away for so long: its lease begins after that."""
        self._last[node] = time.monotonic() + seconds
        self.leases.heard(node, self._last[node])

    @contextmanager
    def listening(self, node: str) -> Iterator[None]:
        """While a node's poll is open, it is there; and if it was asked to stay away for a while, that is over."""
        self.leases.forget(node)
        self._last.pop(node, None)
        self.heard(node)
        self._open[node] += 1
        try:
            yield
        finally:
            self._open[node] -= 1
            self.heard(node)

    def expired(self) -> list[str]:
        """Nodes that have become silent; each is named once."""
        now = time.monotonic()
        for node, polls in self._open.items():
            if polls:
                self.leases.heard(node, now)
                self._last[node] = now
        silent = self.leases.expired(now)
        self.lost.update(silent)
        return silent

    def silent_s(self, node: str) -> float | None:
        """Seconds since the last sign of life; None when there was none in this process."""
        if self._open.get(node):
            return 0.0
        return max(0.0, time.monotonic() - self._last[node]) if node in self._last else None

    def is_stale(self, node: str) -> bool:
        """Silent for more than half of its lease."""
        silent = self.silent_s(node)
        return silent is None or silent > self.lease_s / 2

    def states(self) -> dict[str, int]:
        """Count nodes by state: "online", "stale" (silent for more than half of a lease) and "gone"."""
        now, stale, gone = time.monotonic(), 0, 0
        fresh_since, here_since, polls = now - self.lease_s / 2, now - self.lease_s, self._open
        for node, last in self._last.items():  # tens of thousands: nothing is made for any of them
            if last < fresh_since and not polls.get(node):
                if last < here_since:
                    gone += 1
                else:
                    stale += 1
        never = max(0, len(self.info) - len(self._last))
        return {"online": len(self._last) - stale - gone, "stale": stale, "gone": gone + never}

    def forget(self, node: str) -> None:
        self.leases.forget(node)
        self._last.pop(node, None)
        self.lost.discard(node)
        self.info.pop(node, None)
        self._about.pop(node, None)
        self._turned_away.pop(node, None)
        self.held.pop(node, None)
