"""`shoal.connect`: a coordinator in Python.

with shoal.connect("http://127.0.0.1:8080", token) as coordinator:
    job = coordinator.run("digits.toml").wait()
    print(job.metrics)
    network = job.model(network(), version="best")
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from shoal.client.api import CoordinatorApi, opened, segment
from shoal.client.remote_job import RemoteJob
from shoal.configuration import ClientSettings, load
from shoal.jobs.spec import JobSpec, load_job
from shoal.model_file import opened as opened_model


def connect(url: str | None = None, token: str | None = None, **settings: Any) -> CoordinatorClient:
    """Return a client of the coordinator at `url`, with an operator's or a viewer's token. This sends no request.

    Defaults come from `SHOAL_CLIENT__URL`, `SHOAL_CLIENT__TOKEN_FILE` and `shoal.toml`, as for commands. `settings`:
    ca_file, insecure, timeout_s. Raises `ShoalError` for unknown or unusable settings.
    """
    made = load(ClientSettings, "client", given={"url": url, "token": token, **settings})
    return CoordinatorClient(made)


class CoordinatorClient:
    """A coordinator, for operators and viewers. Close it, or use it in a `with` block. Methods raise `ShoalError`."""

    def __init__(self, settings: ClientSettings) -> None:
        self._stack = ExitStack()
        self._api: CoordinatorApi = self._stack.enter_context(opened(settings, settings.token.get_secret_value()))
        self.url = self._api.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"CoordinatorClient({self.url})"

    def close(self) -> None:
        """End the connection."""
        self._stack.close()

    def run(
        self,
        job: JobSpec | str | Path | Mapping[str, Any],
        *,
        start_model: str | Path | None = None,
        base: str | Path | None = None,
        paused: bool = False,
    ) -> RemoteJob:
        """Submit a job (or that of a TOML file, or of a mapping) and return it at once.

        `start_model`: a safetensors file to start from. `base`: a safetensors file with the frozen tensors, which nodes
        that hold others fetch once; an interrupted upload is resumed. Raises `InvalidJob` for a job that cannot run.
        """
        values = job_values(job)
        wanted: dict[str, Any] = {"spec": values, "paused": paused}
        for key, path in (("start_model", start_model), ("base_model", base)):
            if path is not None:
                is_base = key == "base_model"
                with opened_model(Path(path), base=is_base) as model:
                    wanted[key] = self._api.upload_model(model, model.pieces(), base=is_base)
        return RemoteJob(self._api, str(self._api.create_job(wanted)["name"]))

    def job(self, name: str) -> RemoteJob:
        """Return the job of this name. Raises `Refused` if there is none."""
        found = RemoteJob(self._api, name)
        _ = found.status
        return found

    @property
    def jobs(self) -> dict[str, RemoteJob]:
        """All jobs by name, newest first."""
        return {one["name"]: RemoteJob(self._api, one["name"]) for one in self._api.every("/jobs", "jobs")}

    def split_job(self, name: str) -> dict[str, Any]:
        """Return a split job: state, nodes, turns, bytes of a step, and its closed rounds as "versions". Raises
        `Refused` if there is none."""
        return self._api.get(f"/split/{segment(name)}")

    @property
    def split_jobs(self) -> list[dict[str, Any]]:
        """All split jobs, as `split_job` returns them, without their rounds."""
        return list(self._api.get("/split")["split_jobs"])

    def failures(self, job: str = "") -> list[dict[str, Any]]:
        """Return the newest failed tasks, of one job or of all: node, task, phase, error, reaction."""
        return list(self._api.get("/failures", **({"job": job} if job else {}))["failures"])

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """All nodes: name, state, device, versions, tags."""
        return self._api.every("/nodes", "nodes")


def job_values(job: JobSpec | str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's values as JSON has them. Raises `InvalidJob` if it is not valid."""
    if isinstance(job, JobSpec):
        return job.model_dump(mode="json", exclude_unset=True)
    load_job(job)
    return dict(job) if isinstance(job, Mapping) else tomllib.loads(Path(job).read_text(encoding="utf-8"))
