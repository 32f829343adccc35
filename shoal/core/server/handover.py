"""The hand-over of a job to its peers, and its return.

    mode         standing task of every member                           next
    server       as the schedule asks                                    gossip: by an operator; returning: when a node
                                                                         comes back that has carried the job on
    gossip       "gossip", from the version at which gossip began        returning: by an operator or such a node
    returning    the same, recalled: report the model                    server, with a version made of the reports,
                                                                         when all have answered or time is up

A report on a "gossip" task is a peer's model relative to the task's version, with the weight that it had in the
exchanges. So the new version is sum n_k x_k / sum n_k over the peers that returned: the quantity that conserving
exchanges leave unchanged.
"""

from __future__ import annotations

from shoal.core.errors.phrases import counted
from shoal.core.job.job_plan import Mode
from shoal.core.protocol.machine import Effect
from shoal.core.protocol.message import SwitchMode
from shoal.core.scheduling.schedule import Ask, Close, Decision, Recall, View, Wait
from shoal.core.server.hub_state import HubState
from shoal.core.server.merge_check import MergeCheck
from shoal.core.server.roster import RosterMember
from shoal.core.server.round_control import RoundControl
from shoal.core.server.update_folder import UpdateFolder


def decide(mode: Mode, view: View, timeout_s: float) -> list[Decision]:
    """Return what to do in mode gossip or returning. `timeout_s`: how long the hub waits for peers to hand back."""
    asking = [node for node in view.idle if node not in view.round.reporters and node not in view.round.failed]
    if asking:
        return [Ask(tuple(asking), "gossip", f"{counted(len(asking), 'node')} carry on without the server")]
    if mode == "gossip":
        return [Wait("the peers carry on")]
    return _collect(view, timeout_s)


def _collect(view: View, timeout_s: float) -> list[Decision]:
    out = tuple(node for node, kind in view.nodes.busy.items() if kind == "gossip" and node not in view.round.recalled)
    if out:
        return [Recall(out, f"{counted(len(out), 'node')} are asked for what they have")]
    waited = [node for node in view.nodes.busy if node in view.round.recalled]
    due = (view.round.recalled_at if view.round.recalled_at is not None else view.now) + timeout_s
    if waited and view.now < due:
        return [Wait(f"{len(view.round.reporters)} have handed back, {len(waited)} not yet", due)]
    return [Close(f"back at the server: the models of {counted(len(view.round.reporters), 'node')} merged")]


class Handover:
    """The changes of a job's mode, and the merge of the models that peers hand back."""

    def __init__(self, state: HubState, rounds: RoundControl, folder: UpdateFolder) -> None:
        self._state, self._rounds, self._folder = state, rounds, folder

    def decide(self, view: View) -> list[Decision]:
        """Return what to do while the schedule does not decide."""
        check, timeout_s = self._state.merge_check, self._state.settings.plan.handback_timeout_s
        if check is not None:
            return check.decide(view, timeout_s)
        return decide(self._state.progress.mode, view, timeout_s)

    def switch(self, event: SwitchMode, now: float) -> list[Effect]:
        """Hand the job to its peers, or ask for it back."""
        state, progress = self._state, self._state.progress
        if progress.phase != "running":
            return [state.event("warning", f"a job that is {progress.phase} cannot be switched")]
        if event.to == "server":
            return self.ask_back(event.why, now) if progress.mode == "gossip" else []
        if progress.mode != "server":
            return []
        why = f"the peers carry on: {event.why}"
        closed = self._rounds.close_early(why, now)
        if closed and self._rounds.is_last:
            return closed  # the version just closed was the last
        progress.mode = "gossip"
        for member in state.roster.all_members():
            member.is_gossiping = False  # it obeys a task to carry on
        return [*closed, state.event("mode", why)]

    def ask_back(self, why: str, now: float) -> list[Effect]:
        """Ask the peers to hand the job back."""
        state, progress = self._state, self._state.progress
        if progress.phase not in ("running", "evaluating") or progress.mode == "returning":
            return []
        if progress.phase == "evaluating":  # peers failed over before they heard of the end, and have learned more
            state.tasks.withdraw_all()
            state.clear_round()
            progress.phase = "running"
        closed: list[Effect] = []
        if progress.mode == "server":  # peers failed over by themselves: reports that came in meanwhile count first
            closed = self._rounds.close_early(why, now)
            progress.phase = "running"  # even after the last version: what the peers learned makes one more
        progress.mode = "returning"
        return [*closed, state.event("mode", f"back to the server: {why}")]

    def ask_excluded(self, member: RosterMember, now: float) -> list[Effect]:
        """Ask a gossiping node for its model although it gets no other tasks: drained, blocked or out of hours."""
        progress, current, node = self._state.progress, self._state.round, member.node
        asks = progress.mode == "returning" and progress.paused_at is None and member.task is None
        is_open = asks and node not in current.norms and node not in current.failed
        if not is_open or node not in self._state.eligibility.excluded_nodes(now):
            return []
        return self._rounds.ask(Ask((node,), "gossip", f"{node} is asked for what it has learned"), now)

    def cancel_merge_check(self) -> None:
        """Drop the merge check because another model came back, and sum again."""
        state = self._state
        if state.merge_check is None:
            return
        for node in state.merge_check.evaluators:
            state.roster[node].task = None
        state.merge_check = None
        state.sum.reduced.clear()
        self._folder.sum_handed_back()

    def bring_in(self, why: str, now: float) -> list[Effect]:
        """Have the merged model measured, then take it, or pause the job if it is worse."""
        state, drop_max = self._state, self._state.settings.plan.accuracy_drop_max
        current, progress = state.round, state.progress
        bounded = self._folder.bound_handed_back(now) if state.merge_check is None else []
        if not drop_max or not current.reports:
            return bounded + self._merge(why, now)
        if state.merge_check is None:
            ref = state.store.blobs.put(self._rounds.merged_slots())
            state.merge_check = MergeCheck(ref, state.store.blobs.get(ref), current.reports, now)
            evaluators = counted(len(state.merge_check.evaluators), "node")
            return [*bounded, state.event("decision", f"{why}; {evaluators} measure it before it counts")]
        check = state.merge_check
        found = check.describe()
        if check.is_worse(drop_max) and not check.is_held:
            check.is_held = True
            progress.paused_at = now
            progress.paused_why = f"the merged model is worse: {found}; resume to take it all the same, or stop the job"
            return [state.event("warning", progress.paused_why), state.event("state", "paused")]
        models = counted(len(current.reports), "node")
        return self._merge(f"back at the server: the models of {models} merged; {found}", now)

    def _merge(self, why: str, now: float) -> list[Effect]:
        state = self._state
        if state.round.reports:
            rebase = state.settings.schedule.relative_to_reference
            effects = self._rounds.close(Close(why, rebase=rebase), now)
        else:
            state.tasks.withdraw_all()
            state.clear_round()
            effects = [state.event("decision", "back at the server: no node has handed anything back")]
            if self._rounds.is_last:
                state.progress.phase = "evaluating"
        state.progress.mode = "server"
        return [*effects, state.event("mode", "back at the server")]
