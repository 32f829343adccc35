"""The process of a node in one split job: `shoal join --split-job JOB`.

    start     enrol or use the saved credential, read the job, cut the learner's model
    serve     send a message until it is answered; compute what follows from the answer; store it; send the next
    leave     at any time: a later process continues at the same batch

The state lies in FOLDER/COORDINATOR/split/JOB. One thread computes; each request has a thread of its own.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import structlog

from shoal.core.algorithm.learner import Learner
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.protocol.machine import HUB, Timer
from shoal.core.protocol.split_message import SplitMessage, SplitPoll
from shoal.core.split.part_state import DONE
from shoal.core.split.split_node import SplitNode
from shoal.jobs.split_spec import parse_split_job
from shoal.learn.compute_threads import compute_threads, set_threads
from shoal.learn.loading import load_learner
from shoal.learn.model_form import layout_of
from shoal.learn.split.split_job import CutLearner, check_form
from shoal.learn.split.vertical_job import Party, VerticalJob
from shoal.runtime.durable_files import CrashPoint, no_crash
from shoal.runtime.http.coordinator_url import parse
from shoal.runtime.http.retry import call_with_retries
from shoal.runtime.split.split_pump import SplitPump, Told
from shoal.runtime.threads import SerialExecutor
from shoal.wire import split_codec
from shoal.wire.split_codec import SplitFrame
from shoal_edge_client.identity import StateFolder
from shoal_edge_client.session import CoordinatorSession
from shoal_edge_client.settings import EdgeSettings
from shoal_edge_client.training.trainer_backend import require_learner

EXECUTOR_S = 2.0
"""Seconds that a computation may take to end, before the process ends without it."""


class SplitAgent:
    """The process of a node in a split job. `learner`: an object, or None to load the one that the settings name."""

    def __init__(self, settings: EdgeSettings, learner: Learner | None = None, *, at: CrashPoint = no_crash) -> None:
        self._settings, self._learner, self._at = settings, learner, at
        self.executor = SerialExecutor("shoal-training")
        self.state = StateFolder(settings.folder, parse(settings.url), at)
        self.session = CoordinatorSession(settings, self.state)
        self._leaving = asyncio.Event()
        self._executor_s = EXECUTOR_S

    async def run(self) -> bool:
        """Take part until told to leave (False), or until the job has ended (True). Raises `ShoalError`."""
        with self.state:
            serving = asyncio.create_task(self._serve())
            leaving = asyncio.create_task(self._leaving.wait())
            try:
                await asyncio.wait({serving, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if serving.done():
                    await serving
                return serving.done()
            finally:
                for task in (serving, leaving):
                    task.cancel()
                await asyncio.wait({serving})
                self.session.close()
                await self.executor.wait_idle(self._executor_s)
                self.executor.close()

    def leave(self, *, train_s: float = 0.0) -> None:
        """Start to shut down; `train_s` changes nothing, because all work is stored. Call it in the event loop."""
        self._leaving.set()

    def abandon(self) -> None:
        """Stop waiting for running work; the caller is about to cancel `run`."""
        self._executor_s = 0.0

    @property
    def is_leaving(self) -> bool:
        """Return whether the shutdown has begun."""
        return self._leaving.is_set()

    async def _serve(self) -> None:
        learner = await self.executor.run(self._loaded)
        welcome, _ = await self.session.connect()
        structlog.contextvars.bind_contextvars(node=welcome.name)
        wait_s = min(self._settings.poll_wait_s, welcome.wait_s_max)
        found = await call_with_retries(
            self.session.backoff, partial(self.session.client.split_job, self._settings.split_job)
        )
        work = await self.executor.run(partial(SplitWork, self._settings, self.state, welcome.name, self._at))
        told = await self.executor.run(partial(work.start, learner, found))
        self.session.log.info("takes part", job=self._settings.split_job, batches=work.pump.machine.batches)
        while not work.pump.machine.ended:
            message = told.get(HUB)
            if message is None:
                told = await self.executor.run(partial(work.pump.feed, Timer()))
                continue
            send = await self.executor.run(partial(work.frame, message))
            call = partial(
                self.session.polls.split,
                self._settings.split_job,
                send,
                work.answer_bytes_max,
                wait_s,
            )
            answer = await call_with_retries(self.session.backoff, call)
            if answer is not None:
                told = await self.executor.run(partial(work.take, answer))
            elif not isinstance(message, SplitPoll):
                await asyncio.sleep(work.pump.machine.retry_s)
        if work.pump.machine.ended != DONE:
            raise LearnerFailed(f"the job has ended here: {work.pump.machine.ended}", code="split.failed")

    def _loaded(self) -> Learner:
        """Return the learner. Raises `ShoalError` for one that cannot be loaded."""
        require_learner(self._settings, self._learner)
        return self._learner or load_learner(self._settings.learner, self._settings.options)


class SplitWork:
    """The work of a node in a split job. One thread makes all calls."""

    def __init__(self, settings: EdgeSettings, state: StateFolder, node: str, at: CrashPoint) -> None:
        self._settings, self._node = settings, node
        self.pump = SplitPump[SplitNode](state.folder / "split" / settings.split_job, at)
        self.answer_bytes_max = 0

    def start(self, learner: Learner, found: dict[str, Any]) -> Told:
        """Cut the learner's model and start the machine. `found`: the coordinator's description of the job.

        Raises `InvalidJob` for a learner that does not fit the job.
        """
        cut = self._cut(learner, found)
        set_threads(compute_threads(self._settings.threads, layout_of(learner)))
        part = self.pump.blobs.put(cut.node_part().save())
        self.answer_bytes_max = split_codec.payload_bytes_max(cut.plan, "answer", part)
        if isinstance(cut, Party):
            self.answer_bytes_max = max(self.answer_bytes_max, split_codec.ids_bytes_max(cut.ids_max))
        about = {"id": found["id"], "data": cut.data_form}
        return self.pump.start(lambda: cut.node(self._node), lambda: cut.node_legs(self.pump.blobs), about)

    def _cut(self, learner: Learner, found: dict[str, Any]) -> CutLearner | Party:
        """Return this node's side of the job."""
        spec = parse_split_job(found["spec"])
        job, form = spec.job(), found["form"]
        cut: CutLearner | Party
        if isinstance(job, VerticalJob):
            if self._node not in spec.parties:
                text, hint = f"{self._node} is not a party", f"set name to one of: {', '.join(spec.parties)}"
                raise InvalidJob(text, code="split.party", hint=hint)
            cut = Party.of(job, self._node, learner, spec.ids_max, merge_small=bool(found["merge_small"]))
            form = found["forms"][self._node]
        else:
            cut = CutLearner(job, learner, spec.nodes)
        check_form(cut.form, str(form), "the learner")
        return cut

    def frame(self, message: SplitMessage) -> bytes:
        """Return a message as bytes."""
        return split_codec.encode(SplitFrame(self._settings.split_job, message, self.pump.payload(message)))

    def take(self, answer: SplitFrame) -> Told:
        """Feed an answer. Raises the error of a turn that has failed when the coordinator knows of it."""
        failure = self.pump.failure
        told = self.pump.feed(answer.message, answer.payload)
        if failure is not None:
            raise failure
        return told
