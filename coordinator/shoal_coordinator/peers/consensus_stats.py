"""Consensus statistics: the distance of peers' models, and whether anything was lost, estimated from their reports.

w_i and x_i are a peer's weight and model, S and B its `model_projection` and `expected_projection` (`schemas.peers`).

consensus   sqrt(sum w_i |x_i - m|^2 / sum w_i) / |m|,   m = sum w_i x_i / sum w_i     distance of models
residual    |sum S_i - sum B_i| / |sum B_i|                                            change by gossip itself
coverage    the share of all known local rounds that a model contains, as a mean over peers

With 32 random projections in place of models, a norm is off by an eighth, typically, and so are ratios of norms.
Reports are of different moments: while models are being mixed, what one peer has given and the other has not reported
yet shows in the residual. Between exchanges it is rounding alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from shoal.core.protocol.metrics import EVAL_WEIGHT
from shoal_coordinator.schemas.peers import PeerStatusReport

WITHOUT_SERVER = ("gossip", "returning")

EXAMPLES_MAX = 2.0**53
"""Greatest number of examples that a peer may claim here."""

Floats = npt.NDArray[np.float64]


def consensus(statuses: Iterable[PeerStatusReport]) -> float | None:
    """Return the relative distance of models from their mean; None if fewer than two are known, or the mean is zero."""
    known = [status for status in statuses if status.model_projection and status.weight > 0]
    if len(known) < 2:
        return None
    weights = np.array([status.weight for status in known])
    models: Floats = np.array([status.model_projection for status in known]) / weights[:, None]
    mean = weights @ models / weights.sum()
    spread = float(weights @ ((models - mean) ** 2).sum(axis=1) / weights.sum())
    return _ratio(spread**0.5, float(np.linalg.norm(mean)))


def residual(statuses: Iterable[PeerStatusReport]) -> float | None:
    """Return the distance of the sum of weighted models from base and learning; None if nothing is known."""
    known = [status for status in statuses if status.model_projection and status.expected_projection]
    if not known:
        return None
    actual, expected = (
        np.array(rows).sum(axis=0)
        for rows in zip(*((w.model_projection, w.expected_projection) for w in known), strict=True)
    )
    return _ratio(float(np.linalg.norm(actual - expected)), float(np.linalg.norm(expected)))


def coverage(statuses: Mapping[str, PeerStatusReport]) -> dict[str, float]:
    """Return by node the share of all local rounds that its model contains; {} while there are none."""
    latest = _latest_rounds(statuses)
    total = sum(latest.values())
    if not total:
        return {}
    return {
        node: sum(min(_rounds_by_peer(node, status).get(one, 0), latest[one]) for one in latest) / total
        for node, status in statuses.items()
    }


def _latest_rounds(statuses: Mapping[str, PeerStatusReport]) -> dict[str, int]:
    """Return by node the latest of its local rounds that any peer has reported."""
    rows = [_rounds_by_peer(node, status) for node, status in statuses.items()]
    return {one: max(row.get(one, 0) for row in rows) for one in sorted({one for row in rows for one in row})}


def _rounds_by_peer(node: str, status: PeerStatusReport) -> dict[str, int]:
    return {**status.rounds_by_peer, node: max(status.local_rounds, status.rounds_by_peer.get(node, 0))}


def mean_metric(statuses: Iterable[PeerStatusReport], what: str) -> float | None:
    """Return the mean of "eval/…" over peers, weighted by their examples; for a loss also their training loss.

    None if no peer has reported it, or one of them is not finite: its own row shows that.
    """
    names = [f"eval/{what}", f"train/{what}"]
    pairs = [
        (status.metrics[name], _examples(status))
        for status in statuses
        if (name := next((name for name in names if name in status.metrics), None)) is not None
    ]
    values = [value for value, _ in pairs if isinstance(value, int | float)]
    total = sum(weight for _, weight in pairs)
    if not pairs or len(values) < len(pairs) or not total > 0:
        return None
    return sum(value * weight for value, (_, weight) in zip(values, pairs, strict=True)) / total


def _examples(status: PeerStatusReport) -> float:
    found = status.metrics.get(EVAL_WEIGHT)
    return found if isinstance(found, int | float) and 0 < found <= EXAMPLES_MAX else min(status.weight, EXAMPLES_MAX)


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, if there is one."""
    return sum(values) / len(values) if values else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
