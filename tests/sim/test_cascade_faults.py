"""Levels of a cascade under faults: each request gets exactly one answer, and without faults that of the network."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.exits.cascade_level import (
    Answered,
    CascadeAnswer,
    CascadeLevel,
    CascadeRequest,
    ComputeScores,
    Escalate,
    EscalationAnswered,
    EscalationFailed,
    RequestRefused,
    Scored,
)
from shoal.core.exits.packed_bits import PackedFeatures
from shoal.core.protocol.machine import Timer, Wake
from shoal.learn.exits import ExitNetwork, answer, record_exits
from shoal.learn.exits.level_answers import at_devices, at_level
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.faults import NetworkConditions
from shoal.sim.network.network import Network
from tests.learn.exit_networks import small, views

LEVELS, REQUESTS, EXAMPLES = ("device", "edge", "cloud"), 20, 10
TIMEOUTS_S = (2.0, 1.0, 1.0)


class CascadeWorld:
    """Three levels on a virtual clock; the network loses, repeats and reorders what they send each other."""

    def __init__(self, network: ExitNetwork, thresholds: list[float], conditions: NetworkConditions, seed: int) -> None:
        self.model, self.limits = network, [*thresholds, None]
        self.clock = VirtualClock()
        self.net = Network(self.clock, conditions, Random(seed))
        self.levels = [self.made(number) for number in range(3)]
        self.down = [False] * 3
        self.answers: dict[str, list[CascadeAnswer]] = {}

    def made(self, number: int) -> CascadeLevel:
        return CascadeLevel(number, 3, self.limits[number], TIMEOUTS_S[number])

    def kill(self, number: int) -> None:
        self.down[number], self.levels[number] = True, self.made(number)

    def revive(self, number: int) -> None:
        self.down[number] = False

    def feed(self, number: int, event: Any) -> None:
        if not self.down[number]:
            for effect in self.levels[number].on(event, self.clock.now):
                self.act(number, effect)

    def act(self, number: int, effect: Any) -> None:
        match effect:
            case ComputeScores(request, inputs):
                upper = isinstance(inputs, PackedFeatures)
                found = at_level(self.model, number, inputs) if upper else at_devices(self.model, inputs)
                self.clock.after(0.01, self.feed, number, Scored(request, found.scores.astype(float), found.features))
            case Escalate(request, features):
                self.send(number, number + 1, CascadeRequest(request, features))
            case Answered(request, found) if number == 0:
                self.answers.setdefault(request, []).append(found)
            case Answered(request, found):
                self.send(number, number - 1, EscalationAnswered(request, found))
            case RequestRefused(request) if number:
                self.send(number, number - 1, EscalationFailed(request))
            case Wake(at):
                self.clock.at(at, self.feed, number, Timer())

    def send(self, source: int, target: int, event: Any) -> None:
        self.net.send(LEVELS[source], LEVELS[target], event, lambda message: self.feed(target, message))


def cascade(conditions: NetworkConditions, seed: int) -> tuple[CascadeWorld, list[Tensor]]:
    """A world to which requests come one a second."""
    network, x = small(1, edge=True), views(1, REQUESTS * EXAMPLES, seed)[:, 0]
    entropies = record_exits(network, [x], torch.zeros(len(x), dtype=torch.int64)).entropies
    world = CascadeWorld(network, [float(np.quantile(one, 0.4)) for one in entropies[:-1]], conditions, seed)
    parts = list(torch.split(x, EXAMPLES))
    for number, part in enumerate(parts):
        world.clock.at(float(number), world.feed, 0, CascadeRequest(str(number), [part]))
    return world, parts


def test_without_faults_answers_and_bytes_are_those_of_the_network() -> None:
    world, parts = cascade(NetworkConditions(), 0)
    world.clock.run(60)
    sent, exits = 0, Counter[int]()
    for number, part in enumerate(parts):
        expected, (found,) = answer(world.model, [part], world.limits[:2]), world.answers[str(number)]
        assert found.classes.tolist() == expected.classes.tolist()
        assert found.exits.tolist() == expected.exits.tolist()
        assert not found.degraded.any()
        sent, exits = sent + expected.sent, exits + Counter(expected.exits.tolist())
    counts = [level.counts for level in world.levels]
    assert sum(one.sent_bytes for one in counts) == sum(one.received_bytes for one in counts) == sent > 0
    assert [one.answered for one in counts] == [exits[number] for number in range(3)]
    assert min(exits.values()) > 0
    assert [one.escalated for one in counts] == [exits[1] + exits[2], exits[2], 0]


def test_each_request_has_one_answer_whatever_is_lost_repeated_or_killed() -> None:
    conditions = replace(NetworkConditions(), message_loss=0.2, message_duplicates=0.3, delay_s=1.0)
    reached, degraded = set[int](), Counter[bool]()
    for seed in range(6):
        world, parts = cascade(conditions, seed)
        for second, act, number in (
            (4, world.kill, 2),
            (7, world.revive, 2),
            (9, world.kill, 1),
            (12, world.revive, 1),
        ):
            world.clock.at(second + 0.5, act, number)
        world.clock.run(60)
        assert sorted(world.answers) == sorted(str(number) for number in range(REQUESTS))
        for number, part in enumerate(parts):
            (found,) = world.answers[str(number)]
            scores = world.model.eval()(part)[torch.arange(EXAMPLES), torch.from_numpy(found.exits)]
            assert found.classes.tolist() == scores.argmax(1).tolist()  # of the exit that it names
            reached |= {*found.exits.tolist()}
            degraded += Counter(found.degraded.tolist())
        assert not any(level._waiting for level in world.levels)
        during = world.answers["10"][0]  # the edge server was away
        assert not during.exits.any()
        assert during.degraded.any()
    assert reached == {0, 1, 2}
    assert min(degraded[True], degraded[False]) > 50
