"""Conserving pairwise exchange: each of two peers takes a step towards the other; their weighted sum stays.

Boyd, Ghosh, Prabhakar, Shah: "Randomized Gossip Algorithms", IEEE Trans. Information Theory 52 (2006), section I.B,
with weights n_k (examples), and made safe against loss. Peers i and j show each other q_i and q_j:

    x_i  <-  x_i + c n_j / (n_i + n_j) (q_j - q_i)
    x_j  <-  x_j + c n_i / (n_i + n_j) (q_i - q_j)            c in (0, 1]: both take the same share of the way

So n_i x_i + n_j x_j is conserved, whatever q is (a model that filters have rounded, or a late one), if both use what
the other has received; and with it the mean sum_k n_k x_k / sum_k n_k of all. Either both take their step, once, or
neither does:

    i                                              j
    ExchangeRequest      --------------------->    free? then keep a slot, else ExchangeDeny
    keep (id, q_i)       <-----  ExchangeGrant
    ExchangeOffer(q_i)   --------------------->    slot kept, and never aborted: step, keep (id, q_j)
    step, forget (id, q_i)  <-- ExchangeAccept(q_j)
    ExchangeCommit       --------------------->    forget (id, q_j)

While `i` is in doubt it sends ExchangeQuery, without end: j answers with its kept step; or with ExchangeGrant, which
means "offer again"; or with ExchangeAbort, which promises never to take that step. While j is in doubt whether its
answer arrived it sends Received, and i asks for the answer, or tells it to forget. A model in transit (`Transfer`) is
neither queried nor sent again, and keeps its slot. A peer has one exchange in flight, because steps from models that
other steps have left meanwhile add up, and diverge. It waits for its partner no longer than `exchange_timeout_s` and
the time for the model's bytes (`shoal.core.mixing.exchange_pacing`): then the exchange stays in doubt, and the late
step is taken whenever it comes. A silent partner is not called for a while.

Models of which one is NORM_TIMES_MAX times as long as the other are not exchanged: both send their norm before any
model.

When all have made their local rounds, log2 n planned exchanges make all models one
(`shoal.core.mixing.final_averaging`). There the weights are masses n_k that both sides divide again, and afterwards no
more of a mass takes part than a peer has examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Interval

from shoal.core.errors.ranges import NonNegativeFloat, PositiveFloat, PositiveInt
from shoal.core.gossip.mixer import Mixing
from shoal.core.mixing.pairwise_mixer import PairwiseMixer


@dataclass(frozen=True)
class Pairwise(Mixing):
    """Each peer exchanges with one random peer at a time; exchanges conserve the weighted mean of all models."""

    name: ClassVar[str] = "pairwise"
    requests_first: ClassVar[bool] = True
    supports_filters: ClassVar[bool] = True
    title: ClassVar[str] = "Conserving pairwise exchange (Boyd et al. 2006)"

    delta: NonNegativeFloat = 0.0
    """Exchange only if the model's squared distance to its last exchanged state exceeds this; 0: always."""
    partners_asked_max: PositiveInt = 4
    """Maximum number of partners to ask after a local round, if they are busy or do not answer."""
    models_per_round: PositiveFloat = 2.0
    """Average number of models that a peer may send per local round, in exchanges that it starts or accepts."""
    burst: Annotated[float, Interval(ge=1)] = 3.0
    """Maximum number of unused models to save up (token bucket)."""
    exchange_timeout_s: PositiveFloat = 10.0
    """Seconds to wait for a silent partner, in addition to the time for its model's bytes."""
    slot_timeout_s: PositiveFloat = 30.0
    """Seconds that a peer reserves itself for a partner until the partner's model begins to arrive."""
    clip_long_steps: bool = True
    """True: shorten steps that are more than twice as long as usual, equally on both sides."""

    def mixer(self) -> PairwiseMixer:
        return PairwiseMixer(self)
