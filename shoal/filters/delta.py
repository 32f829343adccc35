"""Models as differences to the version before, for nodes that took part in it.

Between two versions a model moves little, so a difference needs fewer bits than a model: the other filters of the list
treat these differences like updates. The coordinator continues with exactly the model that the nodes then have (Tang,
Yu, Lian, Zhang, Liu: "DoubleSqueeze", ICML 2019, compresses both ways; here no error remains, because the next
difference begins at what was received). A node that did not take part in the version before gets the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.algorithm.filter import Filter


@dataclass(frozen=True)
class Delta(Filter):
    """Send models as differences to the version before. By itself it changes nothing about an update."""

    name: ClassVar[str] = "delta"
    title: ClassVar[str] = "Differences of models"
    sends_differences: ClassVar[bool] = True
