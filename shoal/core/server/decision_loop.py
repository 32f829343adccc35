"""The loop that lets the schedule decide until it waits; also the first and last step, which no schedule knows."""

from __future__ import annotations

from shoal.core.errors.phrases import counted
from shoal.core.protocol.machine import Effect, Send, Wake
from shoal.core.protocol.message import Stop
from shoal.core.scheduling.schedule import Advance, Ask, Close, Decision, Recall, View, Wait, Warn
from shoal.core.scheduling.selection import join_names
from shoal.core.server.handover import Handover
from shoal.core.server.hub_state import HubState, QuietWait
from shoal.core.server.roster import RosterMember
from shoal.core.server.round_control import RoundControl
from shoal.core.server.update_folder import UpdateFolder

DECISIONS_MAX = 16
"""Decisions in a row after which a schedule that has not come to a wait is broken."""


class DecisionLoop:
    """The decisions after each event of a hub."""

    def __init__(self, state: HubState, rounds: RoundControl, handover: Handover, folder: UpdateFolder) -> None:
        self._state, self._rounds, self._handover, self._folder = state, rounds, handover, folder

    def settle(self, now: float) -> list[Effect]:
        """Decide until the schedule waits, unless it waits for more reports than are in."""
        state = self._state
        if (quiet := state.quiet_wait) is not None and self._stays_quiet(quiet, now):
            reports = len(state.round.reports)
            state.progress.waiting_for = f"{reports} of {counted(quiet.wait.wanted, 'report')}"
            return quiet.wake
        state.quiet_wait = None
        return self._decide_all(now)

    def _stays_quiet(self, quiet: QuietWait, now: float) -> bool:
        """Return True if the event added at most one report, more are wanted, and nothing else changed."""
        quiet.seen += 1
        reports, due = len(self._state.round.reports), quiet.wait.until
        changed = reports != quiet.seen or self._state.roster.revision != quiet.revision
        return not changed and reports < quiet.wait.reports and due is not None and now < due

    def _decide_all(self, now: float) -> list[Effect]:
        state, progress, plan = self._state, self._state.progress, self._state.settings.plan
        effects: list[Effect] = []
        for _ in range(DECISIONS_MAX):
            if progress.paused_at is not None or progress.is_over:
                return effects
            if progress.phase == "waiting" and (plan.initial_model is None or state.store.model is not None):
                return [*effects, *self._report_excluded(now), *self._ask_for_model(now)]
            if progress.phase == "waiting" and plan.initial_model is not None:
                effects += self._rounds.start(plan.initial_model, "initial model given with the job", now)
            if progress.phase == "evaluating":
                return effects + self._await_evaluations(now)
            effects += self._report_excluded(now)
            view = state.make_view(now)
            decide = state.settings.schedule.decide if progress.mode == "server" else self._handover.decide
            decisions = self._await_comparison(decide(view), view)
            for decision in decisions:
                effects += self._carry_out(decision, now)
            if all(isinstance(decision, Wait | Warn) for decision in decisions):
                self._remember_quiet_wait(decisions, now)
                waits = [decision.why for decision in decisions if isinstance(decision, Wait)]
                state.set_waiting_for("; ".join(waits), now)
                return effects
        name = state.settings.schedule.name
        raise AssertionError(f"the schedule {name} does not settle at version {progress.version}")

    def _await_comparison(self, decisions: list[Decision], view: View) -> list[Decision]:
        """Replace the close of a version whose only update cannot be judged: ask or await another node."""
        closes = self._state.progress.mode == "server" and any(isinstance(one, Close) for one in decisions)
        if not closes or not self._folder.lacks_comparison(view.now):
            return decisions
        others = [node for node in view.idle if node not in view.round.reporters]
        others.sort(key=lambda node: node in view.round.asked)  # those that failed come last
        working = tuple(sorted(view.nodes.busy.keys() - view.round.recalled))
        why = "a second report, to compare the first one with"
        if working and self._state.settings.schedule.relative_to_reference:  # such tasks have no end of their own
            return [Recall(working, f"{counted(len(working), 'node')} are asked for {why}")]
        if others and not view.nodes.busy:
            return [Ask((others[0],), "train", f"{others[0]} is asked for {why}")]
        return [Wait(why)]

    def _carry_out(self, decision: Decision, now: float) -> list[Effect]:
        state, rounds = self._state, self._rounds
        match decision:
            case Ask():
                return rounds.ask(decision, now)
            case Recall():
                return rounds.recall(decision, now)
            case Advance():
                return rounds.advance()
            case Warn():
                return [state.event("warning", decision.why, decision.node)]
            case Close():
                leads = state.progress.mode == "server"
                return rounds.close(decision, now) if leads else self._handover.bring_in(decision.why, now)
            case Wait():
                return state.eligibility.make_wake(decision.until, now)

    def _remember_quiet_wait(self, decisions: list[Decision], now: float) -> None:
        """Store a wait during which the schedule need not see each report. With hours, time alone changes things."""
        state = self._state
        timed = state.roster.timed or state.settings.plan.selection.hours
        match decisions:
            case [Wait(reports=reports) as wait] if reports and not timed:
                wake = state.eligibility.make_wake(wait.until, now)
                state.quiet_wait = QuietWait(wait, state.roster.revision, len(state.round.reports), wake)

    def _report_excluded(self, now: float) -> list[Effect]:
        """Tell people when the set of members that are not asked has changed."""
        state, found = self._state, dict[str, list[str]]()
        for node, why in state.eligibility.excluded_nodes(now).items():
            found.setdefault(why, []).append(node)
        text = "; ".join(f"{join_names(nodes)}: {why}" for why, nodes in sorted(found.items()))
        rejected = self._reject_foreign_models()
        if text == state.progress.not_asked:
            return rejected
        state.progress.not_asked = text
        return [*rejected, state.event("decision", f"not asked: {text}" if text else "no node is left out any more")]

    def _reject_foreign_models(self) -> list[Effect]:
        """Exclude nodes whose model is not the job's, and tell each once."""
        state, eligibility = self._state, self._state.eligibility
        form, effects = eligibility.model_form(), list[Effect]()
        known, eligibility.foreign_models = eligibility.foreign_models, {}
        if not eligibility.may_mismatch(form):
            return []
        for member in state.roster.askable():
            excluded = state.settings.plan.selection.describe_exclusion(member.candidate)
            why = "" if excluded else eligibility.describe_mismatch(member, form)
            if not why:
                continue
            state.tasks.withdraw(member, state.round)
            eligibility.foreign_models[member.node] = why
            if known.get(member.node) != why:
                text = f"{member.node} takes no part: {why}"
                effects += [state.event("warning", text, member.node), Send(member.node, Stop(why, model_differs=True))]
        return effects

    # The first model and the last measurement

    def _ask_for_model(self, now: float) -> list[Effect]:
        """Ask one member for an initial model, and another one if it takes too long (phase waiting)."""
        state = self._state
        effects = self._choose_for_model(now)
        members = state.eligibility.askable_members(now)
        asked = [member.node for member in self._working_members(now)]
        least = max(1, state.settings.schedule.required_nodes)
        ready = f"{len(members)} of {counted(least, 'node')} ready"
        wanted = f"the model of stage {state.progress.stage}" if state.progress.stage else "an initial model"
        state.set_waiting_for(f"{wanted} from {join_names(asked)}" if asked else ready, now)
        return effects

    def _choose_for_model(self, now: float) -> list[Effect]:
        state, current, timeout_s = self._state, self._state.round, self._state.settings.plan.init_timeout_s
        due = None if current.opened_at is None else current.opened_at + timeout_s
        members = state.eligibility.askable_members(now)
        if len(members) < state.settings.schedule.required_nodes and current.opened_at is None:
            return state.eligibility.make_wake(None, now)
        minority = state.eligibility.minority_models(members)
        if minority and any(member.node not in minority | current.asked for member in members):
            for member in members:
                if member.node in minority:
                    member.task = None
        waiting = self._working_members(now)
        if due is not None and waiting and now < due:
            return [Wake(due)]
        idle = sorted(
            (member.node for member in members if member.task is None),
            key=lambda node: (node in current.asked, node in minority),
        )
        if not idle:
            return state.eligibility.make_wake(now + timeout_s if waiting else None, now)
        current.opened_at = None
        stage = state.progress.stage
        wanted = f"the model of stage {stage}, grown from this one" if stage else "an initial model"
        ask = Ask((idle[0],), "init", f"{idle[0]} is asked for {wanted}")
        return [*self._rounds.ask(ask, now), Wake(now + timeout_s)]

    def _working_members(self, now: float) -> list[RosterMember]:
        """Return the members that may be asked and have a task, without a look at the others: thousands may join."""
        roster, excluded = self._state.roster, self._state.eligibility.excluded_nodes(now)
        busy = map(roster.__getitem__, roster.busy())
        return [one for one in busy if not (one.is_set_aside or one.is_gossiping or one.node in excluded)]

    def _await_evaluations(self, now: float) -> list[Effect]:
        """Ask every node once; end when all have answered or time is up (phase evaluating)."""
        state, current = self._state, self._state.round
        effects: list[Effect] = []
        if current.opened_at is None:
            nodes = tuple(member.node for member in state.eligibility.askable_members(now))
            effects += self._rounds.ask(Ask(nodes, "evaluate", f"{len(nodes)} nodes measure the final model"), now)
            current.opened_at = now
            state.roster.busy()  # from here on the roster keeps count, and no report makes it look at every node
        due = current.opened_at + state.settings.plan.init_timeout_s
        if now < due and state.roster.is_working:
            reports, asked = len(current.reports), counted(len(current.asked), "node")
            state.set_waiting_for(f"{reports} of {asked} have measured the final model", now)
            return [*effects, Wake(due)]
        if state.progress.ends_after_round:
            return effects + self._rounds.end("stopped", state.progress.ends_after_round)
        made, measured = counted(state.progress.version, "version"), counted(len(current.reports), "node")
        none, all_asked = state.eligibility.never_counted()
        never = f"; {len(none)} of {counted(all_asked, 'node')} never counted: {join_names(none)}" if none else ""
        return effects + self._rounds.end("done", f"{made}, measured by {measured}{never}")
