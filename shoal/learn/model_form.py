"""What a learner's model looks like, before there is a job: names, types and shapes, whatever its numbers."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import structlog

from shoal.core.learner import Learner
from shoal.core.tree import Layout

SHOWN_BYTES_MAX = 64 * 1024
"""Of names and shapes that are told, as JSON; of a model with more tensors only their number and a digest are."""


def layout_of(learner: Learner) -> Layout | None:
    """The layout of its model; None: it does not tell before it has one. Raises nothing."""
    known = getattr(learner, "layout", None)
    if isinstance(known, Layout):
        return known
    try:
        layout = learner.model().layout
    except Exception as error:  # noqa: BLE001 - a learner need not have a model before it is given one
        structlog.get_logger("shoal.learn").debug("the learner shows no model yet", why=repr(error))
        return None
    return layout if layout.leaves else None


def looks_of(learner: Learner) -> dict[str, Any]:
    """The same as JSON values: `model` (digest, tensors, elements), `layout` (type and shape by name); {}: unknown."""
    layout = layout_of(learner)
    if layout is None:
        return {}
    found: dict[str, Any] = {"model": asdict(layout.form)}
    if len(json.dumps(layout.shown)) <= SHOWN_BYTES_MAX:
        found["layout"] = layout.shown
    return found
