"""A job's headline: the sentence that its reader wants to know first.

`headline` is pure: the first rule with a result wins. Obstacles come before delays, and these before progress.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shoal.core.errors.phrases import counted
from shoal.core.scheduling.selection import join_names

if TYPE_CHECKING:
    from shoal.core.server.hub import Hub
    from shoal_coordinator.jobs.job_runner import JobRunner
    from shoal_coordinator.models.version_history import VersionSummary
    from shoal_coordinator.schemas.peers import ConsensusPoint

MISSED_LEAST = 3
"""Deadlines that a node must have missed, and at least half of those that it had, to be named for it."""
BEFORE_THE_END = ("waiting", "running")
"""Phases in which nodes are asked for models."""


@dataclass(frozen=True)
class JobFacts:
    """A job's present state. A node counts if it has joined and is here."""

    phase: str
    trouble: str = ""
    why: str = ""
    """Reason for which it has ended, is paused, or stops after this round."""
    paused: bool = False
    nodes: int = 0
    able: int = 0
    """Nodes that may be asked now."""
    least: int = 1
    """Nodes without which nothing is asked."""
    tags: tuple[tuple[str, int], ...] = ()
    """The tags that its selection wants, and how many nodes have each."""
    named: tuple[int, int] | None = None
    """Nodes that its selection names: the number present, and the number in all."""
    closed: int = 0
    """Nodes that are not asked at this hour."""
    barred: tuple[tuple[str, str], ...] = ()
    """Nodes that are not asked for their model or by an operator's decision; and why."""
    set_aside: tuple[tuple[str, str], ...] = ()
    """Nodes that are set aside after failures; and the last failure of each."""
    waits_for: str = ""
    """The condition that it waits for before it can ask any node."""
    refusing: tuple[str, ...] = ()
    """Nodes that refuse this coordinator, because they obeyed another one with its key and term."""
    refused_s: float = 0.0
    """Seconds within which they come back."""
    mode: str = "server"
    since: float | None = None
    """Time of the last change of mode (s since 1970)."""
    rounds: int = 0
    """Local rounds that the furthest peer has made."""
    lost: tuple[str, ...] = ()
    """Nodes that take part and have fallen silent."""
    late: tuple[tuple[str, int, int], ...] = ()
    """(node, deadlines missed, deadlines that it had lately)."""
    asked: int = 0
    reported: int = 0
    busy: int = 0
    version: int = 0
    versions: int | None = None
    """Number of the last version; None: it is open."""
    unit: str = "round"
    """"round" where all are asked again for each version; "version" where a few reports make one; "sync" where models
    are synchronized when they are too far apart."""
    endless: bool = False
    """True if neither steps nor epochs end the nodes' training."""
    best: tuple[float, int] | None = None
    """The best accuracy, and its version."""


def headline(facts: JobFacts) -> str:
    """Return what the reader wants to know first; one sentence without a full stop."""
    for rule in (
        _trouble,
        _end,
        _pause,
        _refused,
        _wait,
        _all_set_aside,
        _gossip_headline,
        _slow,
        _missing,
        _some_set_aside,
        _at_work,
    ):
        if text := rule(facts):
            return text
    return ""


def _trouble(facts: JobFacts) -> str:
    return f"Needs attention: {facts.trouble}" if facts.trouble else ""


def _end(facts: JobFacts) -> str:
    if facts.phase == "stopped":
        return f"Stopped: {facts.why}" if facts.why else "Stopped"
    if facts.phase != "done":
        return ""
    best = f"; the best is version {facts.best[1]} with {100 * facts.best[0]:.1f} %" if facts.best is not None else ""
    return f"Done: {facts.why}{best}"


def _pause(facts: JobFacts) -> str:
    if not facts.paused:
        return ""
    return f"Paused: {facts.why}" if facts.why else "Paused"


def _refused(facts: JobFacts) -> str:
    if not facts.refusing:
        return ""
    names, why = join_names(facts.refusing), "another coordinator had the same term, as before a backup was restored"
    return f"Refused by {names}: {why}; this ends within about {facts.refused_s:g} s"


def _wait(facts: JobFacts) -> str:
    """Return what it waits for before it asks any node."""
    if facts.asked or facts.mode != "server" or facts.phase not in BEFORE_THE_END:
        return ""
    if not facts.nodes:
        return "Waiting: no node has joined" + (" yet" if facts.phase == "waiting" else "")
    if len(facts.set_aside) + facts.able >= facts.nodes > facts.able or facts.able >= facts.least:
        return ""
    return f"Waiting: {_lack(facts)}"


def _lack(facts: JobFacts) -> str:
    """Return why too few nodes can be asked."""
    rarest = min(facts.tags, key=lambda pair: pair[1], default=None)
    needed = f"; {facts.least} are needed" if facts.least > 1 else ""
    if rarest is not None and rarest[1] < min(facts.least, facts.nodes):
        verb = "has" if facts.nodes == 1 else "have"
        return f"{rarest[1]} of {counted(facts.nodes, 'node')} {verb} the tag {rarest[0]}{needed if rarest[1] else ''}"
    if facts.named is not None and facts.named[0] < facts.least:
        return f"{facts.named[0]} of the {counted(facts.named[1], 'node')} that the job names are here"
    if facts.closed and not facts.barred:
        return f"{facts.closed} of {counted(facts.nodes, 'node')} may not be asked at this hour"
    if facts.able == facts.nodes:
        return f"{facts.able} of {facts.least} nodes have joined"
    more = f", and {counted(len(facts.barred) - 1, 'more node')} may not be asked" if len(facts.barred) > 1 else ""
    why = f"; {': '.join(facts.barred[0])}{more}" if facts.barred else ""
    return f"{facts.able} of {facts.least} nodes can be asked{why}"


def _all_set_aside(facts: JobFacts) -> str:
    if facts.mode != "server" or facts.phase not in BEFORE_THE_END or not facts.set_aside or facts.able or facts.busy:
        return ""
    return f"Stalled: {_failing(facts)}, and will be asked again later{_last_failure(facts)}"


def _gossip_headline(facts: JobFacts) -> str:
    if facts.mode == "returning":
        return f"On its way back from its peers: {facts.reported} of {counted(facts.asked, 'node')} have handed back"
    if facts.mode != "gossip":
        return ""
    since = f" since {datetime.fromtimestamp(facts.since, UTC):%H:%M} UTC" if facts.since is not None else ""
    return f"With its peers{since}, {counted(facts.rounds, 'round')}"


def _slow(facts: JobFacts) -> str:
    slow = [one for one in facts.late if one[1] >= MISSED_LEAST and 2 * one[1] >= one[2]]
    if not slow:
        return ""
    node, missed, of = max(slow, key=lambda one: (one[1], one[1] / one[2]))
    more = f", and {counted(len(slow) - 1, 'more node')} most of theirs" if len(slow) > 1 else ""
    return f"{node} missed {missed} of the last {of} deadlines{more}"


def _missing(facts: JobFacts) -> str:
    if not facts.lost:
        return ""
    return f"{join_names(facts.lost)} fell silent; {counted(facts.able, 'node')} can be asked"


def _some_set_aside(facts: JobFacts) -> str:
    if not facts.set_aside or facts.phase not in BEFORE_THE_END:
        return ""
    if facts.waits_for:
        return f"Stalled: {facts.waits_for}{_last_failure(facts)}"
    return f"{_failing(facts)}; {counted(facts.able, 'node')} can be asked{_last_failure(facts)}"


def _failing(facts: JobFacts) -> str:
    return f"{join_names([node for node, _ in facts.set_aside])} failed repeatedly"


def _last_failure(facts: JobFacts) -> str:
    node, why = facts.set_aside[0]
    return f"; last failure of {node}: {why}" if why else ""


def _at_work(facts: JobFacts) -> str:
    if facts.phase == "waiting":
        return "Waiting for an initial model from a node"
    measured = f"{facts.reported} of {counted(facts.asked, 'node')} have reported"
    if facts.phase == "evaluating":
        return f"The final model is being measured: {measured}"
    if facts.version == facts.versions:
        return f"Version {facts.version}, the last one, is made"
    if facts.unit == "sync":
        end = "; the nodes train until the job is stopped or has all its versions" if facts.endless else ""
        made = counted(facts.version, "time")
        return f"{counted(facts.busy, 'node')} at work; models were synchronized {made}{end}"
    if facts.unit == "version":
        reports = counted(facts.reported, "report")
        return f"Version {facts.version + 1}: {reports} so far, {counted(facts.busy, 'node')} at work"
    last = f"; then it stops: {facts.why}" if facts.why else ""
    return f"Round {facts.version + 1}: {measured}{last}" if facts.asked else f"Round {facts.version + 1} begins{last}"


def missing_nodes(hub: Hub, silent: set[str]) -> tuple[str, ...]:
    """Return the nodes that the job misses: they take part, have fallen silent, and have not left."""
    found = [member for node in sorted(silent) if (member := hub.roster.get(node)) is not None]
    gone = [member for member in found if not (member.is_present or member.has_left)]
    return tuple(member.node for member in gone if not hub.settings.plan.selection.describe_exclusion(member.candidate))


def barred_nodes(hub: Hub) -> tuple[tuple[str, str], ...]:
    """Return the nodes that hours aside may not be asked, though the job's selection wants them; and why."""
    form, selection = hub.eligibility.model_form(), hub.settings.plan.selection
    found = [
        (one.node, one.node_info.drain_reason or hub.eligibility.describe_mismatch(one, form))
        for one in hub.roster.askable()
        if one.node_info.drain_reason or not selection.describe_exclusion(one.candidate)
    ]
    return tuple((node, why) for node, why in found if why)


def job_facts(
    runner: JobRunner,
    known: VersionSummary,
    silent: set[str],
    peers: ConsensusPoint | None,
    refusing: tuple[str, ...] = (),
) -> JobFacts:
    """Return how a job stands; `silent`: nodes that have fallen silent, `peers`: how they do meanwhile, `refusing`:
    those that refuse this coordinator.
    """
    hub, now, gossip = runner.hub, runner.clock.now(), runner.spec.gossip
    here, selection, schedule = hub.roster.present_members(), hub.settings.plan.selection, hub.settings.schedule
    able = hub.eligibility.askable_members(now)
    barred = barred_nodes(hub)
    unit = "sync" if schedule.relative_to_reference else "version" if schedule.accepts_staleness(1) else "round"
    return JobFacts(
        phase=hub.progress.phase,
        trouble=runner.gate.trouble,
        why=hub.progress.paused_why if hub.progress.paused_at is not None else hub.progress.ends_after_round,
        paused=hub.progress.paused_at is not None,
        nodes=len(here),
        able=len(able),
        least=max(1, schedule.required_nodes),
        tags=tuple((tag, sum(tag in one.node_info.tags for one in here)) for tag in selection.tags),
        named=(sum(one.node in selection.nodes for one in here), len(selection.nodes)) if selection.nodes else None,
        closed=sum(
            not selection.describe_exclusion(hub.roster[node].candidate)
            for node in hub.eligibility.excluded_nodes(now).keys() - dict(barred)
        ),
        barred=barred,
        set_aside=tuple((one.node, one.error) for one in hub.roster.members_set_aside()),
        waits_for=hub.progress.waiting_for if hub.state.is_idle else "",
        refusing=refusing,
        refused_s=gossip.coordinator_timeout_s + gossip.suspicion_s + gossip.min_gossip_s,
        mode=hub.progress.mode,
        since=runner.feed.mode_since,
        rounds=peers.rounds if peers is not None else 0,
        lost=missing_nodes(hub, silent),
        late=tuple((one.node, late.count("-"), len(late)) for one in here if "-" in (late := one.history.deadlines)),
        asked=len(hub.state.round.involved),
        reported=len(hub.state.round.reports),
        busy=hub.roster.busy_count(),
        version=hub.progress.version,
        versions=hub.settings.plan.versions,
        unit=unit,
        endless=hub.settings.has_endless_training,
        best=known.best,
    )
