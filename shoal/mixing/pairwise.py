"""Conserving pairwise exchange: two peers meet, and each takes a step towards the other; their weighted sum stays.

Boyd, Ghosh, Prabhakar, Shah: "Randomized Gossip Algorithms", IEEE Trans. Information Theory 52 (2006), section I.B,
with weights n_k (examples), and made safe against loss: for peers i and j that show each other q_i and q_j,

    x_i  <-  x_i + c n_j / (n_i + n_j) (q_j - q_i)
    x_j  <-  x_j + c n_i / (n_i + n_j) (q_i - q_j)            c in (0, 1]: both take the same share of the way

so n_i x_i + n_j x_j stays where it was, whatever q is (a model that filters have rounded, one that is late), as long as
both reckon with what the other one received, and with it the mean sum_k n_k x_k / sum_k n_k of all. That holds if
either both take their step, once, or neither does:

    i                                      j
    Reserve      --------------------->    free? then keep a slot for this exchange, else Busy
    keep (id, q_i)  <-----------  Slot
    Swap(q_i)    --------------------->    slot held, and never promised not to: step, keep (id, q_j)
    step, forget (id, q_i)  <-- Swapped(q_j)
    Settle       --------------------->    forget (id, q_j)

`i` in doubt asks (Resolve), for ever: j answers what it keeps; or Slot, which says "send it again"; or promises Never
to take that step. j in doubt whether its answer has come says that it has taken its step (Taken): it is asked for the
answer, or told to forget it. A model that is on its way (`Transfer`) is neither asked for nor sent again, and keeps its
slot. A peer has one exchange in flight, as initiator or as partner, because steps that are computed on models which
other steps have left meanwhile add up, and diverge; but a partner that does not answer is not waited for longer than
`patience_s`, and what the model's bytes take besides (`shoal.core.pacing`): its doubt stays, and the late step is
taken whenever it comes. Who has not answered is not asked for a while.

Models of which one is NORM_TIMES_MAX times as long as the other are not exchanged: both say how long theirs is before
any has been sent.

When all have made their local rounds, log2 n planned exchanges make all models one (`shoal.core.doubling`). In these
the weights are masses n_k that both sides divide anew, and in what follows no more of a mass takes part than a peer has
examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from shoal.core.errors import InvalidJob
from shoal.core.gossip import Mixing
from shoal.core.pairwise_mixer import PairwiseMixer


@dataclass(frozen=True)
class Pairwise(Mixing):
    """Each peer exchanges with one random other at a time; the weighted mean of all models never moves by it."""

    name: ClassVar[str] = "pairwise"
    asks: ClassVar[bool] = True
    filtered: ClassVar[bool] = True
    title: ClassVar[str] = "Conserving pairwise exchange (Boyd et al. 2006)"

    delta: float = 0.0
    """Exchange only when the model has moved by more than this (squared distance) since it last did; 0: always."""
    attempts: int = 4
    """How many partners to ask after a local round, when they are busy or silent."""
    models_per_round: float = 2.0
    """Models that a peer may send in each local round, on average, whoever began the exchange."""
    burst: float = 3.0
    """Models that it may save up to send at once."""
    patience_s: float = 10.0
    """Seconds until a silent partner is not waited for any longer; beside what its model's bytes take."""
    slot_s: float = 30.0
    """Seconds that a peer keeps itself free for a partner that has reserved, until that one's model begins to come."""
    clip: bool = True
    """Whether a step that is more than twice as long as usual is shortened, on both sides alike."""

    def __post_init__(self) -> None:
        if not (self.delta >= 0 and isfinite(self.delta)):
            raise InvalidJob(f"pairwise: delta is {self.delta}, but a squared distance is a number from 0 on")
        if self.attempts < 1:
            raise InvalidJob(f"pairwise: attempts is {self.attempts}, but at least one partner must be asked")
        if not (self.models_per_round > 0 and self.burst >= 1):
            raise InvalidJob("pairwise: models_per_round must be positive, and burst at least 1")
        if not (self.patience_s > 0 and self.slot_s > 0):
            raise InvalidJob("pairwise: patience_s and slot_s must be positive")

    def mixer(self) -> PairwiseMixer:
        """A peer's side of it."""
        return PairwiseMixer(self)
