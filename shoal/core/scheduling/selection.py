"""Selections: which nodes may be asked, and which are, when a schedule wants fewer than there are.

The base class draws uniformly, as McMahan et al. 2017 do. A subclass overrides `pick`; the fields here hold for every
selection. All is pure: randomness and the time are arguments, so a replayed journal selects the same nodes again. Every
selection has a reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from shoal.core.errors import InvalidJob, Refused
from shoal.core.errors.ranges import check_ranges
from shoal.core.model.model_form import ModelForm
from shoal.core.model.tree import DIGEST
from shoal.core.protocol.message import NodeInfo
from shoal.core.scheduling.availability_windows import is_open, next_opening, parse_hours

TAG = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
"""A node's tag, and a node's name."""

COUNT_MAX = 2**53

TAGS_MAX = 32
HOURS_MAX = 16
"""Maximum number of tags, and of intervals of hours, of one node."""

NAMED_MAX = 3
"""Maximum number of nodes that a reason names; it counts the others."""


@dataclass(frozen=True)
class Candidate:
    """A node as a selection sees it. `tags` and `hours` are its own word."""

    node: str
    tags: tuple[str, ...] = ()
    hours: tuple[str, ...] = ()
    """Availability windows, such as "22:00-06:00" (UTC); none: at any time."""
    examples: float | None = None
    """The weight of its last update; None: it has sent none yet."""
    loss: float | None = None
    """Its mean loss on its own data when it trained last; None as above, or where its learner measures none."""
    drain_reason: str = ""
    """Reason why an operator has drained it; empty: it may be asked."""


@dataclass(frozen=True)
class Picked:
    """Nodes, sorted, and why these: "" where there was no choice."""

    nodes: tuple[str, ...]
    why: str = ""

    @property
    def because(self) -> str:
        """The reason as the end of a sentence."""
        return f", {self.why}" if self.why else ""


@dataclass(frozen=True)
class Selection:
    """Uniform selection from the nodes that may be asked."""

    name: ClassVar[str] = "uniform"
    title: ClassVar[str] = "Uniform draw (McMahan et al. 2017)"
    uses_reports: ClassVar[bool] = False
    """True if it uses reports, so that it needs a schedule that draws again for each version."""

    nodes: tuple[str, ...] = ()
    """Only these nodes take part; none named: all."""
    tags: tuple[str, ...] = ()
    """Only nodes with all of these tags take part."""
    hours: tuple[str, ...] = ()
    """Daily windows in UTC in which nodes are asked: "22:00-06:00" for all, "phone 22:00-06:00" for nodes
    of that tag.
    """

    def __post_init__(self) -> None:
        check_ranges(self)
        for what, names in (("nodes", self.nodes), ("tags", self.tags)):
            for name in names:
                if not TAG.fullmatch(name):
                    text = f"{self.name}: {what}: {name[:70]!r} is not a name"
                    raise InvalidJob(text, hint="a name has 1 to 63 of a-z, 0-9, '.', '_', '-'")
        for text in self.hours:
            tag, _, hours = text.rpartition(" ")
            if tag and not TAG.fullmatch(tag):
                raise InvalidJob(f"{self.name}: hours: {tag[:70]!r} is not a tag", hint='write "phone 22:00-06:00"')
            try:
                parse_hours(hours)
            except InvalidJob as error:
                raise InvalidJob(f"{self.name}: hours: {error.message}", hint=error.hint) from None

    @property
    def candidate_count(self) -> int:
        """The greatest number of nodes from which it chooses; 0: all."""
        return 0

    @property
    def restricts(self) -> bool:
        """Return True if it may exclude a node; if not, it is not asked about each node at every event."""
        return bool(self.nodes or self.tags or self.hours)

    def describe_exclusion(self, one: Candidate) -> str:
        """Return why a node takes no part in the job, whatever the time; "" if it does. Depends on an operator's
        decision, its name and its tags alone."""
        if one.drain_reason:
            return one.drain_reason
        if self.nodes and one.node not in self.nodes:
            return "not named by the job"
        missing = [tag for tag in self.tags if tag not in one.tags]
        return f"without the tag {missing[0]}" if missing else ""

    def describe_closed(self, one: Candidate, wall: float) -> str:
        """Return why a node is not asked at this time (seconds since 1970); "" if it may be. Depends on its tags and
        hours alone."""
        for spans in self._spans(one):
            if not is_open(spans, wall):
                return f"only {', '.join(spans)} UTC"
        return ""

    def next_opening(self, one: Candidate, wall: float) -> float:
        """Return the next time after this at which a `closed` node may be asked, or at which to look again."""
        return min(next_opening(spans, wall) for spans in self._spans(one) if not is_open(spans, wall))

    def _spans(self, one: Candidate) -> list[tuple[str, ...]]:
        """Return the hours that must all be open: the node's own, the job's, and those of each of its tags."""
        told: dict[str, list[str]] = {}
        for text in self.hours:
            tag, _, hours = text.rpartition(" ")
            if not tag or tag in one.tags:
                told.setdefault(tag, []).append(hours)
        return [tuple(spans) for spans in (one.hours, *told.values()) if spans]

    @property
    def needs_probe(self) -> bool:
        """Return True if its candidates measure the newest model before it picks; the schedule must support that."""
        return False

    def draw_candidates(self, candidates: Sequence[Candidate], count: int, rng: Random) -> tuple[str, ...]:
        """Return the candidates that measure the model before this many of them are picked."""
        return ()

    def pick(self, candidates: Sequence[Candidate], count: int, rng: Random) -> Picked:
        """Pick this many; all if there are no more. `candidates` are sorted by name."""
        if count >= len(candidates):
            return Picked(tuple(sorted(one.node for one in candidates)))
        return Picked(tuple(sorted(rng.sample([one.node for one in candidates], count))), "drawn at random")


def check_node_info(info: NodeInfo) -> None:
    """Raise `Refused` for invalid tags or hours, or too many."""
    if len(info.tags) > TAGS_MAX or len(info.hours) > HOURS_MAX:
        raise Refused(f"a node has at most {TAGS_MAX} tags and {HOURS_MAX} hours", code="node.info")
    for tag in info.tags:
        if not TAG.fullmatch(tag):
            raise Refused(f"{tag[:70]!r} is not a tag", code="node.info", hint="use a-z, 0-9, '.', '_', '-'")
    for hours in info.hours:
        try:
            parse_hours(hours)
        except InvalidJob as error:
            raise Refused(error.message, code="node.info", hint=error.hint) from None


def parse_node_info(info: Mapping[str, Any]) -> NodeInfo:
    """Parse a node's information from its hello, including `tags` and `hours`. Raises `Refused`."""
    found: dict[str, tuple[str, ...]] = {}
    for name in ("tags", "hours"):
        words = info.get(name, [])
        if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise Refused(f"{name} are a list of words", code="node.info")
        found[name] = tuple(dict.fromkeys(words))
    node_info = NodeInfo(found["tags"], found["hours"], model=parse_model_form(info.get("model")))
    check_node_info(node_info)
    return node_info


def parse_model_form(said: Any) -> ModelForm | None:
    """Parse a node's model form, `{"digest": …, "tensors": …, "elements": …, "base_model": …}`, the last of which may
    be missing. Raises `Refused`."""
    if said is None:
        return None
    known = said if isinstance(said, dict) else {}
    digest, tensors, elements = (known.get(name) for name in ("digest", "tensors", "elements"))
    named = isinstance(digest, str) and DIGEST.fullmatch(digest) is not None
    counts = [count for count in (tensors, elements) if type(count) is int and 0 <= count < COUNT_MAX]
    base_model = known.get("base_model", "")
    is_based = base_model == "" or (isinstance(base_model, str) and DIGEST.fullmatch(base_model) is not None)
    if not named or len(counts) < 2 or not is_based:
        text = "model has a digest, numbers of tensors and elements, and perhaps its base model's digest"
        raise Refused(text, code="node.info")
    return ModelForm(str(digest), counts[0], counts[1], base_model)


def draw_by_examples(candidates: Sequence[Candidate], count: int, rng: Random) -> list[Candidate]:
    """Draw this many without replacement, each in proportion to its examples (Efraimidis, Spirakis 2006: the least of
    exponential waiting times with those rates). A node that has told none yet counts as the mean of the others."""
    known = [one.examples for one in candidates if one.examples]
    usual = sum(known) / len(known) if known else 1.0
    waits = {one.node: rng.expovariate((one.examples or usual) / usual) for one in candidates}
    return sorted(candidates, key=lambda one: (waits[one.node], one.node))[:count]


def join_names(words: Sequence[str]) -> str:
    """Return the first few, and the number of the rest."""
    more = len(words) - NAMED_MAX
    return ", ".join(words[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
