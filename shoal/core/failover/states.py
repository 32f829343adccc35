"""The states of a node that may fail over: one function for each decides what to do and where to go next.

The package's docstring has the table of states.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from shoal.core.failover.coordinator_reachability import CoordinatorReachability, RelaySearch
from shoal.core.failover.failover import Failover

State = Literal["coordinated", "suspect", "gossip", "returning"]

Action = Literal["wait", "enter", "fail over", "ping", "join", "report", "give up"]
"""Ping the coordinator, ask it to join again, report the model, or give the hand-back up."""


@dataclass(frozen=True)
class Facts:
    """A node's situation, apart from the coordinator's reachability. Times are seconds of its clock."""

    since: float
    """Time when it entered the state."""
    due: float = inf
    """Time that the last decision in this state was put off to."""
    live: frozenset[str] = frozenset()
    has_model: bool = True
    """True if it could continue from a model version."""
    has_task: bool = False
    """True if the coordinator knows that this node gossips."""
    is_recalled: bool = False
    """True if the coordinator has asked for the model."""
    is_idle: bool = True
    """True if no local round and no exchange is under way."""
    moving_until: float = -inf
    """Time until which a model is assumed to be in transit."""
    has_reported: bool = False


@dataclass(frozen=True)
class Decision:
    """An action and, for "enter", the next state. `due`: when to decide again."""

    action: Action
    due: float = inf
    state: State = "coordinated"
    search: RelaySearch | None = None
    why: str = ""
    term: int = 0
    """Highest term that other nodes have reported."""


def coordinated(reachability: CoordinatorReachability, now: float) -> Decision:
    """Suspect a coordinator that has been silent for too long."""
    due = reachability.suspect_at
    return Decision("wait", due) if now < due else Decision("enter", due, "suspect")


def suspect(facts: Facts, reachability: CoordinatorReachability, rules: Failover, now: float, quorum: int) -> Decision:
    """Trust a coordinator again that answers, also by a relay; fail over when a quorum misses it."""
    if reachability.is_directly_reachable(now):
        return Decision("enter", state="coordinated")
    search = reachability.search_relay(facts.live, now, facts.due)
    if reachability.relay:
        return Decision("enter", search.due, "coordinated", search)
    missing, term = reachability.count_missing(now)
    if now >= facts.since + rules.suspicion_s and facts.has_model and missing >= quorum:
        why = f"{missing} nodes have not heard it for {rules.coordinator_timeout_s:g} s and more"
        return Decision("fail over", why=why, term=term)
    return Decision("wait", search.due, search=search)


def gossip(facts: Facts, reachability: CoordinatorReachability, rules: Failover, now: float) -> Decision:
    """Ping the coordinator, unless it knows that this node gossips; join when it has answered for long enough."""
    if facts.is_recalled:
        return Decision("enter", state="returning")
    if facts.has_task:
        search = reachability.search_relay(facts.live, now, facts.due)
        return Decision("wait", search.due, search=search)
    if now < facts.due:
        return Decision("wait", facts.due)
    pause = rules.coordinator_timeout_s / 3
    is_steady = reachability.answering_s(now) >= 2 * pause
    return Decision("join" if is_steady and now - facts.since >= rules.min_gossip_s else "ping", now + pause)


def returning(facts: Facts, reachability: CoordinatorReachability, rules: Failover, now: float) -> Decision:
    """Complete open exchanges, report, and wait; give up after a timeout."""
    if not facts.has_reported:
        due = max(facts.since + rules.open_exchanges_timeout_s, facts.moving_until)
        return Decision("report" if facts.is_idle or now >= due else "wait", due)
    end = reachability.heard_at + rules.coordinator_timeout_s + rules.suspicion_s
    if now >= end:
        return Decision("give up")
    search = reachability.search_relay(facts.live, now, facts.due)
    return Decision("wait", min(end, search.due), search=search)
