"""Each request once, without clocks: a window over the numbers of one sender, as IPsec has it (RFC 4303, 3.4.3).

A sender numbers its requests 1, 2, 3, … within each of its processes, whose own number only rises. The receiver
keeps the greatest pair (process number, number) and which of the 64 numbers up to it have been here. So requests may
overtake each other by up to 63, and none is taken twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.trust.codes import refusal

WIDTH = 64
_ALL = (1 << WIDTH) - 1


@dataclass(frozen=True)
class ReplayWindow:
    """Window of received numbers. Bit i of `mask`: the number `top - i`."""

    process_number: int = 0
    top: int = 0
    mask: int = 0

    def after(self, process_number: int, seq: int) -> ReplayWindow:
        """Return the window after this request. Raises `NotAllowed`: `trust.process-old`, `trust.replayed`."""
        if process_number < self.process_number:
            raise refusal("trust.process-old", f"process number {process_number}, after {self.process_number}")
        if process_number > self.process_number:
            return ReplayWindow(process_number, seq, 1)
        ahead = seq - self.top
        if ahead > 0:
            return ReplayWindow(process_number, seq, (self.mask << ahead | 1) & _ALL if ahead < WIDTH else 1)
        if ahead <= -WIDTH:
            raise refusal("trust.replayed", f"request {seq} comes {-ahead} behind {self.top}; at most {WIDTH - 1}")
        bit = 1 << -ahead
        if self.mask & bit:
            raise refusal("trust.replayed", f"request {seq} of process number {process_number} has been here")
        return ReplayWindow(process_number, self.top, self.mask | bit)
