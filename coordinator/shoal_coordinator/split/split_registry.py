"""The split jobs that the coordinator's settings name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from shoal.core.errors import InvalidJob, Refused
from shoal.extras import not_installed
from shoal.jobs.split_spec import load_split_job
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.backends import is_shared

if TYPE_CHECKING:
    from shoal_coordinator.split.split_runner import SplitJobRunner


class SplitRegistry:
    """The split jobs by name."""

    def __init__(self) -> None:
        self._runners: dict[str, SplitJobRunner] = {}

    @property
    def names(self) -> Collection[str]:
        """Return the names of all split jobs."""
        return self._runners.keys()

    @property
    def runners(self) -> Collection[SplitJobRunner]:
        """Return all split jobs."""
        return self._runners.values()

    async def start(self, settings: Settings, taken: Collection[str], wake: Callable[[str], None]) -> None:
        """Start all jobs. `taken`: names of other jobs. Raises `ShoalError`."""
        if not settings.split_jobs:
            return
        if is_shared(settings.url):
            text = "split jobs with a database that coordinators may share"
            raise InvalidJob(text, code="job.split", hint="leave database_url or split_jobs out")
        try:
            from shoal_coordinator.split.split_runner import SplitJobRunner
        except ModuleNotFoundError as error:
            raise not_installed(error, "torch", "split_jobs") from None
        for path in settings.split_jobs:
            spec = load_split_job(path)
            if spec.name in taken or spec.name in self._runners:
                hint = f"give the job of {path} another name"
                raise InvalidJob(f"a job called {spec.name} exists", code="job.exists", hint=hint)
            self._runners[spec.name] = runner = SplitJobRunner(spec, settings.data / "split" / spec.name, wake)
            await runner.start()

    def runner(self, name: str) -> SplitJobRunner:
        """Return a job. Raises `Refused` (404) if it is unknown."""
        if name not in self._runners:
            known = ", ".join(self._runners) or "none"
            raise Refused(f"no split job is called {name!r}", code="job.unknown", hint=f"split jobs here: {known}")
        return self._runners[name]

    async def stop(self) -> None:
        """Let the work in hand end."""
        for runner in self._runners.values():
            await runner.stop()
