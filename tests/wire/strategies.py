"""Messages, events and slots of every kind, for hypothesis."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from hypothesis import strategies as st

from shoal.core.model.tree import DTYPES, Layout, Slots, Tree
from shoal.core.protocol import machine, message
from shoal.validation.message_checks import COUNT_MAX, NAME, WEIGHT_MAX
from shoal.wire.payload import payload_pieces
from tests.core.strategies import BASE_MODELS, SHAPES, trees_of

JOBS = NODES = st.from_regex(NAME, fullmatch=True)
NUMBERS = st.integers(0, 2**63 - 1)
TASKS = st.tuples(NUMBERS, NUMBERS)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
REFS = st.builds(
    message.BlobRef,
    digest=st.text("0123456789abcdef", min_size=64, max_size=64),
    nbytes=st.integers(1, COUNT_MAX),
)
BODIES = st.none() | REFS
METRIC_NAMES = st.from_regex(r"[a-z0-9_]{1,12}([./-][a-z0-9_]{1,12}){0,3}", fullmatch=True).filter(
    lambda name: name != "eval/examples"
)
COUNTS = st.fixed_dictionaries({}, optional={"eval/examples": st.floats(0, WEIGHT_MAX)})
METRICS = st.builds(lambda a, b: a | b, st.dictionaries(METRIC_NAMES, st.floats(), max_size=6), COUNTS)
WEIGHTS = st.floats(0, WEIGHT_MAX)
KINDS = st.sampled_from(["init", "train", "evaluate", "gossip"])
PHASES = st.sampled_from(get_args(message.Phase))
TERMS = st.integers(0, COUNT_MAX)

MESSAGES: dict[type, st.SearchStrategy] = {
    message.Join: st.builds(message.Join, NODES, st.none() | TASKS),
    message.Poll: st.builds(message.Poll, NODES),
    message.CoordinatorPing: st.builds(message.CoordinatorPing, NODES, st.just(-1) | TERMS),
    message.Task: st.builds(
        message.Task,
        *(TASKS, NODES, KINDS, NUMBERS, NUMBERS, BODIES, BODIES),
        numbers=st.dictionaries(METRIC_NAMES, st.floats(allow_nan=False, allow_infinity=False), max_size=4),
        revision=NUMBERS,
        recall=st.booleans(),
        checks_allowed=NUMBERS,
    ),
    message.Amendment: st.builds(message.Amendment, TASKS, NUMBERS, st.booleans(), NUMBERS),
    message.TaskStatus: st.builds(
        message.TaskStatus,
        *(NODES, TASKS, NUMBERS),
        values=st.dictionaries(METRIC_NAMES, st.floats(), max_size=4),
        monitor_state=st.binary(max_size=60),
    ),
    message.Report: st.builds(message.Report, NODES, TASKS, NUMBERS, WEIGHTS, BODIES, METRICS),
    message.TaskFailed: st.builds(message.TaskFailed, NODES, TASKS, TEXTS, PHASES, TEXTS),
    message.Leave: st.builds(message.Leave, NODES),
    message.NoTask: st.builds(message.NoTask, TASKS),
    message.Ack: st.builds(message.Ack, TASKS, st.booleans(), TEXTS),
    message.CoordinatorAlive: st.builds(message.CoordinatorAlive, TERMS),
    message.ChangeSettings: st.builds(message.ChangeSettings, METRICS, TEXTS),
    message.Pause: st.builds(message.Pause, TEXTS),
    message.Resume: st.builds(message.Resume, TEXTS),
    message.Stop: st.builds(message.Stop, TEXTS, st.sampled_from(["now", "round"])),
    message.DrainNode: st.builds(message.DrainNode, NODES, TEXTS, st.booleans()),
    message.SwitchMode: st.builds(message.SwitchMode, st.sampled_from(["gossip", "server"]), TEXTS),
}
MEASURED = st.builds(
    message.Report, NODES, TASKS, NUMBERS, WEIGHTS, BODIES, METRICS, st.floats(0, allow_infinity=False)
)
EVENTS: dict[type, st.SearchStrategy] = MESSAGES | {
    message.Report: MEASURED,
    machine.Timer: st.builds(machine.Timer),
    machine.Restarted: st.builds(machine.Restarted),
    machine.NodeLost: st.builds(machine.NodeLost, NODES, TEXTS),
}

TENSOR_NAMES = st.text(min_size=1, max_size=12).filter(
    lambda name: name.isprintable() and name[0] != "@" and name != "__metadata__"
)
SLOT_NAMES = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True).filter(lambda name: name != "model")


@st.composite
def trees(draw: st.DrawFn, dtypes: Sequence[str] = tuple(DTYPES), bound: float | None = None) -> Tree:
    """A tree of one to four tensors, with names that may travel."""
    names = draw(st.lists(TENSOR_NAMES, min_size=1, max_size=4, unique=True))
    layout = Layout.of((name, draw(st.sampled_from(dtypes)), draw(SHAPES)) for name in names)
    return draw(trees_of(layout, bound))


@st.composite
def slots(draw: st.DrawFn, bound: float | None = None) -> Slots:
    """Up to four slots, trees and numbers, with or without a model; all trees are of one base model, or of none."""
    made: Slots = draw(st.dictionaries(SLOT_NAMES, trees(bound=bound) | st.floats(-1e6, 1e6), max_size=3))
    if draw(st.booleans()):
        made["model"] = draw(trees(bound=bound))
    base_model = draw(BASE_MODELS)
    of_base = {name: based(value, base_model) if isinstance(value, Tree) else value for name, value in made.items()}
    return dict(draw(st.permutations(list(of_base.items()))))


def based(tree: Tree, base_model: str) -> Tree:
    """The same tree of a base model."""
    return Tree(replace(tree.layout, base_model=base_model), tree.data)


def body_of(made: Slots) -> bytes:
    """The body of these slots in one piece."""
    return b"".join(bytes(piece) for piece in payload_pieces(made))


def same(a: Slots, b: Slots) -> bool:
    """Return whether slots agree in names, layouts and every bit."""
    if set(a) != set(b):
        return False
    for name, left in a.items():
        right = b[name]
        if isinstance(left, Tree) != isinstance(right, Tree):
            return False
        if isinstance(left, Tree) and isinstance(right, Tree):
            if left.layout != right.layout or bytes(left.buffer) != bytes(right.buffer):
                return False
        elif left != right or math.copysign(1, left) != math.copysign(1, right):
            return False
    return True
