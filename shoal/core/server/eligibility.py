"""The decision which nodes a hub may ask: by selection, hours, drains, failures and the form of their models."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from shoal.core.job.settings_change import JobSettings
from shoal.core.model.model_form import ModelForm, base_name
from shoal.core.model.tree import Tree
from shoal.core.protocol.machine import Effect, Wake
from shoal.core.protocol.message import NodeInfo
from shoal.core.scheduling.selection import join_names
from shoal.core.server.model_store import ModelStore
from shoal.core.server.roster import NodeRoster, RosterMember

HOURS_SLACK_S = 0.01
"""Delay of an alarm after the hour, so that no rounding error makes it early."""


class Eligibility:
    """The members that a job may ask now, and the reasons why it may not ask the others."""

    def __init__(self, settings: JobSettings, store: ModelStore, roster: NodeRoster) -> None:
        self._settings, self._store, self._roster = settings, store, roster
        self.clock_offset_s = 0.0
        """Wall clock (seconds since 1970) minus the hub's clock, as of the last start."""
        self.foreign_models: dict[str, str] = {}
        """Members whose model is not the job's, and how it differs. They take no part."""
        self._cache: tuple[object, dict[str, str]] = None, {}

    def excluded_nodes(self, now: float) -> dict[str, str]:
        """Return the present members that must not be asked now, those set aside included, with reasons.

        Schedules relative to a reference ignore hours: their nodes work for many versions at a stretch.
        """
        selection, wall, roster = self._settings.plan.selection, now + self.clock_offset_s, self._roster
        form = self.model_form()
        if not (selection.restricts or roster.timed or roster.drained or self.may_mismatch(form)):
            return {}
        key = roster.revision, form, wall if selection.hours or roster.timed else None
        if self._cache[0] != key:
            self._cache = key, self._find_excluded(wall)
        return self._cache[1]

    def _find_excluded(self, wall: float) -> dict[str, str]:
        selection, found, form = self._settings.plan.selection, {}, self.model_form()
        for member in self._roster.present_members():
            why = self._describe_absence(member, form)
            if not why and not self._settings.schedule.relative_to_reference:
                why = selection.describe_closed(member.candidate, wall)
            if why:
                found[member.node] = why
        return found

    def askable_members(self, now: float) -> list[RosterMember]:
        able, excluded = self._roster.askable(), self.excluded_nodes(now)
        return [member for member in able if member.node not in excluded] if excluded else able

    def may_hand_back(self, node: str, node_info: NodeInfo) -> bool:
        """Return whether a node's training without the hub counts: a drain and hours only keep it from new tasks."""
        member = RosterMember(node, node_info=replace(node_info, drain_reason=""))
        return not self._describe_absence(member, self.model_form())

    def _describe_absence(self, member: RosterMember, form: ModelForm | None) -> str:
        """Return why a member takes no part at any hour; "" if it does."""
        excluded = self._settings.plan.selection.describe_exclusion(member.candidate)
        return excluded or self.describe_mismatch(member, form)

    def model_form(self) -> ModelForm | None:
        """Return the form of the job's model; None before there is a model."""
        model = self._store.slots.get("model")
        return model.layout.form if isinstance(model, Tree) else None

    def may_mismatch(self, form: ModelForm | None) -> bool:
        """Return whether a member may have told a model that is not the job's, of that form."""
        known = self._roster.forms
        return bool(known and self._settings.plan.base_model) if form is None else not known <= {form.digest}

    def describe_mismatch(self, member: RosterMember, form: ModelForm | None) -> str:
        """Return how a member's model differs from that form; "" when it fits or is unknown.

        Before there is a model, a member must have the base model that the job names.
        """
        theirs, base = member.node_info.model, self._settings.plan.base_model
        if form is None and base and theirs is not None and theirs.base_model != base:
            return f"its model differs from the job's ({base_name(theirs.base_model)}, not {base_name(base)})"
        if form is None or theirs is None or theirs == form:
            return ""
        given = self._settings.plan.initial_model is not None
        what = "right --learner, or the job with the right --model?" if given else "right --learner?"
        return f"its model differs from the job's ({theirs.beside(form)}): was it started with the {what}"

    def minority_models(self, able: list[RosterMember]) -> set[str]:
        """Return the nodes among these whose model differs from the most common one; none without a majority."""
        if len(self._roster.forms) < 2:
            return set()
        forms = {one.node: one.node_info.model for one in able if one.node_info.model is not None}
        counts = Counter(forms.values()).most_common(2)
        if len(counts) < 2 or counts[0][1] == counts[1][1]:
            return set()
        return {node for node, form in forms.items() if form != counts[0][0]}

    def counted_nodes(self) -> frozenset[str]:
        """Return the nodes that the job counts on, present or lost.

        Nodes that left, that are set aside after failures or that the selection excludes do not count.
        """
        selection = self._settings.plan.selection
        gone = self.foreign_models.keys()
        staying = [
            one for one in self._roster.all_members() if not (one.has_left or one.is_set_aside or one.node in gone)
        ]
        return frozenset(
            member.node
            for member in staying
            if not (
                (selection.restricts or member.node_info.drain_reason)
                and selection.describe_exclusion(member.candidate)
            )
        )

    def never_counted(self) -> tuple[list[str], int]:
        """Return the nodes of which no update has counted, and the number of nodes that were asked.

        Nodes with a foreign model belong to both.
        """
        wanted = [
            one
            for one in self._roster.all_members()
            if one.history.counted_updates >= 0 or one.node in self.foreign_models
        ]
        return [one.node for one in wanted if one.history.counted_updates <= 0], len(wanted)

    def describe_missing(self, not_asked: str) -> str:
        """Return which nodes are not asked, set aside or silent; "" when there are none."""
        set_aside = [member.node for member in self._roster.members_set_aside()]
        silent = [member.node for member in self._roster.all_members() if not (member.is_present or member.has_left)]
        parts = [f"not asked: {not_asked}"] if not_asked else []
        parts += [f"set aside after failures: {join_names(set_aside)}"] if set_aside else []
        parts += [f"silent: {join_names(silent)}"] if silent else []
        return "; ".join(parts)

    def next_opening(self, now: float) -> float | None:
        """Return the hub time at which hours open or a suspension ends; None when nothing is due."""
        names = self.excluded_nodes(now)
        if not (names or self._roster.has_members_set_aside):
            return None
        selection, wall = self._settings.plan.selection, now + self.clock_offset_s
        excluded, form = [self._roster[node] for node in names], self.model_form()
        waiting = [member.candidate for member in excluded if not self.describe_mismatch(member, form)]
        times = [selection.next_opening(one, wall) for one in waiting if not selection.describe_exclusion(one)]
        found = [min(times) - self.clock_offset_s + HOURS_SLACK_S] if times else []
        resumes = self._roster.next_resume()
        return min([*found, *([] if resumes is None else [resumes])], default=None)

    def make_wake(self, until: float | None, now: float) -> list[Effect]:
        """Return the alarm at `until`, or earlier when a node becomes askable; none when neither is set."""
        times = [time for time in (until, self.next_opening(now)) if time is not None]
        return [Wake(min(times))] if times else []
