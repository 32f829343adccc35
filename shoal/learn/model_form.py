"""The layout of a learner's model before there is a job: names, types and shapes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import structlog

from shoal.core.algorithm.learner import Learner, fresh_weights, present_weights
from shoal.core.model.tree import Layout

SHOWN_BYTES_MAX = 64 * 1024
"""Maximum size of the names and shapes that a node tells, as JSON; a larger model tells their number and a digest."""

_UNKNOWN = object()


def layout_of(learner: Learner) -> Layout | None:
    """Return the layout of the learner's model: that of fresh weights if it has none yet; None if it makes none.

    A learner that trains any model declares `layout = None`. Raises nothing.
    """
    known = getattr(learner, "layout", _UNKNOWN)
    if known is None or isinstance(known, Layout):
        return known
    for weights in (present_weights, lambda learner: fresh_weights(learner, 0)):
        try:
            layout = weights(learner).layout
        except Exception as error:  # noqa: BLE001 - a learner need not have a model before it is given one
            structlog.get_logger("shoal.learn").debug("the learner shows no model yet", why=repr(error))
            continue
        if layout.leaves:
            return layout
    return None


def describe_layout(layout: Layout | None) -> dict[str, Any]:
    """Return the layout as JSON values: `model` (digest, tensors, elements) and `layout` (type and shape by name); {}
    if unknown."""
    if layout is None:
        return {}
    found: dict[str, Any] = {"model": asdict(layout.form)}
    if len(json.dumps(layout.shown)) <= SHOWN_BYTES_MAX:
        found["layout"] = layout.shown
    return found
