"""What a hub knows: as it is, as JSON values, and as a schedule sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from shoal.core.algorithm import Algorithm
from shoal.core.anchor import Anchor, anchor_refs
from shoal.core.away import Mode
from shoal.core.bounds import Recent
from shoal.core.gathered import Gathered
from shoal.core.message import Bodies, Kind, Metrics, Order, Ref
from shoal.core.metric import PROBE, LatestMeans
from shoal.core.parts import Each
from shoal.core.plan import Plan
from shoal.core.roster import Member, Roster, order_refs
from shoal.core.schedule import Schedule, View, Wait
from shoal.core.selection import listed
from shoal.core.settings_change import configured
from shoal.core.shards import Sharded
from shoal.core.sums import Totals
from shoal.core.tree import ModelForm, Slots, Tree

Phase = Literal["waiting", "running", "evaluating", "done", "stopped"]

PLAIN = (
    "phase",
    "mode",
    "paused_at",
    "paused_why",
    "ends_after_round",
    "version",
    "boot",
    "life",
    "issued",
    "numbers",
    "epoch",
    "left_out",
    "waits",
    "changed",
    "awaited",
)
"""What a snapshot takes as it is; the rest needs a form of its own."""

HOURS_SLACK_S = 0.01
"""An alarm comes so much after the hour, for no rounding error to let it come before."""


@dataclass
class Calm:
    """A schedule waits for so many reports, and need not be shown each (`Wait.reports`): of a thousand nodes it would
    look at all of them a thousand times."""

    wait: Wait
    revision: int
    """The roster's, when it said so."""
    seen: int
    """Reports that are in; the next one alone makes one more."""


class HubState:
    """All of it. Bodies are references, but for the slots of the newest version and the base."""

    def __init__(self, plan: Plan, algorithm: Algorithm, schedule: Schedule, bodies: Bodies) -> None:
        self.plan, self.algorithm, self.schedule, self.bodies = plan, algorithm, schedule, bodies
        self._given = plan, algorithm, schedule
        self.changed: Metrics = {}
        """Settings that have another value than the job file says, by their keys."""
        self.awaited: Metrics = {}
        """The same, of those that the next version will have."""
        self.phase: Phase = "waiting"
        self.mode: Mode = "server"
        self.paused_at: float | None = None
        self.paused_why, self.ends_after_round = "", ""
        self.version = 0
        self.model: Ref | None = None
        self.slots: Slots = {}
        self.boot, self.life, self.issued = 0, 0, 0
        self.roster = Roster()
        self.seconds: tuple[float, ...] = ()
        self.anchor = Anchor(plan.filters)
        self.based = schedule.anchored or plan.differs
        """Whether orders name a model that their receivers hold."""
        self.numbers: Metrics = {}
        self.each: Each = map
        """How shards are told to do something; the coordinator has them do it at the same time, in threads."""
        self.epoch = 0.0
        """The wall's clock (seconds since 1970) less the hub's, as the last start has told."""
        self._barred: tuple[object, dict[str, str]] = None, {}
        self.left_out = ""
        """What was last said of members that are not asked."""
        self.waits = ""
        """What the job waits for, as was last said: the reason of the schedule's `Wait`, and of whoever speaks in its
        place."""
        self.foreign: dict[str, str] = {}
        """Members whose model is not the job's, and how it differs. They take no part."""
        self.recent = Recent()
        self.limited: dict[str, str] = {}
        """Nodes whose last update was too long or too heavy, and why."""
        self.latest = LatestMeans()
        self.clear_round()

    def clear_round(self) -> None:
        """Forget what was gathered for a version."""
        self.gathered = Gathered(self.plan.sums, self.nothing())
        self._stored: dict[tuple[frozenset[str], bool], Ref] = {}
        self.calm: Calm | None = None

    def adopt_changes(self) -> None:
        """Let the settings hold that were changed since the last version."""
        self.changed, self.awaited, self.calm = self.changed | self.awaited, {}, None
        self.plan, self.algorithm, self.schedule = configured(self._given, self.changed)

    def nothing(self) -> Totals:
        """A sum of nothing yet: in one piece, or split over shards."""
        model = self.slots.get("model")
        if self.plan.shards == 1 or not isinstance(model, Tree):
            return Totals(self.plan.sums)
        return Sharded(self.plan.sums, model.layout, self.plan.shards, self.each)

    def open_round(self, now: float) -> None:
        """Work on the next version begins, unless it has begun: somebody is asked, or reports what was asked before."""
        if self.gathered.opened is None:
            self.gathered.opened, self.gathered.population = now, len(self.allowed(now))

    # Who may be asked

    def is_probe(self, kind: Kind) -> Metrics:
        """What is said in an order to measure the model for a choice among nodes; nothing in any other."""
        choosing = kind == "evaluate" and self.phase == "running" and self.gathered.trial is None
        return {PROBE: 1.0} if choosing else {}

    def barred(self, now: float) -> dict[str, str]:
        """Members that are not to be asked at this moment, and why not: by whom the job wants, and by the hours.

        Who works for many versions at a stretch, as anchored schedules have it, has no hours.
        """
        selection, wall = self.plan.selection, now + self.epoch
        form = self.form()
        mixed = form is not None and not self.roster.forms <= {form.digest}
        if not (selection.restricts or self.roster.timed or self.roster.held or mixed):
            return {}
        key = self.roster.revision, form, wall if selection.hours or self.roster.timed else None
        if self._barred[0] != key:
            self._barred = key, self._look_who_is_barred(wall)
        return self._barred[1]

    def form(self) -> ModelForm | None:
        """What the job's model looks like; None before there is one."""
        model = self.slots.get("model")
        return model.layout.form if isinstance(model, Tree) else None

    def outvoted(self, able: list[Member]) -> set[str]:
        """Return who has another model than most of these; nobody where there is no majority."""
        if len(self.roster.forms) < 2:
            return set()  # they are all alike
        told = {one.node: one.about.model for one in able if one.about.model is not None}
        counts = Counter(told.values()).most_common(2)
        if len(counts) < 2 or counts[0][1] == counts[1][1]:
            return set()
        return {node for node, form in told.items() if form != counts[0][0]}

    def differs(self, member: Member, form: ModelForm | None) -> str:
        """Return how a member's model differs from one of that form; "": it does not, or nobody knows."""
        theirs = member.about.model
        if form is None or theirs is None or theirs == form:
            return ""
        what = (
            "right --learner, or the job with the right --model?" if self.plan.start is not None else "right --learner?"
        )
        return f"its model differs from the job's ({theirs.beside(form)}): was it started with the {what}"

    def _look_who_is_barred(self, wall: float) -> dict[str, str]:
        selection, found, form = self.plan.selection, {}, self.form()
        for member in self.roster.able():
            why = selection.excludes(member.candidate) or self.differs(member, form)
            if not why and not self.schedule.anchored:
                why = selection.closed(member.candidate, wall)
            if why:
                found[member.node] = why
        return found

    def allowed(self, now: float) -> list[Member]:
        """Members that may be asked at this moment."""
        able, barred = self.roster.able(), self.barred(now)
        return [member for member in able if member.node not in barred] if barred else able

    def relieve(self, member: Member) -> None:
        """Take a member's order back, as if it had never been asked: it can be asked again."""
        self.gathered.asked.discard(member.node)
        member.order = None

    @property
    def idle(self) -> bool:
        """Whether no node that is here works for the job, though the job is not over: nothing happens of itself."""
        return self.paused_at is None and self.phase not in ("done", "stopped") and not self.roster.works

    def missing(self) -> str:
        """Return which nodes could be asked and are not, and why; "" where there are none."""
        paused = [member.node for member in self.roster.set_aside()]
        silent = [member.node for member in self.roster.all() if not (member.here or member.left)]
        parts = [f"not asked: {self.left_out}"] if self.left_out else []
        parts += [f"set aside after failures: {listed(paused)}"] if paused else []
        parts += [f"silent: {listed(silent)}"] if silent else []
        return "; ".join(parts)

    def uncounted(self) -> tuple[list[str], int]:
        """Return the nodes of which no update has ever counted, though they were asked or offered themselves with
        another model; and how many nodes were asked, or did."""
        wanted = [one for one in self.roster.all() if one.counted >= 0 or one.node in self.foreign]
        return [one.node for one in wanted if one.counted <= 0], len(wanted)

    def members(self) -> frozenset[str]:
        """The nodes that the job counts on, present or lost: all but those that left, that are suspended after
        failures, or that the job's selection excludes."""
        selection = self.plan.selection
        gone = self.foreign.keys()
        staying = [one for one in self.roster.all() if not (one.left or one.suspended or one.node in gone)]
        return frozenset(
            member.node
            for member in staying
            if not ((selection.restricts or member.about.held) and selection.excludes(member.candidate))
        )

    def reopens(self, now: float) -> float | None:
        """When to look again, on the hub's clock, because of hours or of pauses; None where there are none."""
        selection, wall = self.plan.selection, now + self.epoch
        barred, form = [self.roster[node] for node in self.barred(now)], self.form()
        waiting = [member.candidate for member in barred if not self.differs(member, form)]
        times = [selection.opens(one, wall) for one in waiting if not selection.excludes(one)]
        found = [min(times) - self.epoch + HOURS_SLACK_S] if times else []
        resumes = self.roster.resumes()
        return min([*found, *([] if resumes is None else [resumes])], default=None)

    # Bodies

    def keep(self, slots: Slots) -> Ref:
        """Put a version's slots away and go on with the stored ones, so that nothing is held twice."""
        self._take(self.bodies.put(slots))
        assert self.model is not None
        return self.model

    def _take(self, model: Ref) -> None:
        self.model, self.slots = model, self.bodies.get(model)
        self._stored = {(frozenset(self.slots), True): model}

    def body(self, slots: Slots) -> Ref:
        """Store what an order carries. A choice of the hub's own slots is stored once for all nodes, and once more
        with the difference to the base in the model's place."""
        own, sent = self.slots, self.anchor.sent(self.slots)
        if any(value is not own.get(name) and value is not sent.get(name) for name, value in slots.items()):
            return self.bodies.put(slots)
        choice = frozenset(slots), slots.get("model") is own.get("model")
        if choice not in self._stored:
            self._stored[choice] = self.bodies.put(slots)
        return self._stored[choice]

    def sent_with(self, order: Order) -> Slots:
        """What a node was sent with an order, for an algorithm that asks for it."""
        if not self.algorithm.rebuilds or order.version == self.version:
            return self.slots if self.algorithm.rebuilds else {}
        assert order.body is not None, "an order to train carries the model"
        return self.bodies.get(order.body)

    def refs(self) -> list[Ref]:
        """The bodies that this state needs: its model, its base, and what its orders name."""
        trial = self.gathered.trial
        refs = [self.model, *self.anchor.refs(), trial.ref if trial is not None else None]
        for member in self.roster.all():
            refs += [member.order.body, member.order.base] if member.order is not None else []
        return [ref for ref in refs if ref is not None]

    # Snapshots

    def state(self) -> dict[str, Any]:
        """All that must outlive the process, as JSON values: complete while no report has been gathered, so at the end
        of an `on` that gave a `Save`."""
        return {name: getattr(self, name) for name in PLAIN} | {
            "model": asdict(self.model) if self.model else None,
            "seconds": list(self.seconds),
            "roster": self.roster.state(),
            "anchor": self.anchor.state(),
            "gathered": self.gathered.state(),
            "recent": self.recent.state(),
            "limited": dict(self.limited),
            "latest": self.latest.state(),
            "foreign": dict(self.foreign),
        }

    def take_up(self, state: Mapping[str, Any]) -> None:
        """Become what `state` says."""
        for name in PLAIN:
            setattr(self, name, state.get(name, getattr(self, name)))  # a snapshot may be older than the name
        self.plan, self.algorithm, self.schedule = configured(self._given, self.changed)
        self.seconds, self.roster = tuple(state["seconds"]), Roster.restore(state["roster"])
        self.recent, self.limited = Recent.restore(state["recent"]), dict(state["limited"])
        self.latest = LatestMeans.restore(state["latest"])
        self.foreign = dict(state["foreign"])
        self._barred = None, {}
        if state["model"] is not None:
            self._take(Ref(**state["model"]))
        self.gathered = Gathered.restore(self.plan.sums, state["gathered"], self.nothing())
        self.anchor = Anchor.restore(self.plan.filters, state["anchor"], self.bodies)

    # For the schedule

    def look(self, now: float) -> View:
        """What a schedule is shown at this moment."""
        roster, gathered = self.roster, self.gathered
        barred = self.barred(now)
        able = tuple(node for node in roster.able_names() if node not in barred) if barred else roster.able_names()
        return View(
            now=now,
            version=self.version,
            opened=gathered.opened,
            population=gathered.population or len(able),
            members=able,
            busy=roster.busy(),
            asked=frozenset(gathered.asked),
            reports=tuple(gathered.reporters),
            failed=frozenset(gathered.failed),
            measured=frozenset(gathered.measured),
            seconds=self.seconds,
            seed=self.plan.seed,
            recalled=frozenset(gathered.recalled),
            recalled_at=gathered.recalled_at,
            late=frozenset(gathered.late),
            waiting=roster.waiting(),
            norms=gathered.norms,
            pieces=gathered.pieces,
            numbers=self.numbers,
            nbytes=gathered.nbytes,
            finished=roster.finished(),
            left=0 if self.ends_after_round else self.plan.versions - self.version,
            gap=lambda: gathered.totals.gap("model"),
            size=self.anchor.size,
            present=len(roster.here()) - len(barred),
            estimate=self._estimate,
            selection=self.plan.selection,
            candidate=lambda node: roster[node].candidate,
        )

    def _estimate(self) -> float | None:
        """What the algorithm makes of the statuses of all who work, once all have told one."""
        statuses = [m.status for m in self.roster.here() if m.order is not None]
        known = [status for status in statuses if status is not None]
        return self.algorithm.estimate(known) if known and len(known) == len(statuses) else None


def state_refs(state: Mapping[str, Any]) -> list[Ref]:
    """The bodies that a snapshot needs to be taken up again."""
    model = [Ref(**state["model"])] if state["model"] is not None else []
    return [*model, *anchor_refs(state["anchor"]), *order_refs(state["roster"])]
