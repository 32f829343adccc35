"""A run as a file: what is kept of a job to compare it with others, whether it ran at a coordinator or was simulated.

    record = of_simulation(spec, result)          of_job(api_job, api_versions, api_traffic)
    text = dumped(record)                         loaded(text, "digits.json")

Bytes of a coordinator are all that crossed the wire: bodies, heads, polls. Those of a simulation are frames and bodies,
without HTTP; `origin` says which they are.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from shoal import strict_json
from shoal.core.errors import InvalidJob

FORMAT: Literal["shoal-run/1"] = "shoal-run/1"


class Traffic(NamedTuple):
    """Bytes of one node, from it to the coordinator and back."""

    up: int = 0
    down: int = 0

    @property
    def both(self) -> int:
        """Both directions."""
        return self.up + self.down


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
    nodes: dict[str, Traffic] = {}
    """The same by node; empty in files of earlier releases. What belongs to no node ("") is among them."""

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
    nodes: dict[str, Traffic] = {}
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
    @property
    def nodes(self) -> Mapping[str, Traffic]: ...


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
    by_node = accumulate((dict(version.nodes) for version in result.versions), _summed)
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
        nodes=_by_node(result.up_bytes, result.down_bytes),
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
                nodes=nodes,
            )
            for version, up, down, nodes in zip(result.versions, ups, downs, by_node, strict=True)
        ),
    )


def _by_node(up: Mapping[str, int], down: Mapping[str, int]) -> dict[str, Traffic]:
    """Two counts by node as one."""
    return {node: Traffic(up.get(node, 0), down.get(node, 0)) for node in sorted({*up, *down})}


def _summed(so_far: dict[str, Traffic], more: Mapping[str, Traffic]) -> dict[str, Traffic]:
    """Bytes by node, added up."""
    either = sorted({*so_far, *more})
    both = {node: (so_far.get(node, Traffic()), more.get(node, Traffic())) for node in either}
    return {node: Traffic(one.up + other.up, one.down + other.down) for node, (one, other) in both.items()}


def of_job(job: Mapping[str, Any], versions: Sequence[Mapping[str, Any]], traffic: Mapping[str, Any]) -> RunRecord:
    """The record of a job from what the API says: the job, its versions, its traffic by version and node."""
    rows = sorted(traffic["rows"], key=lambda row: int(row["version"]))
    spent: dict[str, Counter[str]] = {"up": Counter(), "down": Counter()}
    twice = 0  # what nodes have received of each other: it is among what they have sent
    reached: dict[int, tuple[dict[str, Traffic], int, int]] = {}
    for number in sorted({int(version["number"]) for version in versions}):
        # Bytes of a round are booked under the version that it began with, those outside any round under -1.
        while rows and rows[0]["version"] < number:
            row = rows.pop(0)
            spent[row["direction"]][row["node"]] += row["bytes"]
            if (row.get("kind"), row["direction"]) == ("gossip", "down"):
                twice += row["bytes"]
        reached[number] = _by_node(spent["up"], spent["down"]), spent["up"].total(), spent["down"].total() - twice
    for row in rows:
        spent[row["direction"]][row["node"]] += row["bytes"]

    return RunRecord(
        name=job["name"],
        state=job["state"],
        algorithm=job["algorithm"],
        schedule=job["schedule"],
        seed=int(job["spec"].get("seed", 0)),
        origin="coordinator",
        up_bytes=traffic["total"]["up"],
        down_bytes=traffic["total"]["down"],
        nodes=_by_node(spent["up"], spent["down"]),
        versions=tuple(
            VersionRecord(
                number=version["number"],
                why=version["why"],
                opened_s=version["elapsed_s"] - version["seconds"],
                closed_s=version["elapsed_s"],
                reports=version["reports"],
                metrics=version["metrics"],
                nodes=reached[version["number"]][0],
                up_bytes=reached[version["number"]][1],
                down_bytes=reached[version["number"]][2],
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
        strict_json.loads(text.encode())
        return RunRecord.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidJob(
            f"{source} is no record of a run: {where}{': ' if where else ''}{first['msg']}",
            code="run.invalid",
            hint=hint,
        ) from None
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f"{source} is no record of a run: {error}", code="run.invalid", hint=hint) from None


def _named(value: Any) -> Any:
    """Numbers that JSON cannot hold, by name."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _named(inner) for key, inner in value.items()}
    return [_named(inner) for inner in value] if isinstance(value, list | tuple) else value
