"""Every message that peers say to each other, for hypothesis."""

from hypothesis import strategies as st

from shoal.core import peer_message as said
from shoal.core.message import Fail, Poll, Report
from tests.wire.strategies import JOBS, MESSAGES, NODES, NUMBERS, REFS, TEXTS, WEIGHTS

IDS = st.tuples(NODES, NUMBERS, NUMBERS)
SEEN = st.dictionaries(NODES, NUMBERS, max_size=4)
LENGTHS = st.floats(0, allow_infinity=False, allow_nan=False)
SHARES = st.floats(0, 1)
RUMOURS = st.builds(
    said.Rumour,
    NODES,
    st.sampled_from(["alive", "suspect", "dead", "left"]),
    NUMBERS,
    st.lists(NODES, max_size=4).map(tuple),
)
NEWS = st.lists(RUMOURS, max_size=5).map(tuple)
INNER = st.one_of(MESSAGES[Poll], MESSAGES[Fail], MESSAGES[Report])

PEER_MESSAGES: dict[type, st.SearchStrategy] = {
    **{kind: st.builds(kind, NODES, IDS) for kind in (said.Reserve, said.Slot, said.Resolve, said.Settle, said.Taken)},
    said.Busy: st.builds(said.Busy, NODES, IDS, TEXTS, LENGTHS),
    said.Never: st.builds(said.Never, NODES, IDS, TEXTS),
    said.Swap: st.builds(said.Swap, NODES, IDS, WEIGHTS, LENGTHS, REFS, SEEN),
    said.Swapped: st.builds(said.Swapped, NODES, IDS, WEIGHTS, SHARES, REFS, SEEN),
    said.Offer: st.builds(said.Offer, NODES, NUMBERS, REFS, SEEN, WEIGHTS),
    said.Push: st.builds(said.Push, NODES, IDS, WEIGHTS, REFS, SEEN),
    said.Part: st.builds(said.Part, NODES, NUMBERS, NUMBERS, NUMBERS, WEIGHTS, REFS, SEEN, TEXTS),
    said.Suspect: st.builds(said.Suspect, NODES, NUMBERS),
    said.Bulletin: st.builds(said.Bulletin, NODES, NUMBERS, st.booleans(), st.booleans(), NUMBERS, st.none() | REFS),
    said.Declare: st.builds(said.Declare, NODES, NUMBERS, NUMBERS, REFS, TEXTS),
    **{kind: st.builds(kind, NODES, INNER) for kind in (said.Relay, said.Relayed)},
    **{kind: st.builds(kind, NODES, NUMBERS, NEWS) for kind in (said.Hello, said.News)},
    said.Ping: st.builds(said.Ping, NODES, NUMBERS, NUMBERS, NEWS),
    **{kind: st.builds(kind, NODES, NUMBERS, NUMBERS, NODES, NEWS) for kind in (said.Pong, said.Probe, said.Silent)},
}
LETTERS = st.tuples(JOBS, st.lists(st.one_of(*PEER_MESSAGES.values()), min_size=1, max_size=4).map(tuple)).filter(
    lambda letter: sum(isinstance(one, said.Swap | said.Swapped | said.Offer) for one in letter[1]) <= 4
)
