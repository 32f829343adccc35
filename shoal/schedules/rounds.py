"""Synchronous rounds: ask a cohort, close when enough have answered.

McMahan et al. 2017, Algorithm 1; over-selection and the deadline after Bonawitz et al., "Towards Federated Learning at
Scale", MLSys 2019, section 2.2.

n = cohort, or fraction * members        ask n + over_select of them
close when n have reported, or no node is left to wait for, or the deadline has passed: the last two from `quorum` on
below the quorum the deadline is doubled, and each time as many more nodes are asked as are missing, and those that
failed once more
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log2
from statistics import median
from typing import Annotated, ClassVar

from annotated_types import Interval

from shoal.core.errors import InvalidJob
from shoal.core.errors.phrases import counted
from shoal.core.errors.ranges import NonNegativeInt, PositiveFraction, PositiveInt
from shoal.core.scheduling.schedule import Ask, Close, Decision, Schedule, View, Wait, nodes_ready

DEADLINE_FIRST_S = 3600.0
DEADLINE_LEAST_S = 10.0
DEADLINE_FACTOR = 3.0
"""The default deadline: this multiple of the median duration of the last rounds, with a minimum."""

AT_LEAST = 2
"""Default minimum of updates per round, if there are that many nodes: a round does not close with a single update."""

DEADLINE_MIN_S = 0.001
DEADLINE_MAX_S = 1e9
"""One that is given."""


@dataclass(frozen=True)
class Rounds(Schedule):
    """A cohort trains on the same version; their mean is the next."""

    name: ClassVar[str] = "rounds"
    title: ClassVar[str] = "Synchronous rounds"
    changeable: ClassVar[tuple[str, ...]] = ("cohort", "fraction", "over_select", "deadline_s", "quorum", "min_nodes")

    cohort: NonNegativeInt = 0
    """Updates that a round aims for; 0: use `fraction`."""
    fraction: PositiveFraction = 1.0
    """C: fraction of the nodes that are ready (K) from which a round wants updates: C K, rounded half to even, and at
    least one."""
    over_select: NonNegativeInt = 0
    """Additional nodes to ask. The round closes without waiting for the slowest ones."""
    deadline_s: Annotated[float, Interval(ge=0, le=DEADLINE_MAX_S)] = 0.0
    """Seconds until a round closes with fewer updates; 0: three times the median of the last rounds, at least 10 s and
    at most 1 h; 1 h for the first round."""
    quorum: NonNegativeInt = 0
    """Minimum number of updates, also after the deadline; 0: half of the updates that a round aims for, rounded
    up, and at least 2 if 2 nodes are present. A node that is set aside after failures is present, a lost one is not."""
    min_nodes: PositiveInt = 1
    """Nodes that must be ready before a round starts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.deadline_s < DEADLINE_MIN_S:
            raise InvalidJob(
                f"schedule.deadline_s is {self.deadline_s}, less than {DEADLINE_MIN_S} seconds",
                hint="0 makes it follow from the last rounds",
            )
        if self.cohort and self.quorum > self.cohort:
            raise InvalidJob(
                f"schedule.quorum is {self.quorum}, more than schedule.cohort, {self.cohort}: no round would close",
                hint="raise cohort or lower quorum",
            )

    @property
    def required_nodes(self) -> int:
        """Enough to open a round, and to close it, as far as the settings alone tell."""
        return max(self.min_nodes, self.quorum)

    @property
    def cohort_size(self) -> int:
        """The cohort and those asked beyond it."""
        return self.cohort + self.over_select if self.cohort else 0

    def wants(self, population: int) -> int:
        """Return the number of reports that close a round at once, if `population` nodes could be asked."""
        wanted = self.cohort or max(1, round(self.fraction * population))
        return max(min(wanted, population), min(self.quorum, population), 1)

    def needs(self, view: View) -> int:
        """Return the reports without which this round does not close."""
        present = max(len(view.nodes.members), view.nodes.present)
        return self.needs_of(self.wants(min(view.population, present)), self.wants(present))

    def needs_of(self, wanted: int, most: int) -> int:
        """Return the same for a round that wants `wanted` reports, and `most` if no node were set aside."""
        return self.quorum or max(ceil(wanted / 2), min(AT_LEAST, most))

    def deadline(self, view: View) -> float:
        """Return the seconds that this round may take."""
        return self.deadline_after(view.seconds)

    def deadline_after(self, seconds: Sequence[float]) -> float:
        """Return the seconds that a round may take after rounds that took `seconds`."""
        if self.deadline_s:
            return self.deadline_s
        if not seconds:
            return DEADLINE_FIRST_S
        return min(max(DEADLINE_FACTOR * median(seconds), DEADLINE_LEAST_S), DEADLINE_FIRST_S)

    def decide(self, view: View) -> list[Decision]:
        """Open, widen, close or wait."""
        if view.round.opened_at is None:
            return self._open(view)
        choosing = view.sampler.selection.needs_probe and not view.round.asked
        return self._choose(view, self.wants(view.population)) if choosing else self._go_on(view)

    def _open(self, view: View) -> list[Decision]:
        nodes = view.nodes
        least = max(self.min_nodes, self.needs(view))
        if len(nodes.members) < least:
            return [Wait(nodes_ready(view, least))]
        wanted = self.wants(len(nodes.members))
        if candidates := view.candidates(nodes.members, wanted + self.over_select):
            opens = f"round {view.version + 1} opens: {len(candidates)} candidates measure version {view.version}"
            return [Ask(candidates, "evaluate", opens)]
        return self._begin(view, nodes.members, wanted)

    def _begin(self, view: View, nodes: Sequence[str], wanted: int) -> list[Decision]:
        picked = view.pick(nodes, wanted + self.over_select)
        extra = f" + {len(picked.nodes) - wanted} over" if len(picked.nodes) > wanted else ""
        opens = f"round {view.version + 1} opens with {wanted}{extra} of {len(view.nodes.members)} nodes"
        return [Ask(picked.nodes, "train", opens + picked.because)]

    def _go_on(self, view: View) -> list[Decision]:
        current, nodes = view.round, view.nodes
        assert current.opened_at is not None
        wanted, got = self.wants(view.population), len(current.reporters)
        quorum = min(self.needs(view), wanted)
        enough = got >= quorum
        if got >= wanted:
            learned = bool(nodes.members) and set(nodes.members) <= nodes.finished  # false without members
            return [Close(f"{got} of {wanted} reports", last=learned)]
        pending = list(nodes.busy.values()).count("train")  # with every report, of all that are busy: it has to be fast
        deadline = self.deadline(view)
        late, deadline_text = view.now >= current.opened_at + deadline, f"deadline of {round(deadline, 1):g} s"
        if late and enough:
            return [Close(f"{deadline_text} with {got} of {wanted}", late=True)]
        passed = max(1, floor(log2((view.now - current.opened_at) / deadline)) + 1) if late else 0
        missing = (1 + passed) * (wanted - got) - pending  # do not count on nodes that missed a deadline
        fresh = [node for node in view.idle if node not in current.asked] if missing > 0 else []
        if fresh:
            picked = view.pick(fresh, missing)
            why = f"{deadline_text} with {got} of {wanted}" if late else f"{missing} of {wanted} lost"
            why += f": {len(picked.nodes)} asked in their place{picked.because}"
            return [Ask(picked.nodes, "train", why)]
        if not pending and enough:
            return [Close(f"{got} of {wanted}: no node is left to wait for")]
        until = current.opened_at + 2**passed * deadline
        if until <= view.now:  # a rounding error must not become a busy loop
            until = current.opened_at + 2 ** (passed + 1) * deadline
        if nodes.busy and not late:
            return [Wait(f"{got} of {counted(wanted, 'report')}", until, min(wanted, got + pending), wanted)]
        return [self._ask_again(view, wanted, quorum) or self._below(got, quorum, until, late)]

    def _choose(self, view: View, wanted: int) -> list[Decision]:
        """Pick among the nodes that have measured, as soon as all have, or the deadline has passed."""
        current = view.round
        assert current.opened_at is not None
        until = current.opened_at + self.deadline(view)
        if view.nodes.busy and view.now < until:
            return [Wait(f"{len(view.nodes.busy)} candidates have not measured yet", until)]
        known = [node for node in view.idle if node in current.probed] or list(view.idle)
        if not known:
            return [Wait("no node can be asked")]
        return self._begin(view, known, wanted)

    def _ask_again(self, view: View, wanted: int, quorum: int) -> Ask | None:
        """Ask those that failed again, if the round is below the quorum and late, or no node works any more."""
        current = view.round
        again = tuple(node for node in view.idle if node in current.failed) if current.failed else ()
        why = f"{len(current.reporters)} of {wanted}, below the quorum of {quorum}: ask {len(again)} again"
        return Ask(again, "train", why) if again else None

    def _below(self, got: int, quorum: int, until: float, late: bool) -> Wait:
        return Wait(f"below the quorum: {got} of {quorum}{', deadline extended' if late else ''}", until)
