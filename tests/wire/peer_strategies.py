"""Every message that peers say to each other, for hypothesis."""

from hypothesis import strategies as st

from shoal.core.protocol import peer_message as said
from shoal.core.protocol.message import Poll, Report, TaskFailed
from tests.wire.strategies import JOBS, MESSAGES, NODES, NUMBERS, REFS, TEXTS, WEIGHTS

IDS = st.tuples(NODES, NUMBERS, NUMBERS)
SEEN = st.dictionaries(NODES, NUMBERS, max_size=4)
LENGTHS = st.floats(0, allow_infinity=False, allow_nan=False)
SHARES = st.floats(0, 1)
MEMBER_UPDATES = st.builds(
    said.MemberUpdate,
    NODES,
    st.sampled_from(["alive", "suspect", "dead", "left"]),
    NUMBERS,
    st.lists(NODES, max_size=4).map(tuple),
)
NEWS = st.lists(MEMBER_UPDATES, max_size=5).map(tuple)
INNER = st.one_of(MESSAGES[Poll], MESSAGES[TaskFailed], MESSAGES[Report])

PEER_MESSAGES: dict[type, st.SearchStrategy] = {
    **{
        kind: st.builds(kind, NODES, IDS)
        for kind in (said.ExchangeRequest, said.ExchangeGrant, said.ExchangeQuery, said.ExchangeCommit, said.Received)
    },
    said.ExchangeDeny: st.builds(said.ExchangeDeny, NODES, IDS, TEXTS, LENGTHS),
    said.ExchangeAbort: st.builds(said.ExchangeAbort, NODES, IDS, TEXTS),
    said.ExchangeOffer: st.builds(said.ExchangeOffer, NODES, IDS, WEIGHTS, LENGTHS, REFS, SEEN),
    said.ExchangeAccept: st.builds(said.ExchangeAccept, NODES, IDS, WEIGHTS, SHARES, REFS, SEEN),
    said.ModelOffer: st.builds(said.ModelOffer, NODES, NUMBERS, REFS, SEEN, WEIGHTS),
    said.PushShare: st.builds(said.PushShare, NODES, IDS, WEIGHTS, REFS, SEEN),
    said.RingChunk: st.builds(said.RingChunk, NODES, NUMBERS, NUMBERS, NUMBERS, WEIGHTS, REFS, SEEN, TEXTS),
    said.CoordinatorProbe: st.builds(said.CoordinatorProbe, NODES, NUMBERS),
    said.CoordinatorStatus: st.builds(
        said.CoordinatorStatus, NODES, NUMBERS, st.booleans(), st.booleans(), NUMBERS, st.none() | REFS
    ),
    said.DeclareFailover: st.builds(said.DeclareFailover, NODES, NUMBERS, NUMBERS, REFS, TEXTS),
    **{kind: st.builds(kind, NODES, INNER) for kind in (said.RelayRequest, said.RelayResponse)},
    **{kind: st.builds(kind, NODES, NUMBERS, NEWS) for kind in (said.PeerHello, said.StateSync)},
    said.Ping: st.builds(said.Ping, NODES, NUMBERS, NUMBERS, NEWS),
    **{
        kind: st.builds(kind, NODES, NUMBERS, NUMBERS, NODES, NEWS)
        for kind in (said.PingAck, said.PingRequest, said.PingNack)
    },
}
BATCHES = st.tuples(JOBS, st.lists(st.one_of(*PEER_MESSAGES.values()), min_size=1, max_size=4).map(tuple)).filter(
    lambda batch: (
        sum(isinstance(one, said.ExchangeOffer | said.ExchangeAccept | said.ModelOffer) for one in batch[1]) <= 4
    )
)
