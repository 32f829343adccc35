"""Growing networks: the weights of a larger network that computes what a smaller one does.

Chen, Goodfellow, Shlens, "Net2Net: Accelerating Learning via Knowledge Transfer", ICLR 2016. `grow` is a function of
two modules and a seed; `docs/how-to/growing.md` shows the job around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.extras import lazy

if TYPE_CHECKING:
    from shoal.learn.growth.net2net import grow

__all__ = ["grow"]


def __getattr__(name: str) -> Any:
    return lazy({"grow": "shoal.learn.growth.net2net"}, __name__, name)
