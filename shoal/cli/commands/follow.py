"""Watching a job: a bar that moves with the coordinator's event stream, until the job has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.cli.output import Advance, out
from shoal.cli.text import NOTHING, accuracy, safe, seconds, size
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.cli.api import Api

ENDED = ("done", "stopped", "failed")
GOING_ON = ("running", "evaluating")
BAD = ("refusal", "warning")
"""Kinds of notes that everybody should see. Decisions come in every round: the bar shows the latest."""
ALERTS_MAX = 20


@dataclass
class Seen:
    """What is known of a job so far."""

    job: dict[str, Any]
    decision: str = ""
    alerts: set[int] = field(default_factory=set)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.job["state"] in ENDED

    def take(self, topic: str, data: dict[str, Any]) -> None:
        """One event of the stream."""
        if topic == "job":
            self.job = data
        elif topic == "version":
            self.job["version"] = max(self.job["version"], data["number"])
            self._measure(data)
        elif topic == "metrics":
            self._measure(data)
        elif topic == "traffic":
            self.job["up_bytes"], self.job["down_bytes"] = data["up_bytes"], data["down_bytes"]
        elif topic == "note":
            self.decision = data["text"] if data["kind"] == "decision" else self.decision
        elif topic == "alert":
            self.alert(data)

    def _measure(self, data: dict[str, Any]) -> None:
        """Keep the metrics of the newest version that has any: those of different versions are not mixed."""
        job, number, metrics = self.job, data["number"], data.get("metrics", {})
        if metrics and number >= (job.get("measured") or 0):
            known = job["metrics"] if number == job.get("measured") else {}
            job.update(metrics={**known, **metrics}, measured=number, provisional=data.get("provisional"))

    def alert(self, data: dict[str, Any]) -> None:
        """Say once what operators are told of this job, or of the coordinator as a whole: a job that waits for room on
        its disk waits for ever otherwise, and nobody knows why."""
        concerned = data["jobs"] or [data["job"] or self.job["name"]]
        if self.job["name"] in concerned and data["cleared_at"] is None and data["id"] not in self.alerts:
            self.alerts.add(data["id"])
            out.warn(f"{data['kind']}: {data['text']}")

    def show(self, advance: Advance) -> None:
        """Move the bar."""
        job = self.job
        parts = [f"{job['version']}/{job['versions']}" if job["versions"] else f"{job['version']} syncs"]
        if job["mode"] != "server" or job["state"] not in GOING_ON or job.get("idle"):
            what = "waits" if job.get("idle") else job["mode"] if job["state"] in GOING_ON else job["state"]
            parts.append(f"{what}: {safe(job['state_why'])}" if job["state_why"] else what)
        if (good := accuracy(job)) != NOTHING:
            parts.append(f"[bold]{good}[/]")
        parts.append(f"[dim]↑[/]{size(job['up_bytes'])} [dim]↓[/]{size(job['down_bytes'])}")
        below = "" if job.get("idle") else self.decision  # what was decided last is not what it is about now
        advance(job["version"] if job["versions"] else job["progress"], "  ".join(parts), below)


def follow(
    api: Api,
    job: dict[str, Any],
    *,
    timeout_s: float | None = None,
    check: Callable[[dict[str, Any]], None] | None = None,
    enough: Callable[[dict[str, Any]], bool] = lambda _job: False,
    what: str = "ended",
) -> dict[str, Any]:
    """Watch until the job has ended, or is as it is wanted (`enough`; `what` says it in words); the job as it is then.

    `check` is called with the job as it is known, at least every second, and may raise. Raises `ShoalError` with the
    code `job.time-out`.
    """
    from shoal.cli.api import segment

    seen = Seen(job)
    due = None if timeout_s is None else time.monotonic() + timeout_s
    path = f"/jobs/{segment(job['name'])}"
    with out.progress(job["name"], job["versions"] or 1.0) as advance, api.events(job["name"]) as events:
        for event in events:
            if event is not None:
                seen.take(event.name, event.data)
                tell(event.name, event.data)
            seen.show(advance)
            if event is not None and event.name == "hello":  # after a reconnection: what was missed shows here
                seen.job = api.get(path)
                for alert in reversed(api.get("/alerts", standing="true", limit=ALERTS_MAX)["alerts"]):
                    seen.alert(alert)
            if check is not None:
                check(seen.job)
            if seen.has_ended or enough(seen.job):
                break
            if due is not None and time.monotonic() > due:
                raise ShoalError(
                    f"{job['name']} has not {what} within {seconds(timeout_s)}",
                    code="job.time-out",
                    hint=f"it goes on: shoal jobs show {job['name']}",
                )
    return api.get(path)


def tell(topic: str, data: dict[str, Any]) -> None:
    """Print what went wrong, above the bar; with --verbose every note and every version."""
    if topic == "note" and data["kind"] in BAD:
        out.warn(data["text"])
    elif topic == "note":
        out.detail(f"{data['kind']:<8} {data['text']}")
    elif topic == "version" and "elapsed_s" in data:  # it lacks all but the number where it was forgotten meanwhile
        good = f", {accuracy(data)}" if accuracy(data) != NOTHING else ""
        out.detail(f"version  {data['number']} after {seconds(data['elapsed_s'])}{good}")
