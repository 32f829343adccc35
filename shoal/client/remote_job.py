"""A job at a coordinator, as a program sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from shoal.client.api import CoordinatorApi, segment
from shoal.client.followed_job import ENDED, FollowedJob, time_out, unfinished
from shoal.client.model_versions import download_model, resolve_version
from shoal.core.model.tree import Tree
from shoal.progress import Progress, displayed
from shoal.results.columns import Columns, VersionRow, columns_of, plot_columns
from shoal.runtime.http.sse import ServerEvent

if TYPE_CHECKING:
    from torch import nn

    Module = TypeVar("Module", bound=nn.Module)


class RemoteJob:
    """A job at a coordinator. Each property asks the coordinator again; all raise `ShoalError`.

    Dictionaries are those of the HTTP API: `docs/reference/http.md` and the coordinator's `/docs` describe their keys.
    """

    def __init__(self, api: CoordinatorApi, name: str) -> None:
        self._api, self.name = api, name
        self._path = f"/jobs/{segment(name)}"

    def __repr__(self) -> str:
        return f"RemoteJob({self.name!r} at {self._api.url})"

    @property
    def status(self) -> dict[str, Any]:
        """The job: state, mode, version, metrics, bytes, spec and more."""
        return self._api.get(self._path)

    @property
    def state(self) -> str:
        """The state: waiting, running, paused, evaluating, done, stopped or failed."""
        return str(self.status["state"])

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the newest version that was measured; {} before."""
        return dict(self.status["metrics"])

    @property
    def versions(self) -> list[dict[str, Any]]:
        """All versions, oldest first: number, metrics, bytes, times."""
        return list(self._api.get(f"{self._path}/versions", points=0)["versions"])

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """The nodes of the job: state, reports, metrics, bytes."""
        return list(self._api.get(f"{self._path}/nodes")["nodes"])

    def columns(self) -> Columns:
        """Return version, seconds, reports, bytes since the start and all metrics as lists, a number for each version:
        `pandas.DataFrame(job.columns())`. "bytes" has those outside rounds too, such as at joins."""
        names, versions = ("number", "elapsed_s", "reports", "up_bytes", "down_bytes", "metrics"), self.versions
        rows = [VersionRow(*(one[name] for name in names)) for one in versions]
        return columns_of(rows) | {"bytes": [one["total_bytes"] for one in versions]}

    def plot(self, metric: str = "accuracy", x: str = "version", *, axes: Any = None) -> Any:
        """Draw a metric against another column, as `Result.plot` does."""
        return plot_columns(self.columns(), metric, x, axes, self.name)

    def events(self) -> Iterator[ServerEvent]:
        """Yield the job's events as they come, until it has ended. Reconnects without gaps."""
        with self._api.events(self.name) as events:
            yield from self._until_ended(events)

    def _until_ended(self, events: Iterator[ServerEvent | None]) -> Iterator[ServerEvent]:
        over = False
        for event in events:
            if event is None and over:  # nothing more comes from a job that had ended before
                return
            if event is None:
                continue
            if event.name == "hello":
                over = self.state in ENDED
            yield event
            if event.name == "job" and event.data["state"] in ENDED:
                return

    def wait(self, timeout_s: float | None = None, *, progress: bool | Progress | None = None) -> Self:
        """Wait until the job has ended, and return it.

        `progress` is as in `shoal.simulate`. Raises `ShoalError` for a job that failed or was stopped (codes
        `job.failed`, `job.stopped`), and after `timeout_s` seconds (`job.time-out`); the job itself continues then.
        """
        seen, late = FollowedJob(self.status), time_out(self.name, "ended", f"{timeout_s or 0.0:g} s")
        with displayed(progress, self.name) as show, self._api.events(self.name) as events:
            for _ in seen.follow(self._api, events, timeout_s, late):
                if show is not None:
                    show(seen.job["progress"], seen.decision)
        if seen.job["state"] != "done":
            raise unfinished(seen.job)
        return self

    @overload
    def model(self, *, version: str | int = "last") -> Tree: ...

    @overload
    def model(self, into: Module, *, version: str | int = "last", strict: bool = True) -> Module: ...

    def model(self, into: Any = None, *, version: str | int = "last", strict: bool = True) -> Any:
        """Return the model of a version: a number, "last", "best" (by accuracy) or a label such as "production".

        It is a mapping from names to numpy arrays, or `into`: a torch module that then has these weights, as in
        `shoal.load_model`.
        """
        model = download_model(self._api, self.name, resolve_version(self._api, self.name, str(version)))
        if into is None:
            return model
        from shoal.learn.training.weights import load_into

        return load_into(into, model, strict=strict)

    def switch(self, to: Literal["gossip", "server"], why: str = "") -> Self:
        """Hand the running job to its nodes (`gossip`), or call it back (`server`)."""
        return self._act("switch", to=to, why=why)

    def pause(self, why: str = "") -> Self:
        """Give nodes no new tasks; reports still count."""
        return self._act("pause", why=why)

    def resume(self, why: str = "") -> Self:
        """Resume a paused job, or start one that was created paused."""
        return self._act("resume", why=why)

    def stop(self, why: str = "", *, when: Literal["now", "round"] = "now") -> Self:
        """End the job, at once or when the current round has closed."""
        return self._act("stop", why=why, when=when)

    def _act(self, verb: str, **body: str) -> Self:
        self._api.post(f"{self._path}/{verb}", body)
        return self
