"""The conformance jobs at a coordinator, each compared with its simulation."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shoal.client.client import CoordinatorClient
from shoal.client.remote_job import RemoteJob
from shoal.conformance.cases import ConformanceCase
from shoal.conformance.reference_learner import ConformanceLearner
from shoal.core.errors import ShoalError
from shoal.core.model.tree import digest, same_layout
from shoal.jobs.spec import parse_job
from shoal.model_file import save_model
from shoal.results.result import Result
from shoal.simulation import simulate

ROUNDS = 3
LOOK_S = 0.1

Verdict = Literal["passed", "refused", "failed"]


@dataclass(frozen=True)
class ConformanceResult:
    """The result of a case. `why`: what was wrong or refused."""

    case: str
    about: str
    verdict: Verdict
    why: str = ""

    @property
    def is_ok(self) -> bool:
        """Return whether the client conforms."""
        return self.verdict != "failed"


class ConformanceKit:
    """The kit at one coordinator, for the nodes under test. `patience_s`: how long one job may take."""

    def __init__(self, coordinator: CoordinatorClient, nodes: Sequence[str], patience_s: float) -> None:
        self._coordinator, self.nodes, self._patience_s = coordinator, sorted(nodes), patience_s

    def run(self, case: ConformanceCase) -> ConformanceResult:
        """Run a case. Raises `ShoalError` only where the coordinator itself does."""
        spec = self._spec(case)
        with tempfile.TemporaryDirectory(prefix="shoal-conformance-") as folder:
            start = save_model(case.start, Path(folder) / "start.safetensors") if case.start is not None else None
            job = self._coordinator.run(spec, start_model=start)
        verdict, why = self._judge(case, spec, job)
        return ConformanceResult(case.name, case.about, verdict, why)

    def _spec(self, case: ConformanceCase) -> dict[str, Any]:
        count = len(self.nodes)
        return {
            "name": f"conformance-{case.name.replace('_', '-')}-{secrets.token_hex(3)}",
            "rounds": ROUNDS,
            "seed": secrets.randbelow(1000),
            "aggregation_precision": "fixed",
            "schedule": {"name": "rounds", "min_nodes": count, "cohort": count, "quorum": count, "deadline_s": 3600.0},
            "selection": {"name": "uniform", "nodes": self.nodes},
            **case.spec,
        }

    def _judge(self, case: ConformanceCase, spec: dict[str, Any], job: RemoteJob) -> tuple[Verdict, str]:
        """Wait for the job's end, or for its failures, and compare."""
        until = time.monotonic() + self._patience_s
        while job.state != "done" and time.monotonic() < until:
            failures = self._coordinator.failures(job.name)
            if {one["node"] for one in failures} >= set(self.nodes):
                job.stop("all nodes have failed")
                return self._failed_tasks(case, str(failures[0]["error"]))
            time.sleep(LOOK_S)
        if job.state != "done":
            where = job.status["state_why"]
            job.stop("it took too long")
            return "failed", f"not done after {self._patience_s:g} s, at version {job.status['version']}: {where}"
        if case.fails:
            return "failed", "a model that cannot be trained was reported as trained"
        return self._compare(job, self._expected(case, spec))

    @staticmethod
    def _failed_tasks(case: ConformanceCase, error: str) -> tuple[Verdict, str]:
        if case.fails:
            return "passed", ""
        return "failed" if case.required else "refused", error

    def _expected(self, case: ConformanceCase, spec: dict[str, Any]) -> Result:
        learners = {node: ConformanceLearner(case.start) for node in self.nodes}
        return simulate(parse_job(spec), learners, progress=False)

    @staticmethod
    def _compare(job: RemoteJob, expected: Result) -> tuple[Verdict, str]:
        """Compare the layout, then metrics version by version, then the last model to the bit."""
        model = job.model()
        try:
            same_layout(model.layout, expected.model.layout)
        except ShoalError as error:
            return "failed", error.message
        for version, wanted in zip(job.versions, expected.versions, strict=True):
            if version["metrics"] != wanted.metrics:
                text = f"version {wanted.number} has metrics {version['metrics']}, expected {wanted.metrics}"
                return "failed", text
        if digest(model) != digest(expected.model):
            other = [name for name in model if model[name].tobytes() != expected.model[name].tobytes()]
            return "failed", f"the last model differs in {', '.join(other)}"
        return "passed", ""
