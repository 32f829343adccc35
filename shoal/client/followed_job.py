"""The state of a job, kept up to date by its events."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.client.api import segment
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.client.api import CoordinatorApi
    from shoal.runtime.http.sse import ServerEvent

ENDED = ("done", "stopped", "failed")


@dataclass
class FollowedJob:
    """A job as the coordinator describes it (`GET /api/v1/jobs/{job}`), and its last decision."""

    job: dict[str, Any]
    decision: str = ""

    @property
    def has_ended(self) -> bool:
        """Return whether the job has ended."""
        return self.job["state"] in ENDED

    def apply_event(self, topic: str, data: dict[str, Any]) -> None:
        """Apply one event of the job's stream."""
        if topic == "job":
            self.job = data
        elif topic == "version":
            self.job["version"] = max(self.job["version"], data["number"])
            self._measure(data)
        elif topic == "metrics":
            self._measure(data)
        elif topic == "traffic":
            self.job["up_bytes"], self.job["down_bytes"] = data["up_bytes"], data["down_bytes"]
        elif topic == "job_event":
            self.decision = data["text"] if data["kind"] == "decision" else self.decision

    def follow(
        self, api: CoordinatorApi, events: Iterable[ServerEvent | None], timeout_s: float | None, late: ShoalError
    ) -> Iterator[ServerEvent | None]:
        """Apply the job's events and yield each, and None while nothing comes, until the job has ended.

        After a reconnection the job is requested again, which shows missed changes. Raises `late` after `timeout_s`
        seconds.
        """
        due = None if timeout_s is None else time.monotonic() + timeout_s
        for event in events:
            if event is not None:
                self.apply_event(event.name, event.data)
            if event is not None and event.name == "hello":
                self.job = api.get(f"/jobs/{segment(self.job['name'])}")
            yield event
            if self.has_ended:
                return
            if due is not None and time.monotonic() > due:
                raise late

    def _measure(self, data: dict[str, Any]) -> None:
        """Keep the metrics of the newest version that has any; metrics of different versions are not mixed."""
        job, number, metrics = self.job, data["number"], data.get("metrics", {})
        if metrics and number >= (job.get("metrics_version") or 0):
            known = job["metrics"] if number == job.get("metrics_version") else {}
            job.update(metrics={**known, **metrics}, metrics_version=number, provisional=data.get("provisional"))


def time_out(job: str, what: str, after: str) -> ShoalError:
    """Return the error for a job that has not come to something in time."""
    return ShoalError(
        f"{job} has not {what} within {after}",
        code="job.time-out",
        hint=f"the job continues: shoal jobs show {job}",
    )


def unfinished(job: dict[str, Any], hint: str = "") -> ShoalError:
    """Return the error for a job that did not end as expected."""
    text = f"{job['name']} is {job['state']}: {job['state_why']}"
    return ShoalError(text, code=f"job.{job['state']}", hint=hint or f"shoal jobs show {job['name']} --events 50")
