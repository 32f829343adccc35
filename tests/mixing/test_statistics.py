"""Statistics of peers that mix: each stays between those that the peers have measured."""

from __future__ import annotations

from math import nan
from typing import Any

import numpy as np
import pytest

from shoal.core.gossip.mixer import Mixing
from shoal.core.model.tree import Tree
from shoal.core.protocol.peer_message import ModelOffer, PushShare
from shoal.filters.quantize import Quantize
from shoal.mixing.all_reduce import AllReduce
from shoal.mixing.neighbors import Neighbors
from shoal.mixing.pairwise import Pairwise
from shoal.mixing.push_sum import PushSum
from shoal.sim.network.faults import PeerNetworkConditions
from shoal.sim.scenarios.mixing_runs import MixingRun
from tests.mixing.quiet_network import One, names

LATE = PeerNetworkConditions(delay_s=0.6, until_s=20.0)
PEERS = 5


def model(w: float, var: float) -> Tree:
    arrays = {"w": np.full(4, w, np.float32), "bn.running_var": np.full(3, var, np.float32)}
    return Tree.of(arrays, statistics=["bn.running_var"])


def variances(run: MixingRun) -> np.ndarray:
    return np.concatenate([me.model["bn.running_var"] for me in run.holdings.values()])


@pytest.mark.parametrize("filters", [(), (Quantize(),)], ids=["plain", "quantized"])
@pytest.mark.parametrize(
    "mixing", [Pairwise(), Neighbors(), PushSum(floor=0.05), AllReduce()], ids=lambda mixing: mixing.name
)
def test_a_model_that_has_gone_on_meanwhile_does_not_lead_them_astray(mixing: Mixing, filters: Any) -> None:
    """Local rounds change them a thousandfold while models are in transit."""
    if filters and not mixing.supports_filters:
        filters = ()
    draw = np.random.default_rng(3)
    run = MixingRun(
        mixing, {name: model(0.0, 1.0) for name in names(PEERS)}, dict.fromkeys(names(PEERS), 1.0), conditions=LATE
    )
    for me in run.holdings.values():
        me.filters = filters
        me.fit(me.model.layout.nbytes)
    low, high, moved = 1.0, 1.0, 0
    for _ in range(20):
        for me in run.holdings.values():
            measured = np.float32(10 ** draw.uniform(-2, 2))
            low, high = min(low, float(measured)), max(high, float(measured))
            me.mixed = model(float(draw.normal()), float(measured))
        before = variances(run)
        run.round()
        after = variances(run)
        moved += int((before != after).sum())
        assert low <= after.min() <= after.max() <= high
    assert moved, "nothing was mixed"


@pytest.mark.parametrize("var", [-1.0, 1e12, nan])
@pytest.mark.parametrize("kind", ["push", "offer"])
def test_a_peer_refuses_what_cannot_be(kind: str, var: float) -> None:
    mixing: Mixing = PushSum() if kind == "push" else Neighbors(graph="complete")
    one = One(mixing, ["b"], model(1.0, 2.0))
    one.turn(0.0)
    body = one.body(model(3.0, var))
    one.hear(PushShare("b", ("b", 1, 1), 1.0, body, {}) if kind == "push" else ModelOffer("b", 1, body, {}, 1.0))
    one.ring(1e6)
    assert one.me.model["w"].tolist() == [1.0] * 4
    assert one.mixer.refused == 1
