"""Federated averaging: the base class of `shoal.core.algorithm.algorithm` as it stands, under its name.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, Algorithm 1 (FederatedAveraging).

    w_{t+1} = w_t + sum_k n_k (w_k - w_t) / sum_k n_k,   w_k from E epochs of SGD on batches of B, learning rate eta
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.model.vector_parts import ShardScope


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Each node trains for some epochs; the next model is the mean of theirs, weighted by examples."""

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "Federated averaging (McMahan et al. 2017)"
    shardable: ClassVar[ShardScope] = "weights"
