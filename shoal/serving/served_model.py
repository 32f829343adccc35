"""The model that a server answers from, and the conversion of JSON values to arrays and back."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from shoal.core.algorithm.learner import Learner
from shoal.core.errors import InvalidJob, InvalidPayload, LearnerFailed
from shoal.core.model.tree import Array, Tree, digest
from shoal.learn.loading import load_trained

Arrays = Array | Mapping[str, Array]
"""One array, or arrays by name."""

DTYPES = ("float32", "float64", "int64", "bool")
HINT = 'send {"inputs": [[1.0, 2.0], [3.0, 4.0]]}: a row for each example'


@runtime_checkable
class Predictor(Protocol):
    """A learner that predicts, beside what `Learner` asks for."""

    def predict(self, inputs: Arrays) -> Arrays:
        """Return the predictions of the loaded model for these examples."""
        ...


@dataclass(frozen=True)
class ServedVersion:
    """The version of a job's model. `job`: the path of a file that belongs to no job."""

    job: str
    version: int | None = None


class ServedModel:
    """A learner with the model that it answers from. Several threads may use it: they take turns.

    Raises `InvalidJob` for a learner without `predict`.
    """

    def __init__(self, learner: Learner) -> None:
        if not isinstance(learner, Predictor):
            text = f"a {type(learner).__name__} does not predict"
            raise InvalidJob(
                text, code="learner.predict", hint="give it a method predict(inputs) that returns an array"
            )
        self._learner, self._predict, self._lock = learner, learner.predict, threading.Lock()
        self.version: ServedVersion | None = None
        """The version that is loaded; None before the first."""
        self.digest = ""
        """SHA-256 of the model that is loaded."""

    def load(self, model: Tree, version: ServedVersion) -> None:
        """Answer from this model from now on. Raises `InvalidPayload` for one that does not fit; that before stays."""
        model_digest = digest(model)  # before the turn, because requests wait in it
        with self._lock:
            load_trained(self._learner, model)
            self.version, self.digest = version, model_digest

    @contextmanager
    def turn(self) -> Iterator[Learner]:
        """Yield the learner. Meanwhile the model stays, and other threads wait."""
        with self._lock:
            yield self._learner

    def answer(self, inputs: Any, dtype: str = "float32") -> tuple[Any, ServedVersion]:
        """Return the outputs for JSON values, as JSON values, and the version that computed them.

        `dtype`: of the arrays that the learner gets, one of `DTYPES`. Raises `InvalidPayload` for another one and for
        values that are not arrays of numbers, `LearnerFailed` for arrays that the model does not take and for outputs
        that are not finite.
        """
        arrays = arrays_of(inputs, dtype)
        with self.turn():
            assert self.version is not None
            outputs, version = self._predict(arrays), self.version
        return _json_of(outputs), version


def arrays_of(inputs: Any, dtype: str) -> Arrays:
    """Return JSON values as arrays. Raises `InvalidPayload`."""
    if dtype not in DTYPES:
        raise InvalidPayload("dtype is unknown", code="predict.dtype", hint=f"use one of {', '.join(DTYPES)}")
    if isinstance(inputs, dict) and inputs:
        return {name: _array_of(value, f"inputs.{name}", dtype) for name, value in inputs.items()}
    return _array_of(inputs, "inputs", dtype)


def _array_of(value: Any, name: str, dtype: str) -> Array:
    try:
        found = np.asarray(value if isinstance(value, list) else None)
    except ValueError:  # lists of unequal lengths
        found = np.asarray(None)
    if found.dtype.kind not in "biuf" or found.size == 0:
        raise InvalidPayload(f"{name} is not an array of numbers", code="predict.inputs", hint=HINT)
    return found.astype(dtype)


def _json_of(outputs: Arrays) -> Any:
    if isinstance(outputs, Mapping):
        return {name: _json_of(one) for name, one in outputs.items()}
    if not np.isfinite(outputs).all():
        raise LearnerFailed("the model's outputs are not finite", code="predict.not-finite", hint="check the inputs")
    return outputs.tolist()
