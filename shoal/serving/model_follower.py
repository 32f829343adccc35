"""A served model that follows a label of a job, or its best or last version."""

from __future__ import annotations

from typing import Any

import structlog

from shoal.client.api import CoordinatorApi
from shoal.client.model_versions import download_model, resolve_version
from shoal.core.errors import ShoalError
from shoal.serving.served_model import ServedModel, ServedVersion


class ModelFollower:
    """Follower of a label: it keeps a served model at the version that `label` names now, or `best` or `last`."""

    def __init__(self, served: ServedModel, api: CoordinatorApi, job: str, label: str) -> None:
        self._served, self._api, self._job, self._label = served, api, job, label
        self._failure = ""
        self._log: Any = structlog.get_logger("serve")

    def load(self) -> None:
        """Load the version that the label names now, unless it is loaded. Raises `ShoalError`."""
        wanted = ServedVersion(self._job, resolve_version(self._api, self._job, self._label))
        if wanted != self._served.version:
            self._served.load(download_model(self._api, self._job, wanted.version or 0), wanted)
            self._log.info("answers from another version", job=self._job, version=wanted.version, label=self._label)

    def refresh(self) -> None:
        """Call `load`; after an error the version before stays. An error that repeats is logged once."""
        try:
            self.load()
        except ShoalError as error:
            if error.message != self._failure:
                self._log.warning("the model cannot be renewed", why=error.message, hint=error.hint)
            self._failure = error.message
        else:
            self._failure = ""
