"""Models as differences to the version before, for nodes that took part in it.

Between two versions a model moves little, so a difference stands fewer bits than a model does: what the other filters
of the list make of updates they make of these differences, too. The coordinator goes on with the model that the nodes
then have, to the last bit (Tang, Yu, Lian, Zhang, Liu: "DoubleSqueeze", ICML 2019, compresses both ways; here nothing
is left over to be remembered, for the next difference begins at what was received). Who did not take part in the
version before, and so may not hold it, is sent the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.filter import Filter


@dataclass(frozen=True)
class Delta(Filter):
    """Send models as differences to the version before. By itself it changes nothing about an update."""

    name: ClassVar[str] = "delta"
    title: ClassVar[str] = "Differences of models"
    differences: ClassVar[bool] = True
