"""Who takes part in a job, what stands for whom, and who has been silent for too long."""

from __future__ import annotations

from base64 import b64decode, b64encode
from bisect import bisect_left
from dataclasses import astuple, dataclass, field, replace
from math import isfinite
from operator import attrgetter
from typing import Any

from shoal.core.message import About, Ack, Amendment, Kind, Order, OrderId, Ref, Report, Status, ref_of, ref_state
from shoal.core.metric import LOSS, TRAIN_LOSS
from shoal.core.selection import Candidate
from shoal.core.tree import ModelForm

FAILURES_MAX = 3
"""Failures in a row after which a node is not asked for a while, or until its process restarts."""

PAUSE_S, PAUSE_S_MAX = 60.0, 3600.0
"""The first such pause, and the longest: each failure after it doubles it. A full disk may be empty again by then."""

DEADLINES_KEPT = 10
"""Past deadlines of a node that are remembered."""

LISTED = frozenset({"here", "order", "status", "finished", "paused_until", "away", "about"})
"""Of a member: what its roster keeps lists of."""

GIVEN_KEPT = 8
"""Past orders of a node that are remembered, to tell a late report from a foreign one."""


@dataclass
class Member:
    """One node of a job."""

    node: str
    here: bool = True
    order: Order | None = None
    status: Status | None = None
    finished: bool = False
    answered: Ack | None = None
    failures: int = 0
    paused_until: float | None = None
    """When it is asked again after failures in a row, on the hub's clock."""
    away: bool = False
    """What it wanted to hand back was refused: it is among peers still, and obeys no order until it says that it is
    back."""
    given: list[OrderId] = field(default_factory=list)
    left: bool = False
    """It went in good order, or an operator removed it, and has not come back: unlike one that is merely lost."""
    holds: int = -1
    """The version whose model it was last sent and has answered for."""
    about: About = field(default_factory=About)
    counted: int = -1
    """How many of its updates have counted; -1: it was never asked for one."""
    examples: float | None = None
    """The weight of its last update."""
    loss: float | None = None
    """What it then said of its loss."""
    deadlines: str = ""
    """Of the last rounds that had asked it, a "+" where its report counted, a "-" where the deadline came first."""
    roster: Roster | None = field(default=None, compare=False, repr=False)
    """Told of what changes, since it keeps lists of it."""

    def __setattr__(self, name: str, value: Any) -> None:
        known = self.__dict__
        news = name in LISTED and known.get("roster") is not None and known[name] is not value
        known[name] = value
        if news:
            known["roster"].changed(self, name)

    @property
    def suspended(self) -> bool:
        return self.paused_until is not None

    def fail(self, now: float) -> float | None:
        """Count a failure; return the pause that it costs, in seconds."""
        self.failures += 1
        if self.failures < FAILURES_MAX:
            return None
        pause = min(PAUSE_S_MAX, PAUSE_S * 2.0 ** min(self.failures - FAILURES_MAX, 16))
        self.paused_until = now + pause
        return pause

    def recover(self) -> None:
        """Forget the failures."""
        self.failures, self.paused_until = 0, None

    @property
    def candidate(self) -> Candidate:
        """The member as a selection sees it."""
        return Candidate(self.node, self.about.tags, self.about.hours, self.examples, self.loss, self.about.held)

    def trained(self, report: Report) -> None:
        """Remember what an update says of the node's data, or a measurement for a choice. A loss that is no number is
        none."""
        self.examples = report.weight or self.examples
        loss = report.metrics.get(TRAIN_LOSS, report.metrics.get(LOSS))
        if loss is not None and isfinite(loss):
            self.loss = loss

    def give(self, order: Order) -> None:
        """Make an order stand; it replaces the one before."""
        self.order, self.status = order, None
        self.given = [*self.given, order.id][-GIVEN_KEPT:]
        if order.kind == "train":
            self.counted = max(self.counted, 0)

    def recall(self) -> Order | Amendment:
        """Want the standing order's report now; what is said to the node."""
        assert self.order is not None
        self.order = replace(self.order, rev=self.order.rev + 1, recall=True)
        return self._amended()

    def advance(self) -> Order | Amendment:
        """Let the node make one check more of its standing order; what is said to it."""
        assert self.order is not None
        self.order = replace(self.order, rev=self.order.rev + 1, until=self.order.until + 1)
        return self._amended()

    def _amended(self) -> Order | Amendment:
        """The standing order as it reads now: in short to a node that has told where it is with it, and so holds it."""
        assert self.order is not None
        return amendment(self.order) if self.status is not None else self.order

    def news(self, status: Status) -> Amendment | None:
        """What a node that has told this of its standing order does not know yet."""
        order = self.order
        assert order is not None
        return amendment(order) if order.recall or status.check < order.until else None

    @property
    def waits(self) -> bool:
        """Whether the node has made the last check that its standing order lets it make by itself."""
        order, status = self.order, self.status
        return order is not None and status is not None and not order.recall and 0 < order.until <= status.check

    def answer(self, ack: Ack) -> None:
        """The standing order has been dealt with."""
        if self.order is not None and self.order.body is not None:
            self.holds = self.order.version
        self.order, self.status, self.answered = None, None, ack


_name = attrgetter("node")


def _placed(members: list[Member], new: Member) -> list[Member]:
    """The same and that one, in the order of their names."""
    at = bisect_left(members, new.node, key=_name)
    return [*members[:at], new, *members[at:]]


def amendment(order: Order) -> Amendment:
    """An order in short, for a node that holds it."""
    return Amendment(order.id, order.rev, order.recall, order.until)


class Roster:
    """The members of a job, in the order of their names.

    A schedule looks at all of them with every event, and an event changes one: so lists are kept, and made anew when
    they have to be. Nobody may change one that he was given.
    """

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self.timed: set[str] = set()
        self.held: set[str] = set()
        """Members that an operator lets nobody ask."""
        """Members that have hours."""
        self.forms: set[str] = set()
        """Digests of all forms of models that members have told."""
        self.revision = 0
        """Rises when others than before are here and can be asked, or one says something else of itself."""
        self._told: set[str] = set()
        self._paused: set[str] = set()
        self._all: list[Member] | None = None
        self._forget()

    def _forget(self) -> None:
        """Others are here than before."""
        self._here: list[Member] | None = None
        self._able: tuple[list[Member], tuple[str, ...]] | None = None
        self._busy: dict[str, Kind] | None = None
        self._finished: frozenset[str] | None = None
        self.revision += 1

    def changed(self, member: Member, name: str) -> None:
        """A field of a member, one of `LISTED`, has another value."""
        if name == "here":
            self._forget()
        elif name == "order":
            self._change_order(member)
        elif name == "status":
            (self._told.discard if member.status is None else self._told.add)(member.node)
        elif name == "finished":
            self._finished = None
        elif name == "paused_until":
            (self._paused.discard if member.paused_until is None else self._paused.add)(member.node)
            self._able = None
            self.revision += 1
        else:
            self._able = None
            self.revision += 1

    def _change_order(self, member: Member) -> None:
        busy = self._busy
        if busy is None or not member.here:
            return
        if member.order is None:
            busy.pop(member.node, None)
        elif member.node in busy:
            busy[member.node] = member.order.kind
        else:
            self._busy = None  # it has a place between others

    def get(self, node: str) -> Member | None:
        return self._members.get(node)

    def __getitem__(self, node: str) -> Member:
        return self._members[node]

    def welcome(self, node: str, about: About | None = None) -> Member:
        """The member of that name, new or old, and from now on here. `about`: what it says of itself now."""
        if node not in self._members:
            self._enter(Member(node, about=about or About(), roster=self))
        member = self._members[node]
        member.here, member.left = True, False
        if about is not None:
            self.describe(member, about)
        return member

    def describe(self, member: Member, about: About) -> None:
        """Keep what is said of a member now."""
        if about != member.about:
            member.about = about
            self._time(member)

    def _enter(self, member: Member) -> None:
        """A new one has its place in each list: of thousands that join at once, each changes them."""
        here, (able, names) = self.here(), self._asked()
        self._all = _placed(self.all(), member)
        self._here, able = _placed(here, member), _placed(able, member)
        at = bisect_left(names, member.node)
        self._able = able, (*names[:at], member.node, *names[at:])
        self._members[member.node] = member
        self._time(member)
        self.revision += 1

    def _adopt(self, member: Member) -> None:
        member.roster = self
        if member.status is not None:
            self._told.add(member.node)

    def _time(self, member: Member) -> None:
        (self.timed.add if member.about.hours else self.timed.discard)(member.node)
        (self.held.add if member.about.held else self.held.discard)(member.node)
        if member.about.model is not None:
            self.forms.add(member.about.model.digest)

    def all(self) -> list[Member]:
        if self._all is None:
            self._all = sorted(self._members.values(), key=_name)
        return self._all

    def here(self) -> list[Member]:
        """Members that give signs of life."""
        if self._here is None:
            self._here = [member for member in self.all() if member.here]
        return self._here

    def able(self) -> list[Member]:
        """Members that may be asked."""
        return self._asked()[0]

    def able_names(self) -> tuple[str, ...]:
        """Their names."""
        return self._asked()[1]

    def _asked(self) -> tuple[list[Member], tuple[str, ...]]:
        if self._able is None:
            able = [member for member in self.here() if not (member.suspended or member.away)]
            self._able = able, tuple(member.node for member in able)
        return self._able

    def set_aside(self) -> list[Member]:
        """Members that are here and are asked nothing for a while, after failures."""
        return [one for one in (self._members[node] for node in sorted(self._paused)) if one.here]

    @property
    def paused(self) -> bool:
        """Whether anybody is paused after failures."""
        return bool(self._paused)

    def resumes(self) -> float | None:
        """When the first pause after failures is over; None where there is none."""
        return min((self._members[node].paused_until or 0.0 for node in self._paused), default=None)

    def resume(self, now: float) -> list[Member]:
        """End the pauses that are over; the members whose they were."""
        due = [self._members[node] for node in sorted(self._paused) if (self._members[node].paused_until or 0.0) <= now]
        for member in due:
            member.paused_until = None
        return due

    def busy(self) -> dict[str, Kind]:
        """Members that are here and have an order, with its kind; the caller's own."""
        if self._busy is None:
            self._busy = {member.node: member.order.kind for member in self.here() if member.order is not None}
        given = self._busy
        self._busy = given.copy()  # without the holes of what was removed: it can be copied five times faster itself
        return given

    def busy_count(self) -> int:
        """How many members are here and have an order. Keeps nothing: it is asked while the hub is at work, too."""
        known = self._busy
        return len(known) if known is not None else sum(1 for member in self.here() if member.order is not None)

    @property
    def works(self) -> bool:
        """Whether a member that is here has an order."""
        known = self._busy
        return bool(known) if known is not None else any(member.order is not None for member in self.here())

    def finished(self) -> frozenset[str]:
        """Members that are here and have said that they have trained as much as they should."""
        if self._finished is None:
            self._finished = frozenset(member.node for member in self.here() if member.finished)
        return self._finished

    def waiting(self) -> frozenset[str]:
        """Members that are here and wait at a check."""
        told = map(self._members.__getitem__, self._told)
        return frozenset(member.node for member in told if member.here and member.waits)

    def state(self) -> list[dict[str, Any]]:
        """The roster as JSON values."""
        return [
            {
                "node": m.node,
                "here": m.here,
                "order": _order_state(m.order),
                "status": _status_state(m.status),
                "answered": [*m.answered.order, m.answered.counted, m.answered.why] if m.answered else None,
                "finished": m.finished,
                "failures": m.failures,
                "paused_until": m.paused_until,
                "away": m.away,
                "left": m.left,
                "given": [list(order) for order in m.given],
                "holds": m.holds,
                "tags": list(m.about.tags),
                "hours": list(m.about.hours),
                "held": m.about.held,
                "model": astuple(m.about.model) if m.about.model is not None else None,
                "counted": m.counted,
                "examples": m.examples,
                "loss": m.loss,
                "deadlines": m.deadlines,
            }
            for m in self.all()
        ]

    @classmethod
    def restore(cls, state: list[dict[str, Any]]) -> Roster:
        roster = cls()
        for row in state:
            boot, n, counted, why = row["answered"] or (0, 0, False, "")
            roster._members[row["node"]] = Member(
                node=row["node"],
                here=row["here"],
                order=_order_of(row["order"]),
                status=_status_of(row["node"], row.get("status")),
                answered=Ack((boot, n), counted, why) if row["answered"] else None,
                finished=row["finished"],
                failures=row["failures"],
                paused_until=row.get("paused_until"),
                away=row.get("away", False),
                left=row["left"],
                given=[(order[0], order[1]) for order in row["given"]],
                holds=row.get("holds", -1),
                about=About(
                    tuple(row["tags"]),
                    tuple(row["hours"]),
                    row["held"],
                    ModelForm(*row["model"]) if row["model"] is not None else None,
                ),
                counted=row["counted"],
                examples=row.get("examples"),
                loss=row.get("loss"),
                deadlines=row["deadlines"],
            )
            roster._adopt(roster[row["node"]])
            roster._time(roster[row["node"]])
            if row.get("paused_until") is not None:
                roster._paused.add(row["node"])
        return roster


def _order_state(order: Order | None) -> dict[str, Any] | None:
    if order is None:
        return None
    return {
        "id": list(order.id),
        "node": order.node,
        "kind": order.kind,
        "version": order.version,
        "seed": order.seed,
        "body": ref_state(order.body),
        "base": ref_state(order.base),
        "numbers": order.numbers,
        "rev": order.rev,
        "recall": order.recall,
        "until": order.until,
    }


def _order_of(state: dict[str, Any] | None) -> Order | None:
    if state is None:
        return None
    boot, n = state["id"]
    plain = {name: state[name] for name in ("node", "kind", "version", "seed", "numbers", "rev", "recall", "until")}
    return Order((boot, n), body=ref_of(state["body"]), base=ref_of(state["base"]), **plain)


def order_refs(state: list[dict[str, Any]]) -> list[Ref]:
    """The bodies that the standing orders of a roster of that state name."""
    orders = [_order_of(row["order"]) for row in state]
    refs = [ref for order in orders if order is not None for ref in (order.body, order.base)]
    return [ref for ref in refs if ref is not None]


def _status_state(status: Status | None) -> dict[str, Any] | None:
    if status is None:
        return None
    state = b64encode(status.state).decode()
    return {"order": list(status.order), "check": status.check, "values": status.values, "state": state}


def _status_of(node: str, row: dict[str, Any] | None) -> Status | None:
    if row is None:
        return None
    boot, n = row["order"]
    return Status(node, (boot, n), row["check"], row["values"], b64decode(row["state"]))


class Leases:
    """Signs of life. Not part of the hub's state: each expiry becomes a `Lost` event, and that is journaled.

    Times are seconds of the same clock that the hub lives by.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._heard: dict[str, float] = {}

    def heard(self, node: str, now: float) -> None:
        """A sign of life; a time to come, where a node was asked to be silent until then."""
        self._heard[node] = max(now, self._heard.get(node, now))

    def __len__(self) -> int:
        """How many nodes are not silent."""
        return len(self._heard)

    def forget(self, node: str) -> None:
        self._heard.pop(node, None)

    def age(self, node: str, now: float) -> float | None:
        """Seconds since the last sign of life; None when there was none yet."""
        return now - self._heard[node] if node in self._heard else None

    def expired(self, now: float) -> list[str]:
        """Nodes that have been silent for longer than the patience; each is named once."""
        silent = sorted(node for node, heard in self._heard.items() if now - heard > self.patience_s)
        for node in silent:
            del self._heard[node]
        return silent
