"""A progress bar that follows the event stream of a job until it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.cli.terminal.output import ReportProgress, out
from shoal.cli.terminal.text import NOTHING, accuracy, safe, seconds, size
from shoal.client.followed_job import FollowedJob, time_out

if TYPE_CHECKING:
    from shoal.client.api import CoordinatorApi

GOING_ON = ("running", "evaluating")
BAD = ("refusal", "warning")
"""Kinds of events that are always printed. Decisions come in every round: the bar shows the latest."""
ALERTS_MAX = 20


@dataclass
class JobProgress(FollowedJob):
    """The state of a job that is shown in a terminal."""

    alerts: set[int] = field(default_factory=set)

    def apply_event(self, topic: str, data: dict[str, Any]) -> None:
        """Apply one event of the stream; print an alert."""
        if topic == "alert":
            self.print_alert(data)
        else:
            super().apply_event(topic, data)

    def print_alert(self, data: dict[str, Any]) -> None:
        """Print each alert of this job, or of the coordinator, once; a job that waits for disk space would otherwise
        wait without a reason."""
        concerned = data["jobs"] or [data["job"] or self.job["name"]]
        if self.job["name"] in concerned and data["cleared_at"] is None and data["id"] not in self.alerts:
            self.alerts.add(data["id"])
            out.warn(f"{data['kind']}: {data['text']}")

    def update_bar(self, advance: ReportProgress) -> None:
        job = self.job
        parts = [f"{job['version']}/{job['versions']}" if job["versions"] else f"{job['version']} synchronizations"]
        if job["mode"] != "server" or job["state"] not in GOING_ON or job.get("idle"):
            what = "waiting" if job.get("idle") else job["mode"] if job["state"] in GOING_ON else job["state"]
            parts.append(f"{what}: {safe(job['state_why'])}" if job["state_why"] else what)
        if (good := accuracy(job)) != NOTHING:
            parts.append(f"[bold]{good}[/]")
        parts.append(f"[dim]↑[/]{size(job['up_bytes'])} [dim]↓[/]{size(job['down_bytes'])}")
        below = "" if job.get("idle") else self.decision  # the last decision is no longer current
        advance(job["version"] if job["versions"] else job["progress"], "  ".join(parts), below)


def follow(
    api: CoordinatorApi,
    job: dict[str, Any],
    *,
    timeout_s: float | None = None,
    check: Callable[[dict[str, Any]], None] | None = None,
    enough: Callable[[dict[str, Any]], bool] = lambda _job: False,
    what: str = "ended",
) -> dict[str, Any]:
    """Follow a job until it ends or `enough` is true, and return it. `what` names the condition.

    `check` is called with the job as it is known, at least every second, and may raise. Raises `ShoalError` with the
    code `job.time-out`.
    """
    from shoal.client.api import segment

    seen = JobProgress(job)
    late = time_out(job["name"], what, seconds(timeout_s))
    with out.progress(job["name"], job["versions"] or 1.0) as advance, api.events(job["name"]) as events:
        for event in seen.follow(api, events, timeout_s, late):
            if event is not None:
                print_event(event.name, event.data)
            seen.update_bar(advance)
            if event is not None and event.name == "hello":
                for alert in reversed(api.get("/alerts", active="true", limit=ALERTS_MAX)["alerts"]):
                    seen.print_alert(alert)
            if check is not None:
                check(seen.job)
            if enough(seen.job):
                break
    return api.get(f"/jobs/{segment(job['name'])}")


def print_event(topic: str, data: dict[str, Any]) -> None:
    """Print warnings above the bar; with --verbose also every job event and version."""
    if topic == "job_event" and data["kind"] in BAD:
        out.warn(data["text"])
    elif topic == "job_event":
        out.detail(f"{data['kind']:<8} {data['text']}")
    elif topic == "version" and "elapsed_s" in data:  # it lacks all but the number where it was forgotten meanwhile
        good = f", {accuracy(data)}" if accuracy(data) != NOTHING else ""
        out.detail(f"version  {data['number']} after {seconds(data['elapsed_s'])}{good}")
