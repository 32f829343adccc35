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

    [selection]
    name = "power_of_choice"
    tags = ["phone"]

    [[filters]]
    name = "quantize"
    bits = 8

    [gossip]
    allowed = true
    mixing = { name = "pairwise" }

The tables `algorithm`, `schedule`, `selection`, `filters` and `gossip.mixing` take the fields of the class
they name. An unknown key is an error with a suggestion, never ignored.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from shoal import misfits
from shoal.core.algorithm import Algorithm
from shoal.core.bounds import Bounds
from shoal.core.drain import Drain
from shoal.core.errors import InvalidJob
from shoal.core.failover import Failover
from shoal.core.filter import Filter, check_filters, for_models
from shoal.core.gossip import Mixing
from shoal.core.hub import Plan
from shoal.core.message import Ref
from shoal.core.schedule import Schedule
from shoal.core.selection import Selection
from shoal.core.shards import SHARDS_MAX
from shoal.mistakes import NAME, TEXT_CHARS_MAX, Mistake, Place, of_error, of_validation, together
from shoal.plugins import (
    KINDS,
    PEER_KINDS,
    algorithms,
    field_notes,
    filters,
    mixings,
    schedules,
    selections,
    suggestion,
)
from shoal.strict_json import flaw, mended

T = TypeVar("T")

FILTERS_MAX = 8

MISTAKES_MAX = 50
"""Of one job file, that are told at once."""

SILENCE_S, SILENCE_PATIENCES = 60.0, 6
"""So long, and so many times as long as for a silent partner, peers wait at the end for anything new at all."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HeldOut(_Table):
    """An evaluation at the coordinator, of every version, on data that no node has. Needs torch there."""

    learner: str = Field(description="`package.module:name` of a learner that is installed with the coordinator")
    options: dict[str, str | int | float | bool] = Field(default_factory=dict, description="passed to that learner")


class Limits(_Table):
    """What the coordinator refuses in this job, or does not count."""

    update_norm_max: float = Field(0.0, ge=0, description="greatest Euclidean norm of an update; 0: any")
    weight_max: float = Field(1e9, gt=0, le=1e15, description="greatest number of examples that a node may claim")
    norm_factor: float = Field(
        Bounds.norm_factor,
        ge=0,
        allow_inf_nan=False,
        description="an update may be so many times as long as is typical of the job's nodes (three at least); 0: any",
    )
    share_max: float = Field(
        Bounds.share_max,
        ge=0.5,
        le=1,
        description="greatest share of a version's weight that one node has, in jobs of three nodes or more; 1: all",
    )

    def bounds(self) -> Bounds:
        """What one node can do to a version at most. Raises `InvalidJob`."""
        return Bounds(self.norm_factor, self.share_max)


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
        0,
        ge=0,
        le=4096,
        description="local rounds begin when so many peers are there, oneself included; 0: all of the roster",
    )
    period_s: float = Field(1.0, gt=0, le=60, description="seconds between two turns of asking who is there")
    patience_s: float = Field(
        10.0, gt=0, le=3600, description="seconds until a silent partner is not waited for (pairwise)"
    )

    bytes_per_hour: float = Field(
        0.0,
        ge=0,
        le=1e18,
        allow_inf_nan=False,
        description="bytes that each peer may send and receive in an hour among peers; 0: any number",
    )

    @field_validator("mixing")
    @classmethod
    def _named(cls, table: dict[str, Any]) -> dict[str, Any]:
        return _named(table)

    def budget(self, own: float = 0.0) -> float:
        """Bytes per hour that hold for a peer whose machine has a limit of its own; 0: any number.

        Raises `InvalidJob` where the way of mixing cannot keep to one.
        """
        limits = [limit for limit in (self.bytes_per_hour, own) if limit]
        if limits and not self.build_mixing().asks:
            able = [name for name, kind in mixings().items() if kind.asks]
            raise InvalidJob(
                f"mixing {self.mixing['name']} sends models unasked, so it cannot keep to a budget of bytes",
                code="job.fit",
                hint=f"choose mixing {', '.join(able)}, or set no bytes_per_hour",
            )
        return min(limits, default=0.0)

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


class _JobFile(_Table):
    """The keys of a job file, each right for itself."""

    name: str = Field(pattern=NAME, description="stands in addresses; 1 to 63 of a-z, 0-9, '.', '_', '-'")
    title: str = Field("", max_length=200, description="what people read")
    rounds: int = Field(0, ge=0, le=1_000_000, description="versions to make; 0: what the schedule proposes")
    seed: int = Field(0, ge=0, lt=2**63, description="source of all randomness of the job")
    sums: Literal["float64", "fixed"] = Field(
        "float64", description="how updates are added; fixed: the same bits in any order of arrival"
    )
    shards: int = Field(
        1, ge=1, le=SHARDS_MAX, description="parts that the coordinator splits the model into, which sum and step apart"
    )
    patience_s: float = Field(300.0, gt=0, description="seconds to wait for an initial model and final evaluations")
    learner: str = Field("", description="`file.py:name` or `package.module:name`, for simulation and for the demo")
    options: dict[str, str | int | float | bool] = Field(default_factory=dict, description="passed to the learner")
    algorithm: dict[str, Any] = Field(default_factory=lambda: {"name": "fedavg"}, description="what is computed")
    schedule: dict[str, Any] = Field(default_factory=lambda: {"name": "rounds"}, description="who is asked, and when")
    selection: dict[str, Any] = Field(
        default_factory=lambda: {"name": "uniform"}, description="which nodes may be asked, and which of them are"
    )
    filters: list[dict[str, Any]] = Field(
        default_factory=list, max_length=FILTERS_MAX, description="what happens to updates on their way, in this order"
    )
    limits: Limits = Field(default_factory=Limits)
    held_out: HeldOut | None = None
    gossip: Gossip = Field(default_factory=Gossip)

    @field_validator("algorithm", "schedule", "selection")
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
            versions,
            self.seed,
            self.sums,
            start,
            self.patience_s,
            filters,
            gossip.return_s,
            gossip.gate,
            first,
            term,
            self.build_selection(),
            self.shards,
            self.limits.bounds(),
        )

    def build_algorithm(self) -> Algorithm:
        """The algorithm, configured. Raises `InvalidJob`."""
        return _build("algorithm", self.algorithm, algorithms())

    def build_schedule(self) -> Schedule:
        """The schedule, configured. Raises `InvalidJob`."""
        return _build("schedule", self.schedule, schedules())

    def build_selection(self) -> Selection:
        """Who takes part, configured. Raises `InvalidJob`."""
        return _build("selection", self.selection, selections())

    def build_filters(self) -> list[Filter]:
        """The filters, configured. Raises `InvalidJob`."""
        return [_build("filter", table, filters()) for table in self.filters]

    def shown_through(self) -> tuple[Filter, ...]:
        """The filters that models go through which peers show each other: those that can be used there."""
        return for_models(self.build_filters()) if self.gossip.build_mixing().filtered else ()


class JobSpec(_JobFile):
    """A job: the keys of a job file. Whoever makes one gets `InvalidJob` at once, with all that is wrong with it."""

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(values, JobSpec):
            return handler(values)
        if not isinstance(values, dict):
            raise InvalidJob(
                f"a job is a table of keys, not {type(values).__name__}", hint='write {"name": "first", "rounds": 10}'
            )
        if mistakes := check_job(values):
            raise together(mistakes)
        return handler(values)


def _build(what: str, table: dict[str, Any], known: Mapping[str, type[T]]) -> T:
    for mistake in _mistakes_of_table(what, (), table, known):
        raise mistake.error()
    values = {key: value for key, value in table.items() if key != "name"}
    return TypeAdapter(known[table["name"]]).validate_python(values)


def _mistakes_of_table(
    what: str, place: Place, table: dict[str, Any], known: Mapping[str, type[Any]]
) -> Iterator[Mistake]:
    """What is wrong with a table that names a class and has its fields."""
    name, code = table["name"], f"job.{what}"
    if name not in known:
        text = f"no {what} is called {name!r}"[:TEXT_CHARS_MAX]
        yield Mistake((*place, "name"), text, suggestion(name, known), code)
        return
    allowed = [f.name for f in fields(known[name])]
    values = {key: value for key, value in table.items() if key != "name"}
    for key in [key for key in values if key not in allowed]:
        text = f"{what} {name}: no field {key!r}"[:TEXT_CHARS_MAX]
        yield Mistake((*place, key), text, suggestion(key, allowed), code)
    missing = [
        f.name for f in fields(known[name]) if f.default is f.default_factory is MISSING and f.name not in values
    ]
    for key in missing:
        text, note = f"{what} {name}: {key} is missing, and has no default", field_notes(known[name]).get(key, "")
        yield Mistake((*place, key), text, f"say {key} = …{f': {note}' if note else ''}", code)
    try:
        TypeAdapter(known[name]).validate_python({key: value for key, value in values.items() if key in allowed})
    except ValidationError as error:
        for inner, text, _ in of_validation(error, f"{what} {name}: "):
            if not inner or inner[0] not in missing:
                yield Mistake((*place, *inner), text)
    except InvalidJob as error:
        yield of_error(error, place, allowed)


def _mistakes_of_file(error: ValidationError) -> Iterator[Mistake]:
    """What is wrong with the file itself, without what its tables name."""
    tables: dict[str, type[BaseModel]] = {"limits": Limits, "held_out": HeldOut, "gossip": Gossip}
    for place, text, unknown in of_validation(error):
        table = tables.get(str(place[0]), _JobFile) if len(place) > 1 else _JobFile
        yield Mistake(place, text, suggestion(str(place[-1]), table.model_fields) if unknown else "")


def parse_job(values: dict[str, Any]) -> JobSpec:
    """Return the job of TOML or JSON values. Raises `InvalidJob`."""
    return JobSpec.model_validate(values)


def check_job(values: dict[str, Any]) -> list[Mistake]:
    """All that is wrong with a job, and where; at most `MISTAKES_MAX`. Empty: `parse_job` takes it."""
    return list(islice(_all_mistakes(values), MISTAKES_MAX))


def _all_mistakes(values: dict[str, Any]) -> Iterator[Mistake]:
    """File first, then what its tables name; whether they fit is asked when nothing else is wrong."""
    right = True
    for mistake in chain(_file_mistakes(values), _table_mistakes(values)):
        right = False
        yield mistake
    if right:
        yield from _misfits(_JobFile.model_validate(values))


def _file_mistakes(values: dict[str, Any]) -> Iterator[Mistake]:
    for key, value in values.items():
        if why := flaw([key, value]):
            yield Mistake((mended(key),), f"{mended(key)}: {why}"[:TEXT_CHARS_MAX], "leave that character out")
    try:
        _JobFile.model_validate(values)
    except ValidationError as error:
        yield from _mistakes_of_file(error)


def _table_mistakes(values: dict[str, Any]) -> Iterator[Mistake]:
    """Those of the tables that can be looked at, whatever else is wrong."""
    listed, gossip = values.get("filters"), values.get("gossip")
    several = listed[:FILTERS_MAX] if isinstance(listed, list) else []
    found: list[tuple[str, Place, Any, Mapping[str, type[Any]]]] = [
        ("algorithm", ("algorithm",), values.get("algorithm"), algorithms()),
        ("schedule", ("schedule",), values.get("schedule"), schedules()),
        ("selection", ("selection",), values.get("selection"), selections()),
        *(("filter", ("filters", index), table, filters()) for index, table in enumerate(several)),
        ("mixing", ("gossip", "mixing"), gossip.get("mixing") if isinstance(gossip, dict) else None, mixings()),
    ]
    for what, place, table, known in found:
        if isinstance(table, dict) and isinstance(table.get("name"), str):
            yield from _mistakes_of_table(what, place, table, known)


def _misfits(spec: _JobFile) -> Iterator[Mistake]:
    """What cannot work together, each right for itself."""
    algorithm, schedule = spec.build_algorithm(), spec.build_schedule()
    yield from misfits.of_schedule(algorithm, schedule)
    yield from misfits.of_shards(spec.shards, algorithm, schedule)
    yield from misfits.of_selection(schedule, spec.build_selection())
    if spec.gossip.allowed:
        yield from misfits.of_carrying_on(algorithm)
    try:
        check_filters(spec.build_filters())
    except InvalidJob as error:
        yield of_error(error, ("filters",), ())
    else:
        if spec.plan().differs:
            yield from misfits.of_differences(schedule, spec.gossip.allowed)
    try:
        spec.gossip.failover()
        spec.gossip.build_mixing()
        spec.gossip.budget()
    except InvalidJob as error:
        yield of_error(error, ("gossip",), Gossip.model_fields)


def load_job(job: str | Path | Mapping[str, Any]) -> JobSpec:
    """Return the job of a TOML file, or of a mapping with its keys.

    Raises `InvalidJob` that names file, line or key.
    """
    if isinstance(job, Mapping):
        return parse_job(dict(job))
    given: Any = job
    if not isinstance(given, str | Path):
        text = f"a job is the path of a TOML file, or a mapping with its keys, not {type(given).__name__}"
        raise InvalidJob(text, hint='load_job("job.toml") or load_job({"name": "first", "rounds": 10})')
    path = Path(given)
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


@cache
def job_schema() -> dict[str, Any]:
    """The JSON Schema of a job file, with the fields of all that is installed; always the same object: only to read."""
    schema = JobSpec.model_json_schema()
    definitions = schema.setdefault("$defs", {})
    for what, known in {**KINDS, **PEER_KINDS}.items():
        options = []
        for name, kind in known().items():
            table = TypeAdapter(kind).json_schema()
            table["properties"] = {"name": {"const": name}, **table.get("properties", {})}
            for field, note in field_notes(kind).items():
                if field in table["properties"]:
                    table["properties"][field]["description"] = note
            table["required"], table["additionalProperties"] = ["name"], False
            definitions[f"{what}-{name}"] = table
            options.append({"$ref": f"#/$defs/{what}-{name}"})
        if what == "filter":
            schema["properties"]["filters"]["items"] = {"oneOf": options}
        else:
            place = definitions["Gossip"]["properties"] if what == "mixing" else schema["properties"]
            usual = Gossip().mixing if what == "mixing" else JobSpec(name="x").model_dump()[what]
            place[what] = {"oneOf": options, "description": place[what].get("description"), "default": usual}
    schema["title"] = "A shoal job"
    return schema


def settings_of(kind: type[Any]) -> list[tuple[str, str, Any]]:
    """(field, type, default) of an algorithm, schedule or filter, for people."""
    return [(f.name, str(f.type), None if f.default is MISSING else f.default) for f in fields(kind)]
