"""Uniform: every node that may be asked is as likely as any other.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, Algorithm 1: S_t is a random set of m clients. A node's examples count when models are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.scheduling.selection import Selection


@dataclass(frozen=True)
class Uniform(Selection):
    """Draw without replacement, each node with the same chance."""

    name: ClassVar[str] = "uniform"
