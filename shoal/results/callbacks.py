"""Callbacks of a simulation: `shoal.simulate(job, learners, callbacks=[…])`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.core.errors import ShoalError
from shoal.core.protocol.message import Metrics
from shoal.jobs.spec import is_checkpoint

if TYPE_CHECKING:
    from shoal.core.model.tree import Tree


class StopSimulation(ShoalError):
    """The simulation has done enough. Raise it in a callback with the reason, for people."""

    default_code = "job.stopped"


class RoundCallback:
    """Base class of callbacks: it ignores everything. Override the events of interest.

    `StopSimulation` ends the simulation and keeps its versions; any other error is raised. Save models in `round_ended`
    by `shoal.model_file.save_model`.
    """

    def round_started(self, number: int, model: Tree) -> None:
        """Note that the round begins that makes version `number` from this model."""

    def round_ended(self, number: int, model: Tree, metrics: Metrics) -> None:
        """Note that version `number` is made. `metrics`: "train/…" of its round, "eval/…" of the model that the round
        began with, "held_out/…" of this model."""


class Checkpoints(RoundCallback):
    """A callback that keeps the model of every `every`-th version; 0: none."""

    def __init__(self, every: int) -> None:
        self._every = every
        self.models: dict[int, Tree] = {}

    def round_ended(self, number: int, model: Tree, metrics: Metrics) -> None:
        """Keep the model of a checkpoint."""
        if is_checkpoint(number, self._every):
            self.models[number] = model
