"""Job files: TOML, validated, with a published JSON Schema.

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

The tables `algorithm`, `schedule`, `selection`, `filters` and `gossip.mixing` take the fields of the class that they
name; a name alone, `algorithm = "fedavg"`, is a table with that name. `preset` names an algorithm and a schedule
together; a schedule that is left out follows from the algorithm (`shoal.jobs.presets`). An unknown key is an error.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.algorithm.filter import Filter, check_filters, model_filters
from shoal.core.algorithm.sharding import SHARDS_MAX
from shoal.core.errors import InvalidJob
from shoal.core.errors.ranges import type_texts
from shoal.core.job.job_plan import JobPlan
from shoal.core.protocol.message import BlobRef
from shoal.core.scheduling.schedule import Schedule
from shoal.core.scheduling.selection import Selection
from shoal.jobs.job_tables import (
    EarlyStopTable,
    GossipConfig,
    HeldOutEvaluation,
    JobTable,
    LrScheduleTable,
    StageTable,
    UpdateLimits,
    as_tables,
    build,
    check_name,
    table_errors,
)
from shoal.jobs.presets import PRESETS, complete, default_schedule, preset_errors
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
from shoal.validation import config_checks
from shoal.validation.config_errors import (
    NAME,
    TEXT_CHARS_MAX,
    ConfigError,
    Place,
    combined_error,
    error_of_table,
    validation_errors,
)
from shoal.validation.strict_json import sanitize, text_flaw

T = TypeVar("T")

FILTERS_MAX = 8

STAGES_MAX = 32

MISTAKES_MAX = 50
"""Mistakes of one job file that are reported together."""


class _JobFile(JobTable):
    """The keys of a job file, each validated by itself."""

    common: ClassVar[str] = (
        "common keys: name, preset, rounds, seed, learner; tables: algorithm, schedule, gossip, limits"
    )
    name: str = Field(pattern=NAME, description="identifier in URLs; 1 to 63 of a-z, 0-9, '.', '_', '-'")
    title: str = Field("", max_length=200, description="title for people")
    preset: str = Field("", description="algorithm and schedule by one name, such as fedavg, fedbuff, dynamic or fda")
    rounds: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="model versions to make: one a round under schedule `rounds`; 0: 10, or no limit if nodes train on",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="seed of the job's randomness")
    aggregation_precision: Literal["float64", "fixed"] = Field(
        "float64", description="number format of sums of updates; fixed: the same result whatever the order of arrival"
    )
    shards: int = Field(
        1, ge=1, le=SHARDS_MAX, description="parts of the model that the coordinator aggregates independently"
    )
    init_timeout_s: float = Field(300.0, gt=0, description="seconds to wait for an initial model and final evaluations")
    checkpoint_every: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="versions from one checkpoint, a model kept as long as the job, to the next; 0: none",
    )
    learner: str = Field(
        "",
        description="`file.py:name` or `package.module:name`, for `shoal simulate` and `shoal peer`; a coordinator's "
        "nodes name theirs by `shoal join --learner`",
    )
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="keyword arguments of the learner"
    )
    base_model: str = Field(
        "",
        pattern="^([0-9a-f]{64})?$",
        description="SHA-256 of the frozen tensors that all nodes must have; left out: the first model decides",
    )
    algorithm: dict[str, Any] = Field(
        default_factory=lambda: {"name": "fedavg"}, description="how nodes train and how updates are aggregated"
    )
    schedule: dict[str, Any] = Field(
        default_factory=lambda: {"name": "rounds"},
        description="how many nodes are asked, and when a version is made; left out: as the algorithm needs",
    )
    selection: dict[str, Any] = Field(
        default_factory=lambda: {"name": "uniform"}, description="which nodes may be asked, and how they are sampled"
    )
    filters: list[dict[str, Any]] = Field(
        default_factory=list,
        max_length=FILTERS_MAX,
        description="compression filters for updates, applied in this order",
    )
    limits: UpdateLimits = Field(
        default_factory=UpdateLimits, description="limits of one node's influence on the model"
    )
    lr_schedule: LrScheduleTable = Field(
        default_factory=LrScheduleTable, description="local learning rate of each round; a kind alone will do"
    )
    early_stop: EarlyStopTable = Field(
        default_factory=EarlyStopTable, description="end of the job when a metric no longer improves, or is good enough"
    )
    stages: list[StageTable] = Field(
        default_factory=list,
        max_length=STAGES_MAX,
        description="stages of a network that grows; the last one ends with the job",
    )
    held_out: HeldOutEvaluation | None = Field(
        None, description="evaluation of each version at the coordinator, on data of its own"
    )
    gossip: GossipConfig = Field(
        default_factory=GossipConfig,
        description="training by nodes as peers: after the coordinator has failed, and in jobs without one",
    )

    @field_validator("algorithm", "schedule", "selection")
    @classmethod
    def _check_name(cls, table: dict[str, Any]) -> dict[str, Any]:
        return check_name(table)

    @field_validator("filters")
    @classmethod
    def _check_filter_names(cls, tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [check_name(table) for table in tables]

    def plan(self, start: BlobRef | None = None, first: int = 0, term: int = 0) -> JobPlan:
        """Return the plan for the hub. `start` is the model of version `first`, made in that term."""
        versions = self.rounds or self.build_schedule().versions
        filters = tuple(self.build_filters())
        gossip = self.gossip
        return JobPlan(
            versions,
            self.seed,
            self.aggregation_precision,
            start,
            self.init_timeout_s,
            filters,
            gossip.handback_timeout_s,
            gossip.accuracy_drop_max,
            first,
            term,
            self.build_selection(),
            self.shards,
            self.limits.bounds(),
            self.lr_schedule.schedule(),
            self.early_stop.rule(),
            self.base_model,
            tuple(one.stage() for one in self.stages),
        )

    def build_algorithm(self) -> Algorithm:
        """Return the configured algorithm. Raises `InvalidJob`."""
        return build("algorithm", self.algorithm, algorithms())

    def build_schedule(self) -> Schedule:
        """Return the configured schedule. Raises `InvalidJob`."""
        return build("schedule", self.schedule, schedules())

    def build_selection(self) -> Selection:
        """Return the configured selection. Raises `InvalidJob`."""
        return build("selection", self.selection, selections())

    def build_filters(self) -> list[Filter]:
        """Return the configured filters. Raises `InvalidJob`."""
        return [build("filter", table, filters()) for table in self.filters]

    def shown_through(self) -> tuple[Filter, ...]:
        """Return the filters for models that peers exchange: those that apply to whole models."""
        return model_filters(self.build_filters()) if self.gossip.build_mixing().supports_filters else ()


class JobSpec(_JobFile):
    """A validated job. The constructor raises `InvalidJob`, which lists all mistakes."""

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
            raise combined_error(mistakes)
        return handler(complete(values))


NEAR = 0.8
"""Minimum similarity of a key and a misspelled one, a ratio of `difflib`."""

TABLES: dict[str, type[JobTable]] = {
    "limits": UpdateLimits,
    "lr_schedule": LrScheduleTable,
    "early_stop": EarlyStopTable,
    "stages": StageTable,
    "held_out": HeldOutEvaluation,
    "gossip": GossipConfig,
}


def _file_key_errors(error: ValidationError, values: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Yield mistakes in the keys of the file."""
    for place, text, unknown in validation_errors(error):
        table, key = TABLES.get(str(place[0]), _JobFile) if len(place) > 1 else _JobFile, str(place[-1])
        elsewhere = _key_of_table(key, values) if table is _JobFile else ""
        yield ConfigError(place, text, (elsewhere or suggestion(key, table.model_fields, table.common)) * unknown)


def _key_of_table(key: str, values: Mapping[str, Any]) -> str:
    """Return a hint for an unknown key of the file that belongs in one of its tables; else ""."""
    if key == "job":
        return "leave out the line [job]: its keys stand at the beginning of the file"
    keys = {what: list(table.model_fields) for what, table in TABLES.items()}
    for what, usual, known in (("schedule", "rounds", schedules()), ("algorithm", "fedavg", algorithms())):
        named = table.get("name") if isinstance(table := values.get(what), dict) else usual
        if kind := known.get(str(named)):
            keys[what] = [field.name for field in fields(kind)]
    if get_close_matches(key, _JobFile.model_fields, 1, NEAR) and key not in chain(*keys.values()):
        return ""
    for cutoff in (1.0, NEAR):  # a key of another table comes before one that is misspelled
        for what, known_keys in keys.items():
            if close := get_close_matches(key, known_keys, 1, cutoff):
                return f"did you mean {close[0]!r} in [{what}]?"
    return ""


def is_checkpoint(version: int, every: int) -> bool:
    """Return whether a version is a checkpoint of a job whose `checkpoint_every` is `every`."""
    return every > 0 and version > 0 and version % every == 0


def parse_job(values: dict[str, Any]) -> JobSpec:
    """Return the job for TOML or JSON values. Raises `InvalidJob`."""
    return JobSpec.model_validate(values)


def check_job(values: dict[str, Any]) -> list[ConfigError]:
    """Return up to `MISTAKES_MAX` mistakes of a job, with their places. Without any, `parse_job` accepts it."""
    return list(islice(_all_errors(values), MISTAKES_MAX))


def _all_errors(values: dict[str, Any]) -> Iterator[ConfigError]:
    """Yield mistakes of keys, then of tables, then of their combination if there are no others."""
    if mistakes := list(preset_errors(as_tables(values))):
        yield from mistakes
        return
    values = complete(values)
    right = True
    for mistake in chain(_file_errors(values), _table_errors(values)):
        right = False
        yield mistake
    if right:
        yield from _combination_errors(_JobFile.model_validate(values))


def _file_errors(values: dict[str, Any]) -> Iterator[ConfigError]:
    for key, value in values.items():
        if why := text_flaw([key, value]):
            yield ConfigError((sanitize(key),), f"{sanitize(key)}: {why}"[:TEXT_CHARS_MAX], "leave that character out")
    try:
        _JobFile.model_validate(values)
    except ValidationError as error:
        yield from _file_key_errors(error, values)


def _table_errors(values: dict[str, Any]) -> Iterator[ConfigError]:
    """Yield mistakes of the tables that name a class."""
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
        if isinstance(table, dict) and isinstance(name := table.get("name"), str):
            if what == "schedule" and name not in known and name in PRESETS:
                hint = f'write preset = "{name}", or leave the schedule out: it follows from the algorithm'
                yield ConfigError((*place, "name"), f"{name!r} is a preset, not a schedule", hint, "job.schedule")
                continue
            yield from table_errors(what, place, table, known)


def _combination_errors(spec: _JobFile) -> Iterator[ConfigError]:
    """Yield mistakes of combination: tables that are valid but do not fit each other."""
    algorithm, schedule = spec.build_algorithm(), spec.build_schedule()
    yield from config_checks.of_schedule(algorithm, schedule)
    yield from config_checks.of_shards(spec.shards, algorithm, schedule)
    if not spec.lr_schedule.schedule().is_constant:
        yield from config_checks.of_lr_schedule(algorithm)
    yield from config_checks.of_selection(schedule, spec.build_selection())
    if spec.stages:
        yield from config_checks.of_stages(spec.plan(), algorithm, schedule, spec.gossip.allowed)
    if spec.gossip.allowed:
        yield from config_checks.of_carrying_on(algorithm)
    if spec.filters:
        yield from config_checks.of_filters(algorithm)
    try:
        check_filters(spec.build_filters())
    except InvalidJob as error:
        yield error_of_table(error, ("filters",), ())
    else:
        if spec.plan().sends_differences:
            yield from config_checks.of_differences(schedule, spec.gossip.allowed)
    try:
        spec.gossip.failover()
        spec.gossip.build_mixing()
        spec.gossip.budget()
    except InvalidJob as error:
        yield error_of_table(error, ("gossip",), GossipConfig.model_fields)


def load_job(job: str | Path | Mapping[str, Any]) -> JobSpec:
    """Return the job of a TOML file, or of a mapping with the same keys.

    Raises `InvalidJob`, which names the file, line or key.
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
    """Return the JSON Schema of a job file, with the fields of all installed classes, and with each algorithm's usual
    schedule as `x-schedule`. Cached: do not modify it."""
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
            if what == "algorithm":
                table["x-schedule"] = default_schedule({"name": name})["name"]
            definitions[f"{what}-{name}"] = table
            options.append({"$ref": f"#/$defs/{what}-{name}"})
        if what == "filter":
            schema["properties"]["filters"]["items"] = {"oneOf": options}
        else:
            place = definitions["GossipConfig"]["properties"] if what == "mixing" else schema["properties"]
            usual = GossipConfig().mixing if what == "mixing" else JobSpec(name="x").model_dump()[what]
            place[what] = {"oneOf": options, "description": place[what].get("description"), "default": usual}
    schema["title"] = "A shoal job"
    return schema


def settings_of(kind: type[Any]) -> list[tuple[str, str, Any]]:
    """Return (field, type, default) of an algorithm, schedule or filter."""
    types = type_texts(kind)
    return [(f.name, types[f.name], None if f.default is MISSING else f.default) for f in fields(kind)]
