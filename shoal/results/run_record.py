"""Records of runs as files, from a coordinator or a simulation, for comparison.

    record = record_of_simulation(spec, result)   record_of_job(api_job, api_versions, api_traffic)
    text = dump_record(record)                    load_record(text, "digits.json")

Bytes of a coordinator are all that crossed the wire: bodies, heads, polls. Those of a simulation are frames and blobs,
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

from shoal.core.errors import InvalidJob
from shoal.validation import strict_json

FORMAT: Literal["shoal-run/1"] = "shoal-run/1"


class NodeTraffic(NamedTuple):
    """Bytes of one node in both directions."""

    up: int = 0
    down: int = 0

    @property
    def both(self) -> int:
        """The sum of both directions."""
        return self.up + self.down


class _RecordModel(BaseModel):
    model_config = ConfigDict(frozen=True)  # further keys of later releases are ignored


class VersionRecord(_RecordModel):
    """A closed version. Seconds count from the job's first version."""

    number: int
    why: str = ""
    opened_s: float
    closed_s: float
    reports: int
    metrics: dict[str, float]
    up_bytes: int
    """From nodes to the coordinator, from the job's start to the end of the round that made this version."""
    down_bytes: int
    nodes: dict[str, NodeTraffic] = {}
    """The same by node. Bytes of no node ("") are included."""

    @property
    def bytes(self) -> int:
        """The sum of both directions."""
        return self.up_bytes + self.down_bytes


class RunRecord(_RecordModel):
    """A run. Bytes include the final evaluations."""

    format: Literal["shoal-run/1"] = FORMAT
    name: str
    state: str
    algorithm: str
    schedule: str
    seed: int
    origin: Literal["coordinator", "simulation"]
    up_bytes: int
    down_bytes: int
    nodes: dict[str, NodeTraffic] = {}
    versions: tuple[VersionRecord, ...]


class SimulatedVersion(Protocol):
    """A version of a `Result`; bytes count from the previous version."""

    @property
    def number(self) -> int: ...
    @property
    def why(self) -> str: ...
    @property
    def opened_s(self) -> float: ...
    @property
    def closed_s(self) -> float: ...
    @property
    def reports(self) -> int: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...
    @property
    def up_bytes(self) -> int: ...
    @property
    def down_bytes(self) -> int: ...
    @property
    def nodes(self) -> Mapping[str, NodeTraffic]: ...


class SimulatedResult(Protocol):
    """The part of a `Result` that a record needs."""

    @property
    def state(self) -> str: ...
    @property
    def versions(self) -> tuple[SimulatedVersion, ...]: ...
    @property
    def up_bytes(self) -> Mapping[str, int]: ...
    @property
    def down_bytes(self) -> Mapping[str, int]: ...


class RecordedJob(Protocol):
    """The part of a `JobSpec` that a record needs."""

    @property
    def name(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def algorithm(self) -> Mapping[str, Any]: ...
    @property
    def schedule(self) -> Mapping[str, Any]: ...


def record_of_simulation(job: RecordedJob, result: SimulatedResult) -> RunRecord:
    """Return the record of a simulated run."""
    ups = accumulate(version.up_bytes for version in result.versions)
    downs = accumulate(version.down_bytes for version in result.versions)
    by_node = accumulate((dict(version.nodes) for version in result.versions), _summed)
    start = result.versions[0].closed_s if result.versions else 0.0
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
                opened_s=version.opened_s - start,
                closed_s=version.closed_s - start,
                reports=version.reports,
                metrics=dict(version.metrics),
                up_bytes=up,
                down_bytes=down,
                nodes=nodes,
            )
            for version, up, down, nodes in zip(result.versions, ups, downs, by_node, strict=True)
        ),
    )


def _by_node(up: Mapping[str, int], down: Mapping[str, int]) -> dict[str, NodeTraffic]:
    """Combine two counts by node."""
    return {node: NodeTraffic(up.get(node, 0), down.get(node, 0)) for node in sorted({*up, *down})}


def _summed(so_far: dict[str, NodeTraffic], more: Mapping[str, NodeTraffic]) -> dict[str, NodeTraffic]:
    """Add up bytes by node."""
    nodes = sorted({*so_far, *more})
    both = {node: (so_far.get(node, NodeTraffic()), more.get(node, NodeTraffic())) for node in nodes}
    return {node: NodeTraffic(one.up + other.up, one.down + other.down) for node, (one, other) in both.items()}


def record_of_job(
    job: Mapping[str, Any], versions: Sequence[Mapping[str, Any]], traffic: Mapping[str, Any]
) -> RunRecord:
    """Return the record of a job from API responses: the job, its versions, and its traffic by version and node."""
    rows = sorted(traffic["rows"], key=lambda row: int(row["version"]))
    spent: dict[str, Counter[str]] = {"up": Counter(), "down": Counter()}
    twice = 0  # bytes received from other nodes: counted once, as sent
    reached: dict[int, tuple[dict[str, NodeTraffic], int, int]] = {}
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


def dump_record(record: RunRecord) -> str:
    """Return the record as JSON; NaN and infinity are strings, as in the API."""
    return json.dumps(_named(record.model_dump(mode="python")), indent=1, allow_nan=False) + "\n"


def load_record(text: str, source: str) -> RunRecord:
    """Return the record in a text. Raises `InvalidJob`, which names `source`."""
    hint = "shoal simulate JOB.toml --record FILE and shoal export JOB --record FILE write such files"
    try:
        strict_json.loads(text.encode())
        return RunRecord.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidJob(
            f"{source} is not a record of a run: {where}{': ' if where else ''}{first['msg']}",
            code="run.invalid",
            hint=hint,
        ) from None
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f"{source} is not a record of a run: {error}", code="run.invalid", hint=hint) from None


def _named(value: Any) -> Any:
    """Replace numbers that JSON lacks by their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _named(inner) for key, inner in value.items()}
    return [_named(inner) for inner in value] if isinstance(value, list | tuple) else value
