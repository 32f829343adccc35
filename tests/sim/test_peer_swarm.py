"""Hundreds of runs without a server, with everything going wrong; and bugs that they must find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.gossip.gossip import ModelRejected
from shoal.core.gossip.gossip_state import GossipState
from shoal.core.membership.retransmission import Retransmissions
from shoal.core.mixing.pairwise_mixer import PairwiseMixer
from shoal.core.protocol.message import BlobRef
from shoal.mixing.all_reduce import AllReduceMixer
from shoal.mixing.neighbors import NeighborsMixer
from shoal.mixing.pairwise import Pairwise
from shoal.mixing.push_sum import PushSum, PushSumMixer
from shoal.sim.__main__ import main
from shoal.sim.hosts.peers import SimulatedPeer
from shoal.sim.scenarios.peer_swarm import FILTERS, draw, run, run_seed
from shoal.sim.scenarios.swarm import SeedFailed

SEEDS = 1200
CHUNK = 100
FIRST = 30

Patch = pytest.MonkeyPatch


def run_seeds(seeds: Iterable[int]) -> None:
    for seed in seeds:
        run_seed(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_run_breaks(first: int) -> None:
    run_seeds(range(first, first + CHUNK))


def test_a_broken_run_is_whole() -> None:
    """5444: a heavy and a light peer whose models a coarse filter never lets meet: roundings added up."""
    run_seed(5444)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1_000_000, 1_100_000, 5_000))
def test_no_run_of_very_many_breaks(first: int) -> None:
    run_seeds(range(first, first + 5_000))


def test_the_swarm_is_varied() -> None:
    drawn = [draw(seed) for seed in range(SEEDS)]
    kinds = Counter(scenario.mixing.name for scenario in drawn)
    assert kinds.keys() == {"pairwise", "neighbors", "push_sum", "all_reduce"}
    assert kinds["push_sum"] >= 250
    assert min(kinds.values()) > SEEDS / 5
    assert {len(scenario.weights) for scenario in drawn} == set(range(2, 9))
    graphs = {getattr(scenario.mixing, "graph", "") for scenario in drawn}
    assert graphs == {"", "ring", "torus", "regular", "complete", "exponential"}
    for share in (
        [scenario.conditions.message_loss > 0 for scenario in drawn],
        [scenario.conditions.message_duplicates > 0 for scenario in drawn],
        [scenario.conditions.delay_s > 0 for scenario in drawn],
        [scenario.conditions.slow > 0 for scenario in drawn],
        [bool(scenario.conditions.cuts) for scenario in drawn],
        [scenario.crashes > 0 for scenario in drawn],
        [bool(scenario.filters) for scenario in drawn],
    ):
        assert sum(share) > SEEDS / 5
    assert {scenario.mixing.name for scenario in drawn if scenario.filters} == {"pairwise", "neighbors"}
    assert {scenario.filters for scenario in drawn} == {(), *FILTERS}


def test_no_run_of_the_first_breaks_and_processes_really_die_and_models_mix() -> None:
    flocks = [run_seed(seed) for seed in range(FIRST)]
    assert sum(peer.process.number - 1 for swarm in flocks for peer in swarm.peers.values()) > 50
    mixed = [
        sum(len(peer.gossip.me.counts.version_vector) > 1 for peer in swarm.peers.values() if peer.gossip is not None)
        for swarm in flocks
    ]
    assert sum(count > 0 for count in mixed) > 25


def test_a_seed_tells_the_same_story_twice() -> None:
    first: list[str] = []
    second: list[str] = []
    for seed in (2, 5, 6, 8):  # each way of mixing, with crashes
        run_seed(seed, first.append)
        run_seed(seed, second.append)
    assert first == second
    assert len(first) > 1000


def test_a_broken_run_says_how_to_repeat_it(monkeypatch: Patch, capsys) -> None:
    added_again(monkeypatch)
    assert main(["--peers", "0", "--count", "300"]) == 1
    told = capsys.readouterr().out
    command = told.strip().splitlines()[-1].removeprefix("repeat it: ")
    assert command.startswith("python -m shoal.sim --peers ")
    assert main(command.split()[3:]) == 1
    traced = capsys.readouterr().out
    assert told.splitlines()[0] in traced
    assert len(traced.splitlines()) > 10


def test_good_runs_are_counted(capsys) -> None:
    assert main(["--peers", "7", "--count", "3"]) == 0
    assert capsys.readouterr().out.startswith("3 runs, none failed; ")


# Plausible bugs


def added_again(patch: Patch) -> None:
    """The last id from each sender is not remembered."""
    pushed = PushSumMixer._receive_push

    def forgetful(self, push, me):
        self.last.pop(push.node, None)
        return pushed(self, push, me)

    patch.setattr(PushSumMixer, "_receive_push", forgetful)


def forgotten_by_the_next_process(patch: Patch) -> None:
    state = PushSumMixer.state
    patch.setattr(PushSumMixer, "state", lambda self: {**state(self), "last": {}})


def not_sent_again(patch: Patch) -> None:
    """Pushed models are not kept."""
    told = PushSumMixer._push_message

    def careless(self, xid):
        tell = told(self, xid)
        self._unacknowledged.drop(xid)
        del self.pending[xid]
        return tell

    patch.setattr(PushSumMixer, "_push_message", careless)


def taken_back_though_it_may_have_arrived(patch: Patch) -> None:
    """A push that is not answered soon is given up."""
    ring = PushSumMixer.on_timer

    def impatient(self, me, now):
        for xid in self._unacknowledged.take_due(now):
            one = self.pending.pop(xid)
            self._unacknowledged.drop(xid)
            self._add(one.mass, me.open_model(one.shown), me)
        return ring(self, me, now)

    patch.setattr(PushSumMixer, "on_timer", impatient)


def pushed_under_an_old_id(patch: Patch) -> None:
    """Ids do not tell one process from the next."""
    push = PushSumMixer._push

    def timeless(self, me, now):
        return push(self, replace(me, process_number=1), now)

    patch.setattr(PushSumMixer, "_push", timeless)


def doubts_settled_by_guess(patch: Patch) -> None:
    """In pairwise exchange, a doubt is dropped with the process."""
    state = PairwiseMixer.state
    patch.setattr(PairwiseMixer, "state", lambda self: {**state(self), "doubts": []})


def reckoned_with_what_was_not_shown(patch: Patch) -> None:
    """A partner steps from its model as it is, not as the other sees it."""
    patch.setattr(GossipState, "published_model", lambda self, shown: self.mixed)


def neighbors_waited_for_without_end(patch: Patch) -> None:
    """As some do: the round ends when all offers are there."""
    close = NeighborsMixer._close

    def stubborn(self, round_, me, now):
        if round_.degrees.keys() - round_.received.keys():
            self.open = replace(round_, until=now + 10.0)
            return []
        return close(self, round_, me, now)

    patch.setattr(NeighborsMixer, "_close", stubborn)


def parts_waited_for_without_end(patch: Patch) -> None:
    patch.setattr(
        AllReduceMixer, "_give_up", lambda self, why, me: setattr(self.open, "until", self.open.until + 9) or []
    )


def nothing_repeated(patch: Patch) -> None:
    """Lost messages stay lost."""
    patch.setattr(Retransmissions, "take_due", lambda self, now: [])


MUTANTS: dict[str, tuple[str, Callable[[Patch], None]]] = {
    "a push is added again": ("push_sum", added_again),
    "the next process forgets": ("push_sum", forgotten_by_the_next_process),
    "a push is not kept": ("push_sum", not_sent_again),
    "a push is taken back": ("push_sum", taken_back_though_it_may_have_arrived),
    "an id is used again": ("push_sum", pushed_under_an_old_id),
    "a doubt is dropped": ("pairwise", doubts_settled_by_guess),
    "rounding is forgotten": ("pairwise", reckoned_with_what_was_not_shown),
    "a neighbor is waited for": ("neighbors", neighbors_waited_for_without_end),
    "a part is waited for": ("all_reduce", parts_waited_for_without_end),
    "nothing is repeated": ("neighbors", nothing_repeated),
}
"""Each bug with a mixing that has it: runs with others take time and cannot fail."""


@pytest.mark.parametrize(("mixing", "plant"), MUTANTS.values(), ids=MUTANTS)
def test_bugs_are_found(mixing: str, plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    with pytest.raises(SeedFailed):
        run_seeds(seed for seed in range(300) if draw(seed).mixing.name == mixing)


def test_mass_that_is_refused_balances_too(monkeypatch: Patch) -> None:
    """A third of all pushes is refused, chosen by their bodies, and taken back. Two peers whose last models are both
    among them would never end: no draw of these with federated averaging has such models."""

    def fault(_: GossipState, blob: BlobRef, __: float) -> str:
        return "bad luck" if int(blob.digest[:8], 16) % 3 == 0 else ""

    monkeypatch.setattr(GossipState, "share_fault", fault)
    drawn = [replace(scenario, algorithm=Algorithm()) for scenario in map(draw, range(60))]
    flocks = [run(scenario) for scenario in drawn if isinstance(scenario.mixing, PushSum)]
    refused = [
        event for swarm in flocks for peer in swarm.peers.values() for event in peer.events if event.kind == "refusal"
    ]
    assert len(refused) > 50


def test_what_is_declined_is_neither_lost_nor_counted_twice(monkeypatch: Patch) -> None:
    """Each peer declines a quarter of what it hears, whatever it is: the books balance, and all come to their end."""
    heard = Counter[str]()

    def receive(self, message):
        heard[self.own.name] += 1
        self.feed(ModelRejected(message, "bad luck") if heard[self.own.name] % 4 == 0 else message)

    monkeypatch.setattr(SimulatedPeer, "receive", receive)
    for scenario in map(draw, range(30)):
        if isinstance(scenario.mixing, Pairwise | PushSum):
            run(scenario)
    assert sum(heard.values()) > 1000
