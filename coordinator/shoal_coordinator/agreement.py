"""How near the models of a job's peers are to each other, and whether anything was lost on the way: estimates, from
what each has told last. w_i and x_i are a peer's weight and model, S and B its `sketch` and `books` (`peer_views`).

    consensus   sqrt(sum w_i |x_i - m|^2 / sum w_i) / |m|,   m = sum w_i x_i / sum w_i     how far apart they are
    residual    |sum S_i - sum B_i| / |sum B_i|                                            what gossip itself has moved
    coverage    of all local rounds that any peer has heard of: how many a model holds, in the mean over peers

With 32 random projections in place of models, a norm is off by an eighth, typically, and so are ratios of norms. Words
are told at different moments: while models are being mixed, what one peer has given and the other has not told yet
shows in the residual. When exchanges rest it is rounding alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from shoal.core.metric import EVAL_WEIGHT
from shoal_coordinator.peer_views import Peering

WITHOUT_SERVER = ("away", "handover")

EXAMPLES_MAX = 2.0**53
"""What a peer says beyond that has no say."""

Floats = npt.NDArray[np.float64]


def consensus(words: Iterable[Peering]) -> float | None:
    """The relative distance of models from their mean; None where fewer than two are known, or the mean is zero."""
    known = [word for word in words if word.sketch and word.weight > 0]
    if len(known) < 2:
        return None
    weights = np.array([word.weight for word in known])
    models: Floats = np.array([word.sketch for word in known]) / weights[:, None]
    mean = weights @ models / weights.sum()
    spread = float(weights @ ((models - mean) ** 2).sum(axis=1) / weights.sum())
    return _ratio(spread**0.5, float(np.linalg.norm(mean)))


def residual(words: Iterable[Peering]) -> float | None:
    """How far the sum of weighted models is from what base and learning make of it; None where nothing is known."""
    known = [word for word in words if word.sketch and word.books]
    if not known:
        return None
    sketches, books = (np.array(rows).sum(axis=0) for rows in zip(*((w.sketch, w.books) for w in known), strict=True))
    return _ratio(float(np.linalg.norm(sketches - books)), float(np.linalg.norm(books)))


def coverage(words: Mapping[str, Peering]) -> dict[str, float]:
    """By node, the share of all local rounds that its model holds; nothing while there is none."""
    heard = _heard(words)
    total = sum(heard.values())
    if not total:
        return {}
    return {
        node: sum(min(_seen(node, word).get(one, 0), heard[one]) for one in heard) / total
        for node, word in words.items()
    }


def _heard(words: Mapping[str, Peering]) -> dict[str, int]:
    """By node, the latest of its local rounds that anybody has told of."""
    seen = [_seen(node, word) for node, word in words.items()]
    return {one: max(row.get(one, 0) for row in seen) for one in sorted({one for row in seen for one in row})}


def _seen(node: str, word: Peering) -> dict[str, int]:
    return {**word.seen, node: max(word.round, word.seen.get(node, 0))}


def measured(words: Iterable[Peering], what: str) -> float | None:
    """Return the mean of "eval/…" over peers, weighted by their examples; of a loss also what they met in training.

    None where nobody has told it, or one of them is not finite: its own row says so.
    """
    names = [f"eval/{what}", f"train/{what}"]
    told = [
        (word.metrics[name], _examples(word))
        for word in words
        if (name := next((name for name in names if name in word.metrics), None)) is not None
    ]
    values = [value for value, _ in told if isinstance(value, int | float)]
    total = sum(weight for _, weight in told)
    if not told or len(values) < len(told) or not total > 0:
        return None
    return sum(value * weight for value, (_, weight) in zip(values, told, strict=True)) / total


def _examples(word: Peering) -> float:
    found = word.metrics.get(EVAL_WEIGHT)
    return found if isinstance(found, int | float) and 0 < found <= EXAMPLES_MAX else min(word.weight, EXAMPLES_MAX)


def mean(values: Sequence[float]) -> float | None:
    """The mean, if there is one."""
    return sum(values) / len(values) if values else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
