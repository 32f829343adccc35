"""Thresholds on entropies: the decision of a level, and the outcome on examples whose answers are known.

Exit k answers an example if its entropy is at most threshold k; the last exit answers everything that reaches it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.core.errors import InvalidJob
from shoal.core.exits.entropy import Floats, normalized_entropy

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]


class ExitOutcome(NamedTuple):
    """The result of thresholds on examples."""

    answered: tuple[int, ...]
    """Examples that each exit answered."""
    accuracies: tuple[float | None, ...]
    """Accuracy of each exit on those; None if there were none."""
    accuracy: float
    """Accuracy of all answers."""

    @property
    def fractions(self) -> tuple[float, ...]:
        """The fraction of the examples that each exit answered."""
        return tuple(count / sum(self.answered) for count in self.answered)


def checked_thresholds(values: Sequence[float], exits: int) -> tuple[float, ...]:
    """Return thresholds for all exits but the last. Raises `InvalidJob` for another number, or one outside [0, 1]."""
    if len(values) != exits - 1:
        hint = "give one for each exit but the last, which always answers"
        raise InvalidJob(f"{len(values)} thresholds for {exits} exits", code="exits.thresholds", hint=hint)
    for number, value in enumerate(values, 1):
        if not 0 <= value <= 1:
            hint = "0: answer only if certain; 1: answer always"
            raise InvalidJob(
                f"threshold {number} is {value}, but must be in [0, 1]", code="exits.thresholds", hint=hint
            )
    return tuple(float(value) for value in values)


def decide_each(scores: npt.ArrayLike, number: int, thresholds: Sequence[float]) -> Flags:
    """Return which examples exit `number`, counted from 0, answers itself, by its scores [examples, classes].

    Raises `InvalidPayload` for scores that are not finite.
    """
    limits = (*thresholds, np.inf)
    return np.asarray(normalized_entropy(scores) <= limits[number])


def answering_exits(entropies: Floats, thresholds: Sequence[float]) -> Numbers:
    """Return the number of the exit that answers each example. `entropies` is [exits, examples]."""
    sure = entropies[:-1] <= np.asarray(thresholds, np.float64)[:, None]
    found: Numbers = np.vstack([sure, np.ones(entropies.shape[1], np.bool_)]).argmax(0)
    return found


@dataclass(frozen=True)
class ExitRecord:
    """Each exit's entropy and correctness for the same examples: two arrays [exits, examples]."""

    entropies: Floats
    correct: Flags

    def __post_init__(self) -> None:
        shape = self.entropies.shape
        if len(shape) != 2 or 0 in shape or self.correct.shape != shape:
            text = f"entropies of shape {shape} and correctness of shape {self.correct.shape}"
            raise InvalidJob(text, code="exits.record", hint="give [exits, examples] for both, with an example")
        if not bool(((self.entropies >= 0) & (self.entropies <= 1)).all()):
            raise InvalidJob("an entropy is outside [0, 1]", code="exits.record", hint="use normalized_entropy")

    @classmethod
    def of(cls, scores: npt.ArrayLike, labels: npt.ArrayLike) -> ExitRecord:
        """Return the record of scores [exits, examples, classes] before the softmax, and labels [examples]."""
        found = np.asarray(scores)
        return cls(normalized_entropy(found), found.argmax(-1) == np.asarray(labels))

    @property
    def exit_accuracies(self) -> tuple[float, ...]:
        """The accuracy that each exit would have if it answered everything."""
        return tuple(float(one) for one in self.correct.mean(1))

    def outcome(self, thresholds: Sequence[float]) -> ExitOutcome:
        """Return the result of thresholds. Raises `InvalidJob` if they do not fit."""
        exits = len(self.entropies)
        chosen = answering_exits(self.entropies, checked_thresholds(thresholds, exits))
        right = np.take_along_axis(self.correct, chosen[None], 0)[0]
        groups = [right[chosen == number] for number in range(exits)]
        return ExitOutcome(
            tuple(len(group) for group in groups),
            tuple(float(group.mean()) if len(group) else None for group in groups),
            float(right.mean()),
        )
