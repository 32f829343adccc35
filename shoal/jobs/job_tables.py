"""Tables of a job file, and the classes that they name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from shoal.core.errors import InvalidJob
from shoal.core.failover.failover import Failover
from shoal.core.gossip.mixer import Mixing
from shoal.core.gossip.termination import TerminationRule
from shoal.core.job.early_stop import EarlyStop
from shoal.core.job.job_plan import JobPlan
from shoal.core.job.lr_schedule import LrSchedule, LrScheduleKind
from shoal.core.job.stages import Stage
from shoal.core.job.update_bounds import UpdateBounds
from shoal.plugins import field_notes, mixings, suggestion
from shoal.validation.config_errors import TEXT_CHARS_MAX, ConfigError, Place, error_of_table, validation_errors
from shoal.validation.validators import validator_of

T = TypeVar("T")

SILENCE_S, SILENCE_PATIENCES = 60.0, 6
"""Peers end when they have received nothing new for this many seconds, or this many exchange timeouts if longer."""


class JobTable(BaseModel):
    """A table of a job file: frozen, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    common: ClassVar[str] = ""
    """A hint for an unknown key, where the table has too many keys to list them."""


class HeldOutEvaluation(JobTable):
    """Evaluation of every version at the coordinator, on data that no node has. Needs torch there."""

    learner: str = Field(description="`package.module:name` of a learner that is installed with the coordinator")
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="keyword arguments of that learner"
    )


class UpdateLimits(JobTable):
    """Limits for updates: the coordinator refuses, or discounts, what exceeds them."""

    update_norm_max: float = Field(0.0, ge=0, description="maximum Euclidean norm of an update; 0: no limit")
    weight_max: float = Field(1e9, gt=0, le=1e15, description="maximum weight of an update: the number of its examples")
    norm_factor: float = Field(
        UpdateBounds.norm_factor,
        ge=0,
        allow_inf_nan=False,
        description="maximum norm of an update, as a multiple of the typical norm in the job; 0: no limit",
    )
    weight_fraction_max: float = Field(
        UpdateBounds.weight_fraction_max,
        ge=0.5,
        le=1,
        description="maximum fraction of a version's weight for one node, with three nodes or more; 1: no limit",
    )

    def bounds(self) -> UpdateBounds:
        """Return the bounds of one node's influence on a version. Raises `InvalidJob`."""
        return UpdateBounds(self.norm_factor, self.weight_fraction_max)


class LrScheduleTable(JobTable):
    """The local learning rate of each round, as a fraction of the algorithm's `lr`."""

    kind: LrScheduleKind = Field(
        LrSchedule.kind,
        description="constant; cosine or linear: falls to `final_fraction`; step: times `step_factor` every "
        "`step_rounds` rounds",
    )
    warmup_rounds: int = Field(
        LrSchedule.warmup_rounds, ge=0, le=1_000_000, description="rounds at the start that rise to `lr` in equal steps"
    )
    final_fraction: float = Field(
        LrSchedule.final_fraction, ge=0, le=1, description="fraction of `lr` that cosine and linear approach at the end"
    )
    step_rounds: int = Field(LrSchedule.step_rounds, ge=1, description="rounds between two steps")
    step_factor: float = Field(LrSchedule.step_factor, gt=0, le=1, description="factor of each step")

    def schedule(self) -> LrSchedule:
        """Return the schedule for the hub."""
        return LrSchedule(**self.model_dump())


class EarlyStopTable(JobTable):
    """The rule by which a job ends before its last round."""

    metric: str = Field(
        EarlyStop.metric,
        pattern="^(eval|train)/.",
        max_length=200,
        description="metric of nodes; names that end in loss or error are better when smaller, others when greater",
    )
    rounds: int = Field(
        EarlyStop.rounds, ge=0, le=1_000_000, description="rounds without improvement after which the job ends; 0: any"
    )
    min_change: float = Field(
        EarlyStop.min_change, ge=0, allow_inf_nan=False, description="smallest change that counts as an improvement"
    )
    target: float | None = Field(
        EarlyStop.target, allow_inf_nan=False, description="value at which the job ends; left out: none"
    )

    def rule(self) -> EarlyStop:
        """Return the rule for the hub."""
        return EarlyStop(**self.model_dump())


class StageTable(JobTable):
    """A stage of a network that grows, and what ends it first."""

    rounds: int = Field(Stage.rounds, ge=0, le=1_000_000, description="rounds after which the stage ends; 0: any")
    metric: str = Field(
        Stage.plateau.metric, pattern="^(eval|train)/.", max_length=200, description="metric as in `early_stop`"
    )
    patience: int = Field(
        Stage.plateau.rounds,
        ge=0,
        le=1_000_000,
        description="rounds without improvement after which the stage ends; 0: any",
    )
    min_change: float = Field(
        Stage.plateau.min_change,
        ge=0,
        allow_inf_nan=False,
        description="smallest change that counts as an improvement",
    )

    def stage(self) -> Stage:
        """Return the stage for the hub."""
        return Stage(self.rounds, EarlyStop(self.metric, self.patience, self.min_change))


class GossipConfig(JobTable):
    """Settings of a job among peers: after a failover, and in jobs without a coordinator."""

    common: ClassVar[str] = (
        "common keys: allowed = true (nodes may continue the job as peers), mixing, local_rounds, min_peers, "
        "coordinator_timeout_s; the mode of a running job is changed by: shoal switch JOB gossip"
    )
    allowed: bool = Field(False, description="let nodes continue the job as peers, by failover or by command")
    mixing: dict[str, Any] = Field(
        default_factory=lambda: {"name": "pairwise"}, description="how peers average their models"
    )
    coordinator_timeout_s: float = Field(
        Failover.coordinator_timeout_s,
        gt=0,
        description="seconds without an answer after which a node suspects the coordinator",
    )
    suspicion_s: float = Field(
        Failover.suspicion_s, gt=0, description="seconds of suspicion before nodes continue as peers"
    )
    failover_quorum: Literal["any", "majority"] | int = Field(
        Failover.failover_quorum,
        description="nodes that must miss the coordinator: any (any two), majority (of the job's nodes), or a number",
    )
    min_gossip_s: float = Field(
        Failover.min_gossip_s, ge=0, description="minimum seconds in mode gossip after a failover"
    )
    open_exchanges_timeout_s: float = Field(
        Failover.open_exchanges_timeout_s, gt=0, description="seconds to wait for open exchanges before the hand-back"
    )
    handback_timeout_s: float = Field(
        JobPlan.handback_timeout_s,
        gt=0,
        description="seconds that the coordinator waits for models during the hand-back",
    )
    accuracy_drop_max: float = Field(
        0.02,
        ge=0,
        le=1,
        description="accuracy that the hand-back may lose; the job pauses beyond it; 0: not measured",
    )
    local_rounds: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="local rounds of each peer in a job without a coordinator; 0: as many as the job's `rounds`",
    )
    convergence_tol: float = Field(
        TerminationRule.convergence_tol,
        gt=0,
        lt=1,
        description="relative distance below which models count as equal at the end",
    )
    final_exchanges_max: int = Field(
        TerminationRule.final_exchanges_max,
        ge=0,
        le=100_000,
        description="exchanges at the end after which the job ends although models still differ",
    )
    loss_ratio_max: float = Field(
        0.0,
        ge=0,
        description="reject a model whose loss on local data exceeds this multiple of the own loss, plus 0.5; 0: never",
    )
    min_peers: int = Field(
        0,
        ge=0,
        le=4096,
        description="peers, this one included, that must be present before local rounds begin; 0: the whole roster",
    )
    probe_interval_s: float = Field(1.0, gt=0, le=60, description="seconds between two probes of other peers")
    exchange_timeout_s: float = Field(
        10.0, gt=0, le=3600, description="seconds to wait for a silent partner (pairwise)"
    )

    bytes_per_hour: float = Field(
        0.0,
        ge=0,
        le=1e18,
        allow_inf_nan=False,
        description="bytes per hour that each peer may send to and receive from peers; 0: no limit",
    )

    @field_validator("mixing")
    @classmethod
    def check_name(cls, table: dict[str, Any]) -> dict[str, Any]:
        return check_name(table)

    def budget(self, own: float = 0.0) -> float:
        """Return the limit in bytes per hour for a peer whose machine has the limit `own`; 0: no limit.

        Raises `InvalidJob` when the mixing cannot keep a limit.
        """
        limits = [limit for limit in (self.bytes_per_hour, own) if limit]
        if limits and not self.build_mixing().requests_first:
            able = [name for name, kind in mixings().items() if kind.requests_first]
            raise InvalidJob(
                f"mixing {self.mixing['name']} sends models without a request, so it cannot limit bytes",
                code="job.fit",
                hint=f"choose mixing {', '.join(able)}, or set no bytes_per_hour",
            )
        return min(limits, default=0.0)

    def failover(self) -> Failover:
        """Return the rule of failover. Raises `InvalidJob`."""
        return Failover(
            self.coordinator_timeout_s,
            self.suspicion_s,
            self.failover_quorum,
            self.min_gossip_s,
            self.open_exchanges_timeout_s,
        )

    def build_drain(self, rounds: int, linger_s: float) -> TerminationRule:
        """Return the rule by which peers end after `rounds` local rounds. Raises `InvalidJob`."""
        silence_s = max(SILENCE_S, SILENCE_PATIENCES * self.exchange_timeout_s)
        return TerminationRule(
            rounds, self.final_exchanges_max, self.convergence_tol, linger_s=linger_s, silence_s=silence_s
        )

    def build_mixing(self) -> Mixing:
        """Return the configured mixing. Raises `InvalidJob`."""
        table = (
            {"exchange_timeout_s": self.exchange_timeout_s, **self.mixing}
            if self.mixing["name"] == "pairwise"
            else self.mixing
        )
        return build("mixing", table, mixings())


def as_tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's values with each name that stands for a table written as one: `"fedavg"` is
    `{"name": "fedavg"}`."""
    found = {**values}
    for what in ("algorithm", "schedule", "selection"):
        if what in values:
            found[what] = _as_table(values[what])
    if isinstance(kind := values.get("lr_schedule"), str):
        found["lr_schedule"] = {"kind": kind}
    if isinstance(filters := values.get("filters"), list):
        found["filters"] = [_as_table(one) for one in filters]
    if isinstance(gossip := values.get("gossip"), Mapping) and "mixing" in gossip:
        found["gossip"] = {**gossip, "mixing": _as_table(gossip["mixing"])}
    return found


def _as_table(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def check_name(table: dict[str, Any]) -> dict[str, Any]:
    """Return the table. Raises `ValueError` when it has no name."""
    if not isinstance(table.get("name"), str):
        raise ValueError('needs name = "…"')
    return table


def build(what: str, table: dict[str, Any], known: Mapping[str, type[T]]) -> T:
    """Return an instance of the class that a table names. Raises `InvalidJob`."""
    for mistake in table_errors(what, (), table, known):
        raise mistake.error()
    values = {key: value for key, value in table.items() if key != "name"}
    return validator_of(known[table["name"]]).validate_python(values)


def table_errors(
    what: str, place: Place, table: dict[str, Any], known: Mapping[str, type[Any]]
) -> Iterator[ConfigError]:
    """Yield the mistakes of a table that names a class and sets its fields."""
    name, code = table["name"], f"job.{what}"
    if name not in known:
        text = f"no {what} is called {name!r}"[:TEXT_CHARS_MAX]
        yield ConfigError((*place, "name"), text, suggestion(name, known), code)
        return
    allowed = [f.name for f in fields(known[name])]
    values = {key: value for key, value in table.items() if key != "name"}
    for key in [key for key in values if key not in allowed]:
        text = f"{what} {name}: no field {key!r}"[:TEXT_CHARS_MAX]
        yield ConfigError((*place, key), text, suggestion(key, allowed), code)
    missing = [
        f.name for f in fields(known[name]) if f.default is f.default_factory is MISSING and f.name not in values
    ]
    for key in missing:
        text, note = f"{what} {name}: {key} is missing, and has no default", field_notes(known[name]).get(key, "")
        yield ConfigError((*place, key), text, f"set {key} = …{f': {note}' if note else ''}", code)
    try:
        validator_of(known[name]).validate_python({key: value for key, value in values.items() if key in allowed})
    except ValidationError as error:
        for inner, text, _ in validation_errors(error, f"{what} {name}: "):
            if not inner or inner[0] not in missing:
                yield ConfigError((*place, *inner), text)
    except InvalidJob as error:
        yield error_of_table(error, place, allowed)
