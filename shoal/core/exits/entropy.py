"""The normalized entropy of an exit's scores.

Teerapittayanon, McDanel, Kung: "Distributed Deep Neural Networks over the Cloud, the Edge and End Devices", ICDCS 2017,
section III.D:  eta(x) = -sum_i x_i log x_i / log |C|,  x = softmax(scores): 0 is certain, 1 is uniform.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal.core.errors import InvalidPayload

Floats = npt.NDArray[np.float64]

LEAST = -1000.0
"""A score that far below the greatest has probability 0 in float64."""


def normalized_entropy(scores: npt.ArrayLike) -> Floats:
    """Return the entropy of the classes on the last axis, in [0, 1]. `scores` are those before the softmax.

    Raises `InvalidPayload` for scores that are not finite, and for fewer than two classes.
    """
    found = np.asarray(scores, np.float64)
    if found.ndim == 0 or found.shape[-1] < 2:
        raise InvalidPayload("scores of fewer than two classes have no entropy", code="payload.scores")
    if not np.isfinite(found).all():
        raise InvalidPayload("an exit's scores are not finite", code="payload.scores", hint="check the trained model")
    with np.errstate(over="ignore"):
        relative = np.maximum(found - found.max(-1, keepdims=True), LEAST)
    powers = np.exp(relative)
    total = powers.sum(-1)
    entropy = np.log(total) - (powers * relative).sum(-1) / total
    return np.asarray(np.clip(entropy / np.log(found.shape[-1]), 0.0, 1.0))
