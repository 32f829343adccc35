"""A level of a cascade as a state machine: it answers where its exit is sure enough, and escalates the rest.

a request is    it leaves when
computing       Scored comes: all answered, or the rest is sent up; ComputeFailed refuses it
escalated       EscalationAnswered, EscalationFailed or its time limit comes: it is answered

Without an answer from above, the level answers the rest by its own exit, and marks these answers as degraded. State
is in memory only: after a restart of the level above, the time limit of the level below answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.core.errors import InvalidPayload, LearnerFailed, Refused, ShoalError
from shoal.core.exits.entropy import Floats
from shoal.core.exits.packed_bits import PackedFeatures
from shoal.core.exits.thresholds import Flags, checked_thresholds, decide_each
from shoal.core.protocol.machine import Timer, Wake

Counts = npt.NDArray[np.int64]


class CascadeAnswer(NamedTuple):
    """The answers to the examples of a request."""

    classes: Counts
    exits: Counts
    """The number of the exit that answered each, counted from 0."""
    degraded: Flags
    """True where an exit answered although it was not sure enough, because the level above did not."""


@dataclass(frozen=True)
class CascadeRequest:
    """Event: examples to answer. `inputs`: those of a user, or features of the level below."""

    request: str
    inputs: Any


@dataclass(frozen=True)
class Scored:
    """Event: this level's part has computed scores [examples, classes]; `features` are None at the last level."""

    request: str
    scores: Floats
    features: PackedFeatures | None = None


@dataclass(frozen=True)
class ComputeFailed:
    """Event: this level's part cannot compute the request."""

    request: str
    error: ShoalError


@dataclass(frozen=True)
class EscalationAnswered:
    """Event: the level above has answered the examples that were sent up."""

    request: str
    answer: CascadeAnswer


@dataclass(frozen=True)
class EscalationFailed:
    """Event: the level above refuses the request, or cannot be reached."""

    request: str


CascadeEvent = CascadeRequest | Scored | ComputeFailed | EscalationAnswered | EscalationFailed | Timer


@dataclass(frozen=True)
class ComputeScores:
    """Effect: compute this level's part; `Scored` or `ComputeFailed` follows."""

    request: str
    inputs: Any


@dataclass(frozen=True)
class Escalate:
    """Effect: send the features of the examples that were not answered to the level above."""

    request: str
    features: PackedFeatures


@dataclass(frozen=True)
class Answered:
    """Effect: give this answer to the sender of the request."""

    request: str
    answer: CascadeAnswer


@dataclass(frozen=True)
class RequestRefused:
    """Effect: tell the sender of the request that it is not answered, and why."""

    request: str
    error: ShoalError


CascadeEffect = ComputeScores | Escalate | Answered | RequestRefused | Wake


@dataclass
class LevelCounts:
    """Counts of a level since its process started: examples, and bytes of features on its links."""

    answered: int = 0
    """Examples that its exit was sure enough of."""
    escalated: int = 0
    degraded: int = 0
    """Escalated examples that it answered itself in the end."""
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass
class _Escalated:
    """A request whose rest was sent up, with this level's answers to all examples."""

    answer: CascadeAnswer
    classes: int
    """The number of classes."""
    deadline: float


@dataclass
class CascadeLevel:
    """One level of several. `threshold`: of its exit; None of the last level, which answers everything.

    number          its number, counted from 0 at the devices
    levels          the number of levels
    timeout_s       seconds to wait for the level above
    waiting_max     requests under way at a time; further ones are refused

    Raises `InvalidJob` for a threshold outside [0, 1], for one of the last level, and for none of another level.
    """

    number: int
    levels: int
    threshold: float | None
    timeout_s: float = 2.0
    waiting_max: int = 64
    counts: LevelCounts = field(default_factory=LevelCounts)
    _waiting: dict[str, _Escalated | None] = field(default_factory=dict)
    """Requests under way; None: its scores are not there yet."""

    def __post_init__(self) -> None:
        limits = () if self.threshold is None else (self.threshold,)
        self._limits = checked_thresholds(limits, 1 if self.number == self.levels - 1 else 2)

    def on(self, event: CascadeEvent, now: float) -> list[CascadeEffect]:
        """Handle one event. Repeated requests, and late or repeated answers, change nothing."""
        match event:
            case CascadeRequest():
                return self._take(event)
            case Scored():
                return self._scored(event, now)
            case ComputeFailed(request, error):
                return self._refused(request, error)
            case EscalationAnswered():
                return self._from_above(event)
            case EscalationFailed(request):
                return self._degraded(request)
            case Timer():
                return self._timed_out(now)

    def _take(self, event: CascadeRequest) -> list[CascadeEffect]:
        if event.request in self._waiting:
            return []
        if len(self._waiting) >= self.waiting_max:
            text = f"{self.waiting_max} requests are under way"
            busy = Refused(text, code="exits.busy", hint="ask again in a second")
            return [RequestRefused(event.request, busy)]
        self._waiting[event.request] = None
        if isinstance(event.inputs, PackedFeatures):
            self.counts.received_bytes += event.inputs.nbytes
        return [ComputeScores(event.request, event.inputs)]

    def _scored(self, event: Scored, now: float) -> list[CascadeEffect]:
        if event.request not in self._waiting or self._waiting[event.request] is not None:
            return []
        try:
            sure = decide_each(event.scores, 0, self._limits)
        except InvalidPayload as error:
            failed = LearnerFailed(error.message, code=error.code, hint=error.hint)
            return self._refused(event.request, failed)
        classes = event.scores.argmax(1).astype(np.int64)
        answer = CascadeAnswer(classes, np.full(len(sure), self.number, np.int64), ~sure)
        self.counts.answered += int(sure.sum())
        if sure.all() or event.features is None:
            return self._answered(event.request, answer)
        features = event.features.chosen(~sure)
        self.counts.escalated += int((~sure).sum())
        self.counts.sent_bytes += features.nbytes
        self._waiting[event.request] = _Escalated(answer, event.scores.shape[1], now + self.timeout_s)
        return [Escalate(event.request, features), *self._wake()]

    def _from_above(self, event: EscalationAnswered) -> list[CascadeEffect]:
        held = self._waiting.get(event.request)
        if held is None:
            return []
        rest, above = held.answer.degraded, event.answer
        if any(len(part) != rest.sum() for part in above) or not (
            _within(above.exits, self.number + 1, self.levels) and _within(above.classes, 0, held.classes)
        ):
            return self._degraded(event.request)  # nonsense is as little of an answer as none
        classes, exits, degraded = held.answer
        merged = CascadeAnswer(classes.copy(), exits.copy(), degraded.copy())
        for mine, theirs in zip(merged, above, strict=True):
            mine[rest] = theirs
        return self._answered(event.request, merged)

    def _degraded(self, request: str) -> list[CascadeEffect]:
        held = self._waiting.get(request)
        if held is None:
            return []
        self.counts.degraded += int(held.answer.degraded.sum())
        return self._answered(request, held.answer)

    def _timed_out(self, now: float) -> list[CascadeEffect]:
        due = [name for name, held in self._waiting.items() if held is not None and held.deadline <= now]
        return [effect for name in due for effect in self._degraded(name)] + self._wake()

    def _answered(self, request: str, answer: CascadeAnswer) -> list[CascadeEffect]:
        del self._waiting[request]
        return [Answered(request, answer)]

    def _refused(self, request: str, error: ShoalError) -> list[CascadeEffect]:
        if self._waiting.pop(request, error) is error:
            return []
        return [RequestRefused(request, error)]

    def _wake(self) -> list[CascadeEffect]:
        deadlines = [held.deadline for held in self._waiting.values() if held is not None]
        return [Wake(min(deadlines))] if deadlines else []


def _within(values: Counts, least: int, end: int) -> bool:
    """Return whether all values are at least `least` and below `end`."""
    return bool(((values >= least) & (values < end)).all())
