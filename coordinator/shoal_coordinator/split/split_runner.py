"""One split job of this coordinator. Importing this loads torch."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from shoal.core.errors import InvalidJob, InvalidPayload, Refused
from shoal.core.model.tree_checks import first_not_finite
from shoal.core.protocol.machine import JobEvent, Timer
from shoal.core.protocol.split_message import FromSplitNode, PartyIds, SplitPoll, SplitRequest, ToSplitNode, TurnFailed
from shoal.core.split.part_state import SplitVersion, whole_model
from shoal.core.split.row_alignment import masked_ids
from shoal.core.split.split_coordinator import SplitCoordinator, SplitState
from shoal.core.split.vertical_coordinator import VerticalCoordinator, VerticalState
from shoal.jobs.split_spec import PRIVATE, SplitSpec
from shoal.learn.compute_threads import compute_threads, set_threads
from shoal.learn.loading import load_learner
from shoal.learn.model_form import layout_of
from shoal.learn.split.split_job import CutLearner
from shoal.learn.split.vertical_job import VerticalCut, VerticalJob
from shoal.runtime.durable_files import write_file
from shoal.runtime.split.split_pump import SplitPump, Told
from shoal.runtime.threads import SerialExecutor
from shoal.wire import split_codec
from shoal.wire.payload import open_payload, payload_pieces
from shoal_coordinator.storage.crashpoints import crashpoint
from shoal_coordinator.storage.repeated_errors import RepeatedErrors

log = structlog.get_logger()

RETRY_S = 2.0
"""Pause before an alarm that failed is tried again."""


class NodeAnswer(NamedTuple):
    """A message to a node, and the payload of its blob."""

    message: ToSplitNode
    payload: bytes


def cut_of(spec: SplitSpec, learner: object) -> CutLearner | VerticalCut:
    """Return the coordinator's side of a job. Raises `InvalidJob` for a learner that does not fit."""
    job = spec.job()
    if not isinstance(job, VerticalJob):
        return CutLearner(job, learner, spec.nodes, spec.learner)
    cut = VerticalCut(job, learner, spec.learner, spec.ids_max)
    if list(cut.parties) != spec.parties:
        text = f"the heads of {spec.learner} are {', '.join(cut.parties)}, the parties {', '.join(spec.parties)}"
        raise InvalidJob(text, code="job.vertical", hint="give both the same names, in the same order")
    return cut


class SplitJobRunner:
    """The machine of a job, its thread and its files. `wake(node)`: called when there is something new for a node."""

    def __init__(self, spec: SplitSpec, folder: Path, wake: Callable[[str], None]) -> None:
        self.spec, self._wake = spec, wake
        self._executor = SerialExecutor(f"shoal-split-{spec.name}")
        self._pump = SplitPump[SplitCoordinator | VerticalCoordinator](folder, crashpoint)
        self._alarm: asyncio.Task[None] | None = None
        self.form, self.forms, self.step_bytes = "", dict[str, str](), (0, 0)
        self.merge_small = False
        self.payload_bytes_max = 0

    async def start(self) -> None:
        """Load the learner and the state of an earlier process. Raises `ShoalError`."""
        await self._executor.run(self._open)
        self._alarm = asyncio.create_task(self._run_alarm(), name=f"split job {self.spec.name}")

    async def stop(self) -> None:
        """Let the work in hand end; its state is stored."""
        if self._alarm is not None:
            self._alarm.cancel()
        await self._executor.wait_idle(RETRY_S)
        self._executor.close()

    def _open(self) -> None:
        learner = load_learner(self.spec.learner, self.spec.options)
        self._cut = cut = cut_of(self.spec, learner)
        set_threads(compute_threads(0, layout_of(learner)))
        pump, values = self._pump, self.spec.model_dump(mode="json", exclude=PRIVATE, exclude_none=True)
        if pump.about and pump.about["spec"] != values:
            text = f"the split job {self.spec.name} has begun with another file"
            raise InvalidJob(text, code="job.exists", hint=f"give it another name, or remove {pump.folder}")
        start = [pump.blobs.put(one.save()) for one in cut.start_parts()]
        self.form, self.forms, self.merge_small, self.step_bytes = cut.form, cut.forms, cut.merge_small, cut.step_bytes
        requests = (
            split_codec.payload_bytes_max(plan, "request", part)
            for plan, part in zip(cut.node_plans, start, strict=False)
        )
        self.payload_bytes_max = max(split_codec.ids_bytes_max(self.spec.ids_max), *requests)
        pump.tell = self._tell
        about = pump.about or {"spec": values, "id": secrets.token_hex(8), "versions": []}
        pump.start(lambda: cut.coordinator(pump.blobs, start), lambda: cut.coordinator_legs(pump.blobs), about)
        log.info("split job", job=self.spec.name, cut=cut.step_text, ended=self.state.ended)

    @property
    def about(self) -> dict[str, Any]:
        """Return the stored values: spec, id, versions."""
        return self._pump.about

    @property
    def state(self) -> SplitState | VerticalState:
        """Return the machine's state. Any thread may read it."""
        return self._pump.machine.state

    async def handle(self, message: FromSplitNode, payload: bytes) -> NodeAnswer | None:
        """Return the answer to a node's message; None if it stands at another position.

        Raises `Refused` or `InvalidPayload` for a message that changes nothing, `StorageFailed`.
        """
        told, found = await self._executor.run(partial(self._feed, message, payload))
        for node in {*told, *(self.state.nodes if self.state.ended else ())} - {message.node}:
            self._wake(node)
        return found

    def _feed(self, message: FromSplitNode, payload: bytes) -> tuple[Told, NodeAnswer | None]:
        self._check(message, payload)
        told = self._pump.feed(message, payload)
        crashpoint("split.fed")
        answer = told.get(message.node)
        if answer is None or isinstance(answer, FromSplitNode):
            return told, None
        return told, NodeAnswer(answer, self._pump.payload(answer))

    def _check(self, message: FromSplitNode, payload: bytes) -> None:
        """Raise `Refused` or `InvalidPayload` for a blob that the plan does not allow, before it is stored."""
        if isinstance(message, SplitPoll | TurnFailed):
            return
        slots, plan = open_payload(payload), self._cut.plan_of(message.node)
        if isinstance(message, PartyIds):
            masked_ids(slots, self.spec.ids_max)
            return
        if not isinstance(message, SplitRequest):
            return  # the machine compares a report with the part from which its turn started
        if not (1 <= message.examples <= plan.examples_max and message.leg < plan.legs):
            text = f"leg {message.leg} of a batch of {message.examples} examples"
            raise Refused(text, code="split.batch", hint="start the node with the coordinator's release of shoal")
        for tree in plan.opened(slots, message.leg, "request", message.examples).values():
            if found := first_not_finite(tree):
                text = f"{found[0]} is not finite"
                raise InvalidPayload(text, code="payload.not-finite", hint="lower the learning rate")

    def _tell(self, told: SplitVersion | JobEvent) -> None:
        """Keep a new version, or log an event."""
        if isinstance(told, JobEvent):
            log.warning(told.text, job=self.spec.name, round=told.version)
            return
        model = whole_model(self._pump.blobs, told.parts)
        data = b"".join(bytes(piece) for piece in payload_pieces({"model": model}))
        write_file(self._pump.folder / "model.safetensors", data, "splitmodel", crashpoint)
        row = {
            "number": told.number,
            "nodes": list(told.nodes),
            "metrics": dict(told.metrics),
            "batches": told.batches,
            "examples": told.examples,
        }
        self.about["versions"] = [*(one for one in self.about["versions"] if one["number"] < told.number), row]
        log.info("round closed", job=self.spec.name, **row)

    async def _run_alarm(self) -> None:
        """Feed the machine's timer when it is due, until cancelled."""
        failing = RepeatedErrors("the alarm of a split job failed")
        while True:
            await asyncio.sleep(max(0.0, self._pump.wake_at - time.monotonic()))
            try:
                told = await self._executor.run(lambda: self._pump.feed(Timer()))
                failing.worked()
            except Exception as error:  # noqa: BLE001 - the next try may succeed
                failing.failed(error, job=self.spec.name)
                await asyncio.sleep(RETRY_S)
                continue
            for node in told:
                self._wake(node)
