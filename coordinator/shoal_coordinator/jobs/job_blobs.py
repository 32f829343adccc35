"""The blob folders of jobs."""

from __future__ import annotations

import shutil

from shoal.runtime.blob_files import FileBlobs
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.blobs.places import reach
from shoal_coordinator.telemetry.metrics import Metrics


class JobBlobs:
    """One folder of blobs per job, so that deleting a job's blobs never touches another's."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._folder, self._metrics = settings.data / "blob-cache", metrics
        self.store = reach(settings)
        self.starts = self.of(".start")
        """Initial models that were uploaded before their jobs. No job can have that name."""

    def of(self, job: str) -> FileBlobs:
        return self.store.blobs_of(job, self._folder / job, self._metrics.step)

    def drop_copies(self, job: str) -> None:
        """Delete the local copies of a job's blobs. Blocks."""
        shutil.rmtree(self._folder / job, ignore_errors=True)
