"""The record of a simulated job, as it is made: what a job's database would hold, and the progress that is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.algorithm.learner import Learner, check_stages, enter_stage
from shoal.core.errors import InvalidJob, LearnerFailed, ShoalError
from shoal.core.model.tree import Slots, Tree
from shoal.core.protocol.machine import Effect, Event, JobEvent, Measured, ModelVersion, ReportRejected, Save, Work
from shoal.core.protocol.message import BlobRef, Message, Metrics, Report
from shoal.core.protocol.metrics import stage_of
from shoal.core.server.hub import Hub
from shoal.learn.loading import required_learner, with_device
from shoal.learn.user_errors import IN_THE_LOG, user_code
from shoal.progress import Progress, WorkRate
from shoal.results.callbacks import RoundCallback, StopSimulation
from shoal.results.result import WARNINGS, Fidelity, Result, VersionResult
from shoal.sim.network.observer import Direction, Observer
from shoal.sim.network.traffic_count import TrafficCount
from shoal.sim.tasks.simulated_tasks import SimulatedTasks
from shoal.wire.head_size import head_size

QUIET_S = 1000.0
"""Virtual seconds without a version after which a job is given up whose nodes train without end: that many checks of
each node, by default 10,000 mini-batches."""

CHAINED = "fix the learner: the traceback of its first error is above this one, or comes with shoal --verbose"


class HeldOutMetrics:
    """The metrics of versions on data that no node has: of each `every`-th version, and of the last one.

    Raises `InvalidJob` for something else than a learner, one without the job's stages, and an interval below 1.
    """

    def __init__(self, learner: Learner | None, every: int = 1, device: str = "", stages: int = 0) -> None:
        if learner is not None:
            check_stages(with_device(required_learner(learner, "held_out"), device=device), stages)
        if every < 1:
            raise InvalidJob(f"evaluate_every is {every}", code="job.held-out", hint="1 or more")
        self._learner, self._every = learner, every
        self._found: dict[int, Metrics] = {}

    def close(self, number: int, model: Tree, stage: int, *, last: bool = False) -> None:
        """Evaluate a version, if its turn has come."""
        if self._learner is None or number in self._found or not (last or number % self._every == 0):
            return
        enter_stage(self._learner, stage)
        self._learner.load(model)
        metrics = self._learner.evaluate()
        if not metrics and not self._found:
            hint = "give the data to evaluate on as test, as in TorchLearner(model, train, test)"
            raise InvalidJob("held_out measures nothing: it has no test data", code="job.held-out", hint=hint)
        self._found[number] = {name.replace("eval/", "held_out/", 1): value for name, value in metrics.items()}

    def of(self, number: int) -> Metrics:
        """Return a version's metrics, empty where it was not evaluated."""
        return self._found.get(number, {})


class SimulationProgress:
    """The progress of a job, and how it is shown: by versions or, where those are irregular, by what nodes have
    trained."""

    def __init__(self, display: Progress | None, versions: int) -> None:
        self._display, self._versions, self._share, self.rate = display, versions, 0.0, WorkRate()
        self._trained: dict[str, float] = {}

    @property
    def trained(self) -> float:
        """Return the sum of what nodes have trained."""
        return sum(self._trained.values())

    def fed(self, event: Event, hub: Hub, text: str) -> None:
        """Show the hub's progress after an event."""
        if isinstance(event, Report):
            self._trained[event.node] = hub.settings.algorithm.training_progress(event.metrics) or 0.0
        if self._display is not None:
            self._share = self._share_of(hub)
            waiting = hub.progress.waiting_for if hub.state.is_idle else ""
            self.show(f"waits: {waiting}" if waiting else text)

    def show(self, text: str) -> None:
        """Show what happens, beside the progress and its rate."""
        if self._display is not None:
            rate = self.rate.text(self._share)
            self._display(self._share, f"{rate}; {text}" if rate else text)

    def _share_of(self, hub: Hub) -> float:
        if hub.settings.schedule.relative_to_reference:
            return self.trained / max(1, len(self._trained))
        asked, reports = len(hub.state.round.asked), len(hub.state.round.reports)
        within = reports / max(1, asked) if hub.progress.phase == "running" else 0.0
        return min(1.0, (hub.progress.version + within) / self._versions)


class SimulationRecorder(Observer):
    """An observer that records what a job's database would hold."""

    def __init__(
        self,
        name: str,
        *,
        progress: SimulationProgress,
        held_out: HeldOutMetrics,
        tasks: SimulatedTasks | None = None,
        callbacks: Sequence[RoundCallback] = (),
    ) -> None:
        self._name, self._held_out, self.progress = name, held_out, progress
        self._tasks, self._callbacks, self._fed = tasks, callbacks, 0
        self._slots: Slots = {}
        self._made: dict[int, VersionResult] = {}
        self._metrics: dict[int, Metrics] = {}
        self._events: list[JobEvent] = []
        self._traffic = TrafficCount()
        self._held: dict[str, str] = {}

    @property
    def _failed(self) -> ShoalError | None:
        return self._tasks.failed if self._tasks is not None else None

    @property
    def cause(self) -> BaseException | None:
        """The error that the user's code raised first, or else that failure itself."""
        return (self._failed.__cause__ or self._failed) if self._failed is not None else None

    def fed(self, index: int, event: Event, now: float, effects: Sequence[Effect], hub: Hub) -> None:
        """Record effects at their first occurrence."""
        if index < self._fed:
            return
        self._fed = index + 1
        for effect in effects:
            if isinstance(effect, JobEvent):
                self._events.append(effect)
            elif isinstance(effect, Measured):
                self._metrics[effect.number] = effect.metrics
            elif isinstance(effect, Save) and isinstance(effect.what, ModelVersion):
                self._close(effect.what, hub.store.slots)
                self._call_back(effect.what.number, is_first=len(self._made) == 1, goes_on=not hub.rounds.is_last)
        self.progress.fed(event, hub, self._events[-1].text if self._events else "")

    @property
    def has_versions(self) -> bool:
        """Return whether there is a model."""
        return bool(self._made)

    def advance(self, hub: Hub) -> tuple[int, float]:
        """Return what grows as long as the job goes on: versions, and what nodes have trained."""
        return hub.progress.version, self.progress.trained

    def _close(self, version: ModelVersion, slots: Slots) -> None:
        self._held_out.close(version.number, tree_slot(slots, "model"), stage_of(version.numbers))
        nodes = self._traffic.close_version()
        self._made[version.number] = VersionResult(
            version.number,
            version.why,
            version.opened_s,
            version.closed_s,
            len(version.reports),
            {},
            sum(traffic.up for traffic in nodes.values()),
            sum(traffic.down for traffic in nodes.values()),
            nodes,
        )
        self._slots = slots

    def _call_back(self, number: int, *, is_first: bool, goes_on: bool) -> None:
        """Tell the callbacks that a version is made, and that the next round begins, unless one of them ends it all."""
        model, metrics = tree_slot(self._slots, "model"), self._metrics.get(number - 1, {}) | self._held_out.of(number)
        if not is_first:
            self._call_each(lambda one: one.round_ended(number, model, metrics))
        if goes_on:
            self._call_each(lambda one: one.round_started(number + 1, model))

    def _call_each(self, call: Callable[[RoundCallback], None]) -> None:
        """Call all callbacks. Raises `StopSimulation` if one of them does."""
        stop: StopSimulation | None = None
        for one in self._callbacks:
            try:
                with user_code(f"a callback ({type(one).__name__})"):
                    call(one)
            except StopSimulation as error:
                stop = error
        if stop is not None:
            self._events.append(JobEvent("state", f"stopped by a callback: {stop.message}", max(self._made)))
            raise stop

    def message_sent(self, node: str, direction: Direction, message: Message | ReportRejected) -> None:
        """Count a message, and the blob of a report."""
        if not isinstance(message, ReportRejected):
            blob = message.blob if isinstance(message, Report) else None
            self._traffic.add(node, direction, head_size(self._name, message) + (blob.nbytes if blob else 0))

    def started(self, node: str, work: Work) -> None:
        """Count the blobs that a node fetches for a task."""
        self.progress.rate.add()
        if self._tasks is not None:
            self._tasks.begin(node, work)
        for ref in (work.task.blob, work.task.reference):
            if ref is not None and ref.digest != self._held.get(node):
                self._traffic.add(node, "down", ref.nbytes)

    def holds(self, node: str, base: BlobRef | None) -> None:
        """Record the reference model that a node keeps from one task to the next."""
        self._held[node] = base.digest if base is not None else ""

    def _measured(self, number: int) -> Metrics:
        return self._metrics.get(number, {}) | self._held_out.of(number)

    def given_up(self, hub: Hub) -> InvalidJob | LearnerFailed:
        """Return the error that explains why a job does not go on."""
        failures = [event.text for event in self._events if event.kind in WARNINGS]
        if self._failed is not None:
            hint = CHAINED if self._failed.hint in ("", IN_THE_LOG) else self._failed.hint
            since = [text for text in (hub.progress.waiting_for, *failures[-1:]) if text]
            node = self._tasks.failed_node if self._tasks is not None else ""
            return LearnerFailed(f"{node}: {self._failed.message} (then: {'; '.join(since)})", hint=hint)
        if failures:
            return LearnerFailed(failures[-1], hint=failures[0])
        why, hint = hub.progress.waiting_for or "too few learners", "check min_nodes and quorum"
        if hub.settings.has_endless_training and hub.roster.busy_count():
            why = f"the nodes train without end, and no version has been made for {QUIET_S:,.0f} checks ({why})"
            hint = "set local_steps or epochs in [algorithm], or change [schedule] so that it averages more often"
        elif "not asked" in why:
            hint += ", and the tags and hours of the nodes"
        return InvalidJob(f"the job does not go on: {why}", code="job.stuck", hint=hint)

    def result(self, hub: Hub, state: str, fidelity: Fidelity) -> Result:
        """Return the result, with the last version evaluated."""
        last, model = max(self._made), tree_slot(self._slots, "model")
        self._held_out.close(last, model, hub.progress.stage, last=True)
        return Result(
            name=self._name,
            state=state,
            versions=tuple(replace(one, metrics=self._measured(n)) for n, one in sorted(self._made.items())),
            model=model,
            metrics=self._measured(last),
            events=tuple(self._events),
            up_bytes=self._traffic.total("up"),
            down_bytes=self._traffic.total("down"),
            uncounted=tuple(hub.eligibility.never_counted()[0]),
            fidelity=fidelity,
            training=self._tasks.summary if self._tasks is not None else "",
        )
