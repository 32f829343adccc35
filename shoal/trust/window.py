"""Each request once, without clocks: a window over the numbers of one sender, as IPsec has it (RFC 4303, 3.4.3).

A sender numbers its requests 1, 2, 3, … within each of its starts (boots), whose number only rises. The receiver keeps
the greatest pair (boot, number) and which of the 64 numbers up to it have been here. So requests may overtake each
other by up to 63, and none is taken twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.trust.codes import refusal

WIDTH = 64
_ALL = (1 << WIDTH) - 1


@dataclass(frozen=True)
class ReplayWindow:
    """Window of received numbers. Bit i of `mask`: the number `top - i`."""

    boot: int = 0
    top: int = 0
    mask: int = 0

    def after(self, boot: int, seq: int) -> ReplayWindow:
        """Return the window after this request. Raises `NotAllowed`: `trust.boot-old`, `trust.replayed`."""
        if boot < self.boot:
            raise refusal("trust.boot-old", f"boot {boot} of the sender, whose boot {self.boot} has been here")
        if boot > self.boot:
            return ReplayWindow(boot, seq, 1)
        ahead = seq - self.top
        if ahead > 0:
            return ReplayWindow(boot, seq, (self.mask << ahead | 1) & _ALL if ahead < WIDTH else 1)
        if ahead <= -WIDTH:
            raise refusal("trust.replayed", f"request {seq} comes {-ahead} behind {self.top}; at most {WIDTH - 1}")
        bit = 1 << -ahead
        if self.mask & bit:
            raise refusal("trust.replayed", f"request {seq} of boot {boot} has been here")
        return ReplayWindow(boot, self.top, self.mask | bit)
