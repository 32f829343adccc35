"""A job as a person writes it: a TOML file, checked, with a published JSON Schema.

    name = "digits"
    rounds = 30
    seed = 1
    learner = "shoal.learn.digits:learner"

    [algorithm]
    name = "fedavg"
    lr = 0.1

    [schedule]
    name = "rounds"
    min_nodes = 4

    [[filters]]
    name = "quantize"
    bits = 8

    [gossip]
    allowed = true
    mixing = { name = "pairwise" }

The tables `algorithm`, `schedule`, `filters` and `gossip.mixing` take the fields of the class they name. An unknown key
is an error with a suggestion, never ignored.
"""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from shoal.core.algorithm import Algorithm
from shoal.core.drain import Drain
from shoal.core.errors import InvalidJob
from shoal.core.failover import Failover
from shoal.core.filter import Filter
from shoal.core.gossip import Mixing
from shoal.core.hub import Plan
from shoal.core.message import Ref
from shoal.core.schedule import Schedule
from shoal.plugins import KINDS, PEER_KINDS, algorithms, filters, mixings, schedules, suggestion

T = TypeVar("T")

SILENCE_S, SILENCE_PATIENCES = 60.0, 6
"""So long, and so many times as long as for a silent partner, peers wait at the end for anything new at all."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HeldOut(_Table):
    """An evaluation at the coordinator, of every version, on data that no node has. Needs torch there."""

    learner: str = Field(description="`package.module:name` of a learner that is installed with the coordinator")
    options: dict[str, str | int | float | bool] = Field(default_factory=dict, description="passed to that learner")


class Limits(_Table):
    """What the coordinator refuses in this job. Zero: no limit beyond the coordinator's own."""

    update_norm_max: float = Field(0.0, ge=0, description="greatest Euclidean norm of an update")
    weight_max: float = Field(1e9, gt=0, le=1e15, description="greatest number of examples that a node may claim")


class Gossip(_Table):
    """How nodes carry the job on without the coordinator, if they may; how peers run it where there is none."""

    allowed: bool = Field(False, description="whether nodes may carry the job on by themselves, told to or not")
    mixing: dict[str, Any] = Field(
        default_factory=lambda: {"name": "pairwise"}, description="how the models of peers become one"
    )
    ttl_s: float = Field(Failover.ttl_s, gt=0, description="seconds of silence after which a node suspects")
    grace_s: float = Field(Failover.grace_s, gt=0, description="seconds of suspicion before any node goes away")
    votes: Literal["any", "majority"] | int = Field(
        Failover.votes, description="nodes that must miss the coordinator: any two, more than half, or so many"
    )
    dwell_s: float = Field(
        Failover.dwell_s, ge=0, description="seconds that a node which left by itself stays away at least"
    )
    settle_s: float = Field(
        Failover.settle_s, gt=0, description="seconds that open exchanges are waited for on the way back"
    )
    return_s: float = Field(
        Plan.return_s, gt=0, description="seconds that the coordinator waits on the way back for who has not answered"
    )
    gate: float = Field(
        0.02,
        ge=0,
        le=1,
        description="accuracy that the job may lose on the way back; beyond, it is paused; 0: not measured",
    )
    rounds: int = Field(
        0, ge=0, le=1_000_000, description="local rounds of each peer; 0: as many as the job's `rounds`"
    )
    near: float = Field(
        Drain.near,
        gt=0,
        lt=1,
        description="models that differ by less, relative to their length, count as one at the end",
    )
    drain: int = Field(
        Drain.most,
        ge=0,
        le=100_000,
        description="meetings at the end, of models that differ more, after which it ends anyway",
    )
    loss_gate: float = Field(
        0.0,
        ge=0,
        description="decline a model whose loss on own data is greater than so many times one's own, plus 0.5; 0: any",
    )
    min_peers: int = Field(
        2, ge=1, le=4096, description="local rounds begin when so many peers are there, oneself included"
    )
    period_s: float = Field(1.0, gt=0, le=60, description="seconds between two turns of asking who is there")
    patience_s: float = Field(
        10.0, gt=0, le=3600, description="seconds until a silent partner is not waited for (pairwise)"
    )

    @field_validator("mixing")
    @classmethod
    def _named(cls, table: dict[str, Any]) -> dict[str, Any]:
        return _named(table)

    def failover(self) -> Failover:
        """When a node goes away by itself. Raises `InvalidJob`."""
        return Failover(self.ttl_s, self.grace_s, self.votes, self.dwell_s, self.settle_s)

    def build_drain(self, rounds: int, linger_s: float) -> Drain:
        """When peers that have made so many local rounds may part. Raises `InvalidJob`."""
        silence_s = max(SILENCE_S, SILENCE_PATIENCES * self.patience_s)
        return Drain(rounds, self.drain, self.near, linger_s=linger_s, silence_s=silence_s)

    def build_mixing(self) -> Mixing:
        """The way of mixing, configured. Raises `InvalidJob`."""
        table = {"patience_s": self.patience_s, **self.mixing} if self.mixing["name"] == "pairwise" else self.mixing
        return _build("mixing", table, mixings())


def _named(table: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(table.get("name"), str):
        raise ValueError('must say name = "…"')
    return table


class JobSpec(_Table):
    """A job file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$", description="name of the job; stands in addresses")
    title: str = Field("", max_length=200, description="what people read")
    rounds: int = Field(0, ge=0, le=1_000_000, description="versions to make; 0: what the schedule proposes")
    seed: int = Field(0, ge=0, lt=2**63, description="source of all randomness of the job")
    sums: Literal["float64", "fixed"] = Field(
        "float64", description="how updates are added; fixed: the same bits in any order of arrival"
    )
    patience_s: float = Field(300.0, gt=0, description="seconds to wait for an initial model and final evaluations")
    learner: str = Field("", description="`file.py:name` or `package.module:name`, for simulation and for the demo")
    options: dict[str, str | int | float | bool] = Field(default_factory=dict, description="passed to the learner")
    algorithm: dict[str, Any] = Field(default_factory=lambda: {"name": "fedavg"}, description="what is computed")
    schedule: dict[str, Any] = Field(default_factory=lambda: {"name": "rounds"}, description="who is asked, and when")
    filters: list[dict[str, Any]] = Field(
        default_factory=list, max_length=8, description="what happens to updates on their way, in this order"
    )
    limits: Limits = Field(default_factory=Limits)
    held_out: HeldOut | None = None
    gossip: Gossip = Field(default_factory=Gossip)

    @field_validator("algorithm", "schedule")
    @classmethod
    def _is_named(cls, table: dict[str, Any]) -> dict[str, Any]:
        return _named(table)

    @field_validator("filters")
    @classmethod
    def _all_named(cls, tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [_named(table) for table in tables]

    def plan(self, start: Ref | None = None, first: int = 0, term: int = 0) -> Plan:
        """What the hub needs to know. `start`: the model of version `first`, from a coordinator of that term."""
        versions = self.rounds or self.build_schedule().versions
        filters = tuple(self.build_filters())
        gossip = self.gossip
        return Plan(
            versions, self.seed, self.sums, start, self.patience_s, filters, gossip.return_s, gossip.gate, first, term
        )

    def build_algorithm(self) -> Algorithm:
        """The algorithm, configured. Raises `InvalidJob`."""
        return _build("algorithm", self.algorithm, algorithms())

    def build_schedule(self) -> Schedule:
        """The schedule, configured. Raises `InvalidJob`."""
        return _build("schedule", self.schedule, schedules())

    def build_filters(self) -> list[Filter]:
        """The filters, configured. Raises `InvalidJob`."""
        return [_build("filter", table, filters()) for table in self.filters]


def _build(what: str, table: dict[str, Any], known: dict[str, type[T]]) -> T:
    values = dict(table)
    name = values.pop("name")
    if name not in known:
        raise InvalidJob(f"no {what} is called {name!r}", code=f"job.{what}", hint=suggestion(name, known))
    kind = known[name]
    allowed = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for key in values:
        if key not in allowed:
            raise InvalidJob(f"{what} {name}: no field {key!r}", code=f"job.{what}", hint=suggestion(key, allowed))
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        raise _invalid(error, f"{what} {name}: ") from None


def _invalid(error: ValidationError, prefix: str = "") -> InvalidJob:
    """The first thing that is wrong, in one line."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    hint = ""
    if first["type"] == "extra_forbidden":
        tables: dict[str, type[BaseModel]] = {"limits": Limits, "held_out": HeldOut, "gossip": Gossip}
        table = tables.get(str(first["loc"][0]), JobSpec) if len(first["loc"]) > 1 else JobSpec
        hint = suggestion(str(first["loc"][-1]), table.model_fields)
    text = "unknown key" if first["type"] == "extra_forbidden" else first["msg"]
    return InvalidJob(f"{prefix}{where}: {text}", hint=hint)


def parse_job(values: dict[str, Any]) -> JobSpec:
    """A checked job of TOML or JSON values, algorithm and schedule included. Raises `InvalidJob`."""
    try:
        spec = JobSpec.model_validate(values)
    except ValidationError as error:
        raise _invalid(error) from None
    _check_fit(spec.build_algorithm(), spec.build_schedule())
    if spec.gossip.allowed:
        _check_gossips(spec.build_algorithm())
    spec.build_filters()
    spec.gossip.failover()
    spec.gossip.build_mixing()
    return spec


def _check_fit(algorithm: Algorithm, schedule: Schedule) -> None:
    """Raise `InvalidJob` for an algorithm and a schedule that cannot work together."""
    if schedule.anchored and not algorithm.based:
        able = [name for name, kind in algorithms().items() if kind.based]
        raise InvalidJob(
            f"schedule {schedule.name} needs an algorithm whose nodes train on by themselves; {algorithm.name} is none",
            code="job.fit",
            hint=f"algorithms that can: {', '.join(able)}; or the schedule rounds",
        )
    if algorithm.estimates and not schedule.estimates:
        able = [name for name, kind in schedules().items() if kind.estimates]
        raise InvalidJob(
            f"{algorithm.name} waits for a schedule that watches the models' variance; {schedule.name} does not",
            code="job.fit",
            hint=f"schedule: {', '.join(able)}, whose threshold is theta",
        )
    if schedule.estimates and not algorithm.estimates:
        able = [name for name, kind in algorithms().items() if kind.estimates]
        raise InvalidJob(
            f"schedule {schedule.name} needs an algorithm that tells the models' variance; {algorithm.name} does not",
            code="job.fit",
            hint=f"algorithms that do: {', '.join(able)}",
        )


def _check_gossips(algorithm: Algorithm) -> None:
    """Raise `InvalidJob` for an algorithm whose nodes cannot do without the hub."""
    if not algorithm.gossips:
        able = [name for name, kind in algorithms().items() if kind.gossips]
        raise InvalidJob(
            f"{algorithm.name} keeps more than the model at the coordinator, so its nodes cannot carry on without it",
            code="job.fit",
            hint=f"leave out gossip.allowed, or choose one of {', '.join(able)}",
        )


def load_job(path: Path) -> JobSpec:
    """The job of a TOML file. Raises `InvalidJob` that names file, line or key."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidJob(f"no file {path}", hint="give the path of a TOML job file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidJob(f"{path}: {error}") from None
    try:
        return parse_job(values)
    except InvalidJob as error:
        raise InvalidJob(f"{path}: {error.message}", code=error.code, hint=error.hint) from None


def job_schema() -> dict[str, Any]:
    """The JSON Schema of a job file, with the fields of every installed algorithm, schedule and filter."""
    schema = JobSpec.model_json_schema()
    definitions = schema.setdefault("$defs", {})
    for what, known in {**KINDS, **PEER_KINDS}.items():
        options = []
        for name, kind in known().items():
            table = TypeAdapter(kind).json_schema()
            table["properties"] = {"name": {"const": name}, **table.get("properties", {})}
            table["required"], table["additionalProperties"] = ["name"], False
            definitions[f"{what}-{name}"] = table
            options.append({"$ref": f"#/$defs/{what}-{name}"})
        if what == "filter":
            schema["properties"]["filters"]["items"] = {"oneOf": options}
        else:
            place = definitions["Gossip"]["properties"] if what == "mixing" else schema["properties"]
            place[what] = {"oneOf": options, "description": place[what].get("description")}
    schema["title"] = "A shoal job"
    return schema


def settings_of(kind: type[Any]) -> list[tuple[str, str, Any]]:
    """(field, type, default) of an algorithm, schedule or filter, for people."""
    return [(f.name, str(f.type), None if f.default is MISSING else f.default) for f in fields(kind)]
