"""A run as a file: what is kept of a job to compare it with others, whether it ran at a coordinator or was simulated.

    record = of_simulation(spec, result)          of_job(api_job, api_versions, api_traffic)
    text = dumped(record)                         loaded(text, "digits.json")

Bytes of a coordinator are all that crossed the wire: bodies, heads, polls. Those of a simulation are frames and bodies,
without HTTP; `origin` says which they are.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from shoal.core.errors import InvalidJob

FORMAT: Literal["shoal-run/1"] = "shoal-run/1"


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True)  # further keys of later releases are ignored


class VersionRecord(_Table):
    """A closed version. Seconds are those of the job's clock, since its first version was there."""

    number: int
    why: str = ""
    opened_s: float
    closed_s: float
    reports: int
    metrics: dict[str, float]
    up_bytes: int
    """From nodes to the coordinator, from the job's start to the end of the round that made this version."""
    down_bytes: int

    @property
    def bytes(self) -> int:
        """Both directions."""
        return self.up_bytes + self.down_bytes


class RunRecord(_Table):
    """A run. Bytes are those of all of it, final evaluations included."""

    format: Literal["shoal-run/1"] = FORMAT
    name: str
    state: str
    algorithm: str
    schedule: str
    seed: int
    origin: Literal["coordinator", "simulation"]
    up_bytes: int
    down_bytes: int
    versions: tuple[VersionRecord, ...]


class SimulatedVersion(Protocol):
    """What is needed of a version of `shoal.simulation.Result`; bytes are those since the version before."""

    @property
    def number(self) -> int: ...
    @property
    def why(self) -> str: ...
    @property
    def opened(self) -> float: ...
    @property
    def closed(self) -> float: ...
    @property
    def reports(self) -> int: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...
    @property
    def up_bytes(self) -> int: ...
    @property
    def down_bytes(self) -> int: ...


class Simulated(Protocol):
    """What is needed of a `shoal.simulation.Result`."""

    @property
    def state(self) -> str: ...
    @property
    def versions(self) -> tuple[SimulatedVersion, ...]: ...
    @property
    def up_bytes(self) -> Mapping[str, int]: ...
    @property
    def down_bytes(self) -> Mapping[str, int]: ...


class Job(Protocol):
    """What is needed of a `shoal.spec.JobSpec`."""

    @property
    def name(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def algorithm(self) -> Mapping[str, Any]: ...
    @property
    def schedule(self) -> Mapping[str, Any]: ...


def of_simulation(job: Job, result: Simulated) -> RunRecord:
    """The record of a simulated run."""
    ups = accumulate(version.up_bytes for version in result.versions)
    downs = accumulate(version.down_bytes for version in result.versions)
    start = result.versions[0].closed if result.versions else 0.0
    return RunRecord(
        name=job.name,
        state=result.state,
        algorithm=str(job.algorithm["name"]),
        schedule=str(job.schedule["name"]),
        seed=job.seed,
        origin="simulation",
        up_bytes=sum(result.up_bytes.values()),
        down_bytes=sum(result.down_bytes.values()),
        versions=tuple(
            VersionRecord(
                number=version.number,
                why=version.why,
                opened_s=version.opened - start,
                closed_s=version.closed - start,
                reports=version.reports,
                metrics=dict(version.metrics),
                up_bytes=up,
                down_bytes=down,
            )
            for version, up, down in zip(result.versions, ups, downs, strict=True)
        ),
    )


def of_job(job: Mapping[str, Any], versions: Iterable[Mapping[str, Any]], traffic: Mapping[str, Any]) -> RunRecord:
    """The record of a job from what the API says: the job, its versions, its traffic by version."""
    spent: defaultdict[tuple[int, str], int] = defaultdict(int)
    for row in traffic["rows"]:
        spent[row["version"], row["direction"]] += row["bytes"]

    def so_far(number: int, direction: str) -> int:
        # Bytes of a round are booked under the version that it began with, those outside any round under -1.
        return sum(count for (at, way), count in spent.items() if way == direction and at < number)

    return RunRecord(
        name=job["name"],
        state=job["state"],
        algorithm=job["algorithm"],
        schedule=job["schedule"],
        seed=int(job["spec"].get("seed", 0)),
        origin="coordinator",
        up_bytes=traffic["total"]["up"],
        down_bytes=traffic["total"]["down"],
        versions=tuple(
            VersionRecord(
                number=version["number"],
                why=version["why"],
                opened_s=version["elapsed_s"] - version["seconds"],
                closed_s=version["elapsed_s"],
                reports=version["reports"],
                metrics=version["metrics"],
                up_bytes=so_far(version["number"], "up"),
                down_bytes=so_far(version["number"], "down"),
            )
            for version in versions
        ),
    )


def dumped(record: RunRecord) -> str:
    """The record as JSON; NaN and infinity are strings, as in the API."""
    return json.dumps(_named(record.model_dump(mode="python")), indent=1, allow_nan=False) + "\n"


def loaded(text: str, source: str) -> RunRecord:
    """The record that a text holds. Raises `InvalidJob` that names `source`."""
    hint = "shoal simulate JOB.toml --record FILE and shoal export JOB --record FILE write such files"
    try:
        return RunRecord.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidJob(
            f"{source} is no record of a run: {where}{': ' if where else ''}{first['msg']}",
            code="run.invalid",
            hint=hint,
        ) from None


def _named(value: Any) -> Any:
    """Numbers that JSON cannot hold, by name."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _named(inner) for key, inner in value.items()}
    return [_named(inner) for inner in value] if isinstance(value, list | tuple) else value
