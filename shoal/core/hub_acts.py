"""What a hub does when something has been decided: it asks, recalls, closes, merges, ends."""

from __future__ import annotations

from dataclasses import replace

from shoal.core import away
from shoal.core.algorithm import tree_slot
from shoal.core.hub_bounds import HubBounds
from shoal.core.hub_state import Calm, Phase
from shoal.core.machine import Effect, Note, Save, Send, Version, Wake
from shoal.core.message import Kind, Metrics, Order, OrderId, Ref, Stop
from shoal.core.roster import DEADLINES_KEPT
from shoal.core.schedule import Advance, Ask, Close, Decision, Recall, View, Wait, Warn
from shoal.core.selection import listed
from shoal.core.settings_change import sent
from shoal.core.shards import Sharded
from shoal.core.tree import Slots
from shoal.core.trial import Trial
from shoal.core.words import counted

DECISIONS_MAX = 16
"""A schedule that has not come to rest after so many decisions in a row is broken."""

SECONDS_KEPT = 16
"""Durations of past versions that a schedule may look at."""


class HubActs(HubBounds):
    """Between the state and the events: every method changes the state, and says what follows from it."""

    def _begin(self, start: Ref, why: str, now: float) -> list[Effect]:
        """The first version: from waiting to running."""
        self.version = self.plan.first
        self.slots = self.algorithm.init(tree_slot(self.bodies.get(start), "model"))
        self._withdraw()
        self.phase = "running"
        self.clear_round()
        model = self.keep(self.slots)
        if self.based:
            self.anchor.rebase(self.bodies, self.slots)
            self.numbers = self.schedule.numbers(self.look(now), None)
        return [Save(Version(self.version, model, why, now, now, numbers=self.numbers))]

    def _settle(self, now: float) -> list[Effect]:
        """Let the schedule decide until it waits, unless it has said that it waits for more than has come."""
        if self.calm is not None and self._stays(self.calm, now):
            self.waits = f"{len(self.gathered.reports)} of {counted(self.calm.wait.wanted, 'report')}"
            return self._wake(self.calm.wait.until, now)
        self.calm = None
        return self._decided(now)

    def _stays(self, calm: Calm, now: float) -> bool:
        """Whether there is one report more, and not yet enough, and nothing else is new."""
        calm.seen += 1
        came, due = len(self.gathered.reports), calm.wait.until
        news = came != calm.seen or self.roster.revision != calm.revision
        return not news and came < calm.wait.reports and due is not None and now < due

    def _decided(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for _ in range(DECISIONS_MAX):
            if self.paused_at is not None or self.phase in ("done", "stopped"):
                return effects
            if self.phase == "waiting" and self.plan.start is None:
                return [*effects, *self._tell_left_out(now), *self._ask_for_model(now)]
            if self.phase == "waiting" and self.plan.start is not None:
                effects += self._begin(self.plan.start, "initial model given with the job", now)
            if self.phase == "evaluating":
                return effects + self._await_evaluations(now)
            effects += self._tell_left_out(now)
            decisions = self._decide(self.look(now))
            for decision in decisions:
                effects += self._act(decision, now)
            if all(isinstance(decision, Wait | Warn) for decision in decisions):
                self._calm_down(decisions)
                self._wait_for("; ".join(decision.why for decision in decisions if isinstance(decision, Wait)), now)
                return effects
        raise AssertionError(f"the schedule {self.schedule.name} does not settle at version {self.version}")

    def _calm_down(self, decisions: list[Decision]) -> None:
        """Remember that the schedule need not look at each report. (Where there are hours, time alone is news.)"""
        match decisions:
            case [Wait(reports=reports) as wait] if reports and not (self.roster.timed or self.plan.selection.hours):
                self.calm = Calm(wait, self.roster.revision, len(self.gathered.reports))

    def _wait_for(self, why: str, now: float) -> None:
        """Keep what the job waits for; where nobody works for it, with what keeps nodes from being asked."""
        if self.idle:
            why = why if self.allowed(now) or why.endswith("ready") else "no node is ready"
            why = "; ".join(part for part in (why, self.missing()) if part)
        self.waits = why

    def _decide(self, view: View) -> list[Decision]:
        if self.mode == "server":
            return self.schedule.decide(view)
        trial, return_s = self.gathered.trial, self.plan.return_s
        return trial.decide(view, return_s) if trial is not None else away.decide(self.mode, view, return_s)

    def _act(self, decision: Decision, now: float) -> list[Effect]:
        match decision:
            case Ask():
                return self._ask(decision, now)
            case Recall():
                return self._recall(decision, now)
            case Advance():
                return [Send(member.node, member.advance()) for member in self.roster.here() if member.waits]
            case Warn():
                return [Note("warning", decision.why, self.version, decision.node)]
            case Close():
                return self._close(decision, now) if self.mode == "server" else self._bring_in(decision.why, now)
            case Wait():
                return self._wake(decision.until, now)

    def _wake(self, until: float | None, now: float) -> list[Effect]:
        """The alarm: at that time, or before when somebody's hours begin."""
        times = [time for time in (until, self.reopens(now)) if time is not None]
        return [Wake(min(times))] if times else []

    def _tell_left_out(self, now: float) -> list[Effect]:
        """A note when others than before are not asked."""
        found: dict[str, list[str]] = {}
        for node, why in self.barred(now).items():
            found.setdefault(why, []).append(node)
        text = "; ".join(f"{listed(nodes)}: {why}" for why, nodes in sorted(found.items()))
        turned = self._turn_away()
        if text == self.left_out:
            return turned
        self.left_out = text
        said = f"not asked: {text}" if text else "nobody is left out any more"
        return [*turned, Note("decision", said, self.version)]

    def _turn_away(self) -> list[Effect]:
        """Let nodes whose model is not the job's do nothing for it any more, and say so of each once."""
        form, effects = self.form(), list[Effect]()
        known, self.foreign = self.foreign, {}
        if form is None or self.roster.forms <= {form.digest}:
            return []
        for member in self.roster.able():
            why = "" if self.plan.selection.excludes(member.candidate) else self.differs(member, form)
            if not why:
                continue
            self.relieve(member)
            self.foreign[member.node] = why
            if known.get(member.node) != why:
                text = f"{member.node} takes no part: {why}"
                effects += [
                    Note("warning", text, self.version, member.node),
                    Send(member.node, Stop(why, foreign=True)),
                ]
        return effects

    def _recall(self, recall: Recall, now: float) -> list[Effect]:
        effects: list[Effect] = [Note("decision", recall.why, self.version)]
        effects += [Send(node, self.roster[node].recall()) for node in recall.nodes]
        self.gathered.recalled.update(recall.nodes)
        self.gathered.recalled_at = now
        return effects

    def _ask(self, ask: Ask, now: float) -> list[Effect]:
        self.open_round(now)
        effects: list[Effect] = [Note("decision", ask.why, self.version)] if ask.why else []
        for node in ask.nodes:
            order = self._give(node, ask.kind)
            self.gathered.nbytes += order.body.nbytes if order.body is not None else 0
            effects.append(Send(node, order))
        return effects

    def _give(self, node: str, kind: Kind) -> Order:
        """Make an order stand."""
        self.issued += 1
        again = sum(report.node == node for report in self.gathered.reports) if self.schedule.again else 0
        trial = self.gathered.trial
        shown = trial.shown(node, self.slots) if trial is not None else self.slots
        slots = self.algorithm.order(shown, node, kind) if shown else {}
        probe = self.is_probe(kind)
        plain = kind == "gossip" or trial is not None  # who carries on, or comes back, may hold no base
        other = slots.get("model") is not self.slots.get("model")  # this node is sent one of its own
        whole = plain or other or (self.plan.differs and self.roster[node].holds != self.version - 1)
        order = Order(
            id=(self.boot, self.issued),
            node=node,
            kind=kind,
            version=self.version,
            seed=self.plan.seed if kind == "init" else self.plan.seed_of(self.version, node, again),
            body=self.body(slots if whole else self.anchor.sent(slots)) if slots else None,
            base=self.anchor.base if slots and not whole else None,
            numbers=self._numbers_of(kind, plain),
            until=self.schedule.ahead if kind == "train" else 0,
        )
        self.roster[node].give(order)
        if not probe:
            self.gathered.asked.add(node)
        self.gathered.failed.discard(node)
        self.gathered.recalled.discard(node)  # of the order that it had before
        return order

    def _numbers_of(self, kind: Kind, plain: bool) -> Metrics:
        """Return what an order of that kind tells beside its body; `plain`: to one who may hold no base."""
        settings = sent(self.changed) if kind in ("train", "gossip") else {}
        if kind == "train":
            return self._told() | settings
        return settings if plain else self.anchor.numbers | self.is_probe(kind)

    def _told(self) -> Metrics:
        """What nodes are told: a name with a dot is the schedule's own business."""
        return {name: value for name, value in self.numbers.items() if "." not in name} | self.anchor.numbers

    def _close(self, close: Close, now: float) -> list[Effect]:
        """Make the next version. Orders of this one are withdrawn unless the schedule says otherwise."""
        gathered = self.gathered
        assert gathered.opened is not None
        capped = self._cap_share() if self.mode == "server" else []
        weight, opened, asked = float(gathered.totals.weight), gathered.opened, len(gathered.heard_of)
        asked = max(asked, len(gathered.reports))  # some have been asked again
        view = self.look(now)
        self.version += 1
        rebase = close.rebase or self.plan.differs
        self.slots = self._taken_back() if self.mode == "returning" else self._stepped(rebase)
        counts = [(report, gathered.weight_of(report)) for report in gathered.reports]
        reports = tuple((r.node, r.order, counted, r.body.digest) for r, counted in counts if r.body is not None)
        for report in gathered.reports:
            if report.order not in gathered.counted:
                self.limited.pop(report.node, None)
        if self.mode == "server":  # how long the job was away says nothing of the rounds to come
            self.seconds = (*self.seconds, now - opened)[-SECONDS_KEPT:]
        if self.schedule.renews and not self.schedule.again:
            self._note_deadlines(close.late)
        if not close.keep:
            self._withdraw()
        self.clear_round()
        if close.keep and self.roster.busy():
            self.open_round(now)  # its deadline runs, even where all who may train at once hang
        model = self.keep(self.slots)
        if rebase:
            self.anchor.rebase(self.bodies, self.slots)
        if self.mode == "returning":
            view = replace(view, reports=())  # they violate nothing
        self.adopt_changes()
        self.numbers = self.schedule.numbers(view, close)
        effects: list[Effect] = [
            *capped,
            Note("decision", f"version {self.version}: {close.why}", self.version),
            Save(Version(self.version, model, close.why, opened, now, weight, reports, asked, self.numbers)),
        ]
        if self._is_last or close.last:
            self.phase, self.gathered.opened = "evaluating", None  # no version more: all are asked to measure this one
            self._withdraw()
        elif to := self._askable(close.to, now):
            effects += self._ask(Ask(to, "train", ""), now)
        return effects

    def _askable(self, nodes: tuple[str, ...], now: float) -> tuple[str, ...]:
        """Those among them that may be asked: while their order stood, an operator may have drained them."""
        barred = self.barred(now).keys() | self.roster.held
        return tuple(node for node in nodes if node not in barred)

    def _note_deadlines(self, late: bool) -> None:
        """Remember who has reported in a round, and who has not though it went on to its deadline."""
        for node in self.gathered.asked:
            if late or node in self.gathered.norms:
                member = self.roster[node]
                member.deadlines = (member.deadlines + ("+" if node in self.gathered.norms else "-"))[-DEADLINES_KEPT:]

    @property
    def _is_last(self) -> bool:
        return self.version >= self.plan.versions or bool(self.ends_after_round)

    def _stepped(self, rebase: bool) -> Slots:
        """Return the algorithm's next slots, as the filters leave them on their way to the nodes."""
        slots, totals = self.slots | self.anchor.held, self.gathered.totals
        totals.members = self.members()
        made = totals.step(self.algorithm, slots) if isinstance(totals, Sharded) else self.algorithm.step(slots, totals)
        return self.anchor.moved(self.bodies, made, rebase, self.plan.seed_of(self.version))

    def _taken_back(self) -> Slots:
        """Return the merged slots, which no filter touches: they are what was handed back, and what judges measured."""
        self.anchor.replaced()
        return self._merged()

    def _merged(self) -> Slots:
        """The weighted mean of the models that came back; everything but the model is as it was. Uses the sum up."""
        if self.gathered.trial is not None:
            return self.gathered.trial.slots
        return {**self.slots, "model": self.gathered.totals.mean_onto("model", tree_slot(self.slots, "model"))}

    def _bring_in(self, why: str, now: float) -> list[Effect]:
        """All is in that can be waited for: have it measured, and take it, or leave that to an operator."""
        gathered, gate = self.gathered, self.plan.gate
        bounded = self._bound_back(now) if gathered.trial is None else []
        if not gate or not gathered.reports:
            return bounded + self._merge(why, now)
        if gathered.trial is None:
            ref = self.bodies.put(self._merged())
            gathered.trial = Trial(ref, self.bodies.get(ref), gathered.reports, now)
            judges = counted(len(gathered.trial.judges), "node")
            return [*bounded, Note("decision", f"{why}; {judges} measure it before it counts", self.version)]
        found = gathered.trial.text()
        if gathered.trial.worse(gate) and not gathered.trial.held:
            gathered.trial.held = True
            self.paused_at = now
            self.paused_why = f"the merged model is worse: {found}; resume to take it all the same, or stop the job"
            return [Note("warning", self.paused_why, self.version), Note("state", "paused", self.version)]
        models = counted(len(gathered.reports), "node")
        return self._merge(f"back at the server: the models of {models} merged; {found}", now)

    def _merge(self, why: str, now: float) -> list[Effect]:
        """The job is back."""
        if self.gathered.reports:
            effects = self._close(Close(why, rebase=self.schedule.anchored), now)
        else:
            self._withdraw()
            self.clear_round()
            effects = [Note("decision", "back at the server: nobody has handed anything back", self.version)]
            if self._is_last:
                self.phase = "evaluating"
        self.mode = "server"
        return [*effects, Note("mode", "back at the server", self.version)]

    def _ask_for_model(self, now: float) -> list[Effect]:
        """In phase waiting: have exactly one member make an initial model, another one if it takes too long."""
        effects = self._choose_for_model(now)
        asked = [member.node for member in self.allowed(now) if member.order is not None]
        least = max(1, self.schedule.least)
        short = f"{len(self.allowed(now))} of {counted(least, 'node')} ready"
        self._wait_for(f"an initial model from {listed(asked)}" if asked else short, now)
        return effects

    def _choose_for_model(self, now: float) -> list[Effect]:
        due = None if self.gathered.opened is None else self.gathered.opened + self.plan.patience_s
        able = self.allowed(now)
        if len(able) < self.schedule.least and self.gathered.opened is None:
            return self._wake(None, now)
        outvoted = self.outvoted(able)
        if any(member.node not in outvoted | self.gathered.asked for member in able):
            for member in able:
                if member.node in outvoted:
                    member.order = None
        waiting = [member for member in able if member.order is not None]
        if due is not None and waiting and now < due:
            return [Wake(due)]
        idle = sorted(
            (member.node for member in able if member.order is None),
            key=lambda node: (node in self.gathered.asked, node in outvoted),
        )
        if not idle:
            return self._wake(now + self.plan.patience_s if waiting else None, now)
        self.gathered.opened = None
        ask = Ask((idle[0],), "init", f"{idle[0]} is asked for an initial model")
        return [*self._ask(ask, now), Wake(now + self.plan.patience_s)]

    def _await_evaluations(self, now: float) -> list[Effect]:
        """In phase evaluating: ask all once, end when all have answered or time is up."""
        effects: list[Effect] = []
        if self.gathered.opened is None:
            nodes = tuple(member.node for member in self.allowed(now))
            effects += self._ask(Ask(nodes, "evaluate", f"{len(nodes)} nodes measure the final model"), now)
            self.gathered.opened = now
        due = self.gathered.opened + self.plan.patience_s
        if now < due and any(member.order is not None for member in self.roster.here()):
            reports, asked = len(self.gathered.reports), counted(len(self.gathered.asked), "node")
            self._wait_for(f"{reports} of {asked} have measured the final model", now)
            return [*effects, Wake(due)]
        if self.ends_after_round:
            return effects + self._end("stopped", self.ends_after_round)
        made, measured = counted(self.version, "version"), counted(len(self.gathered.reports), "node")
        none, all_asked = self.uncounted()
        never = f"; {len(none)} of {counted(all_asked, 'node')} never counted: {listed(none)}" if none else ""
        return effects + self._end("done", f"{made}, measured by {measured}{never}")

    def _end(self, phase: Phase, why: str) -> list[Effect]:
        self.phase, self.paused_at, self.ends_after_round, self.waits = phase, None, why, ""
        self._withdraw()
        sends = [Send(member.node, Stop(why)) for member in self.roster.here()]
        return [Note("state", f"{phase}: {why}", self.version), *sends]

    # Small parts

    def _newest(self) -> OrderId:
        return (self.boot, self.issued)

    def _withdraw(self) -> None:
        for member in self.roster.all():
            member.order = None
