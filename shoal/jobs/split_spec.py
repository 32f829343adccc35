"""Files of split jobs, which a coordinator serves (`split_jobs` of its settings).

name = "clinics"
learner = "network.py:shapes"
nodes = 2
cut = [2, 4]
rounds = 3
epochs = 2
lr = 0.2

With `parties` instead of `nodes` and `cut`, a job on vertical data: each party has a head of the network.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args

from pydantic import Field, ValidationError, field_validator, model_validator

from shoal.core.errors import InvalidJob
from shoal.core.split.split_plan import LabelPlace, SplitPlan, TurnOrder
from shoal.jobs.job_tables import JobTable, build, check_name
from shoal.jobs.spec import FILTERS_MAX
from shoal.plugins import filters
from shoal.trust.intersection import IDS_MAX
from shoal.validation.config_errors import NAME, ConfigError, combined_error, validation_errors

if TYPE_CHECKING:
    from shoal.learn.split.split_job import SplitJob
    from shoal.learn.split.vertical_job import VerticalJob

CutPoint = Annotated[int, Field(ge=1)] | Annotated[str, Field(min_length=1, max_length=200)]
NAME_CHARS_MAX = 50
PARTIES_MAX = 100
NodeName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^.]+$")]
PRIVATE = {"learner", "options"}
"""Fields that the coordinator's operator alone sees."""


class SplitSpec(JobTable):
    """A split job. Nodes get it from the coordinator, without `PRIVATE`."""

    name: str = Field(pattern=NAME, max_length=NAME_CHARS_MAX, description="name of the job")
    learner: str = Field(
        "",
        description="`file.py:name` or `package.module:name` of the coordinator's learner: model, loss and optimizer, "
        "and one example of any values",
    )
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="keyword arguments of that learner"
    )
    nodes: int = Field(1, ge=1, le=10_000, description="nodes that the first round waits for")
    cut: CutPoint | tuple[CutPoint, CutPoint] | None = Field(
        None, description='modules before the cut, or the name of the module after it; `[2, "head"]`: two cuts'
    )
    parties: list[NodeName] = Field(
        default_factory=list,
        max_length=PARTIES_MAX,
        description="instead of `cut`, for vertical data: names of the nodes, each with the head of that name",
    )
    labels: str = Field(
        "node", max_length=200, description="place of the labels: `node` or `coordinator`, or one of `parties`"
    )
    order: TurnOrder = Field("sequential", description="turns one after another, or all at once")
    ids_max: int = Field(
        0,
        ge=0,
        le=IDS_MAX,
        description="ids that each of two parties may have, whose rows a private set intersection aligns first; "
        "0: row i is the same person at all parties",
    )
    rounds: int = Field(1, ge=1, le=1_000_000, description="rounds, in each of which every node has a turn")
    epochs: float = Field(1.0, gt=0, le=1e6, description="passes over the node's data in a turn")
    steps: int = Field(0, ge=0, le=1_000_000_000, description="batches of a turn; 0: as many as `epochs` needs")
    batch_size: int = Field(32, ge=1, le=1_000_000, description="examples of a batch")
    lr: float = Field(0.1, gt=0, allow_inf_nan=False, description="learning rate of both sides")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of the initial model and of the batches")
    filters: list[dict[str, Any]] = Field(
        default_factory=list, max_length=FILTERS_MAX, description="filters of activations and gradients"
    )
    checkpoint_every: int = Field(
        SplitPlan.checkpoint_every, ge=1, le=10_000, description="batches from one checkpoint of a part to the next"
    )
    turn_timeout_s: float = Field(
        SplitPlan.turn_timeout_s, gt=0, le=86400 * 30, description="seconds without progress that end a turn"
    )

    @field_validator("cut")
    @classmethod
    def _check_cut(cls, cut: Any) -> Any:
        if cut == "auto":
            raise ValueError("no cut is measured here: shoal.simulate_split chooses one and says which")
        return cut

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if (self.cut is None) == (not self.parties):
            raise ValueError("give a cut, or parties for vertical data")
        allowed = self.parties or list(get_args(LabelPlace))
        if self.labels not in allowed:
            raise ValueError(f"labels is {self.labels!r}; use {' or '.join(allowed)}")
        if self.ids_max and len(self.parties) != 2:
            raise ValueError("ids_max needs two parties: align the rows of others before, and leave it out")
        if self.parties and (self.nodes, self.order) != (1, "sequential"):
            raise ValueError("all parties take part in each batch: leave nodes and order out")
        return self

    @field_validator("filters")
    @classmethod
    def _check_filters(cls, tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [check_name(table) for table in tables]

    def job(self) -> SplitJob | VerticalJob:
        """Return the job for a learner. Raises `InvalidJob`. Loads torch."""
        from shoal.learn.split.split_job import SplitJob
        from shoal.learn.split.vertical_job import VerticalJob

        left_out = PRIVATE | {"nodes", "filters", "parties", "ids_max"} | ({"cut", "order"} if self.parties else set())
        values = self.model_dump(exclude=left_out)
        built = [build("filter", table, filters()) for table in self.filters]
        return VerticalJob(**values, filters=built) if self.parties else SplitJob(**values, filters=built)


def parse_split_job(values: object) -> SplitSpec:
    """Return the job for TOML or JSON values. Raises `InvalidJob`, which lists all mistakes."""
    try:
        return SplitSpec.model_validate(values)
    except ValidationError as error:
        mistakes = [ConfigError(place, text) for place, text, _ in validation_errors(error)]
        raise combined_error(mistakes) from None


def load_split_job(path: Path) -> SplitSpec:
    """Return the job of a TOML file, with a learner. Raises `InvalidJob`."""
    try:
        spec = parse_split_job(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidJob(f"{path}: {error}", hint="give the path of a TOML file of a split job") from None
    except InvalidJob as error:
        raise InvalidJob(f"{path}: {error.message}", code=error.code, hint=error.hint) from None
    if not spec.learner:
        raise InvalidJob(f"{path} names no learner", code="learner.missing", hint='add learner = "file.py:name"')
    return spec
