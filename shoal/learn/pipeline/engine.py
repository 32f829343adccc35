"""A model whose stages are at the ranks of a site: `torch.distributed.pipelining` with the schedule 1F1B.

All ranks read whole batches, of which the first stage takes the inputs and the last the targets. Between tasks each
rank holds the whole model on the CPU; in a task its own stage alone is on the device. The forms of activations are
found once, by one pass of a micro-batch through all stages, so that nothing but tensors goes from rank to rank.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from shoal.core.algorithm.capability import Restriction
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.protocol.message import Metrics
from shoal.learn.data.batches import Batch, split
from shoal.learn.data.passes import seed_of
from shoal.learn.seeds import seed_torch
from shoal.learn.site.ranks import Rows
from shoal.learn.site.shards import memory_here
from shoal.learn.split.cut_choice import balanced_cuts, measured_pieces, unmeasured_pieces
from shoal.learn.split.cutting import parts_at
from shoal.learn.training.descent import Descent
from shoal.learn.training.measures import Evaluation, Loss, class_targets
from shoal.learn.training.passes import Autocast, ModelSite, Passes
from shoal.learn.training.weights import TensorRoles, Weights

log = logging.getLogger(__name__)

Cuts = tuple[int | str, ...] | Literal["auto"]
CODE = "learner.pipeline"


@dataclass(frozen=True)
class StageReport:
    """Measurements of one stage in a task."""

    seconds: float
    """Time of all passes through the pipeline."""
    busy_s: float
    """Time in which the stage computed; the rest are bubbles, transfers, and other programs."""
    bytes_sent: int
    """Bytes of activations and gradients that it sent to its neighbors."""
    memory_bytes: int
    """On a card, the most memory in use. Elsewhere the bytes of weights, gradients and the optimizer's state."""


class MeasuredStage(PipelineStage):
    """A stage that measures its computation and counts bytes. Its activations are contiguous, as transfers demand."""

    busy_s = 0.0
    bytes_sent = 0
    autocast: Autocast

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Tensor:
        with self.autocast(self.device):
            output: Tensor = super().forward_maybe_with_nosync(*args, **kwargs)  # type: ignore[no-untyped-call]
        return output.contiguous()

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        start = perf_counter()
        output = super().forward_one_chunk(*args, **kwargs)
        self.busy_s += perf_counter() - start
        return output

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        start = perf_counter()
        super().backward_one_chunk(*args, **kwargs)
        self.busy_s += perf_counter() - start

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._counted(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._counted(super().get_bwd_send_ops(bwd_chunk_id))

    def _counted(self, sends: list[dist.P2POp]) -> list[dist.P2POp]:
        self.bytes_sent += sum(one.tensor.nbytes for one in sends)
        return sends


class MicroLosses:
    """The losses of micro-batches, each weighted by its targets: their sum is the mean over the batch."""

    def __init__(self, loss: Loss, target: Tensor, rows: int, factor: float, autocast: Autocast) -> None:
        self._loss, self._targets, self._autocast = loss, torch.split(target, rows), autocast
        counts = [_targets_in(loss, one) for one in self._targets]
        self._weights = [count / max(1, sum(counts)) for count in counts]
        self._factor, self.total = factor, torch.zeros((), device=target.device)

    def __call__(self, output: Tensor, number: Tensor) -> Tensor:
        """Return the part of a micro-batch, whose last rows may be repeated ones; in the last ones all may be."""
        place = int(number)
        weight = self._weights[place] if place < len(self._targets) else 0.0
        if not weight:
            return (output * 0.0).sum()
        target = self._targets[place]
        with self._autocast(target.device):
            part = self._loss(output[: len(target)], target) * weight
        self.total = self.total + part.detach()
        return part * self._factor


def _targets_in(loss: Loss, target: Tensor) -> int:
    """Return the number of targets over which a loss takes its mean."""
    counted = class_targets(loss, target)
    return len(target) if counted is None else int(counted)


class PipelinedSite(ModelSite):
    """The ranks of a site, each of which trains one stage of a module. Raises `InvalidJob` for a module that cannot be
    cut so."""

    restriction = Restriction(
        frozenset({"corrections", "teaching", "gradients", "optimizer_state"}),
        "each process of a pipeline trains its stage only",
        "use a learner without a Pipeline",
    )

    def __init__(
        self,
        cuts: Cuts,
        microbatches: int,
        module: nn.Module,
        roles: TensorRoles,
        device: torch.device,
        autocast: Autocast,
        reports: list[StageReport],
    ) -> None:
        super().__init__()
        self._module, self._roles, self.device, self.autocast = module, roles, device, autocast
        self._microbatches, self._reports = microbatches, reports
        if microbatches < self.size:
            text = f"{microbatches} micro-batches for a pipeline of {self.size} stages"
            raise InvalidJob(text, code=CODE, hint=f"set microbatches to {self.size} or more; 4 times as many are good")
        self._parts: list[nn.Sequential] = []
        if cuts == "auto":
            balanced_cuts(unmeasured_pieces(module), self.size)  # there must be some; a batch tells which
        else:
            self._parts = stages_of(module, cuts, self.size)
        self._forms: list[tuple[torch.Size, torch.dtype]] = []  # of one row at the input of each stage, and the output

    def rows_of(self, batch: Rows, examples: int) -> tuple[Rows, int]:
        return batch, examples

    # ---------------------------------------------------------------------------------------------------------- stages
    def _prepare(self, inputs: Tensor) -> None:
        """Choose the cuts, and find the forms of activations, by one micro-batch."""
        first = inputs[: -(-len(inputs) // self._microbatches)]
        if not self._parts:
            data = json.dumps(self._chosen(first)).encode() if self.rank == 0 else b""
            self._parts = stages_of(self._module, json.loads(self.broadcast(data)), self.size)
        if self._forms:
            return
        modes = [(one, one.training) for one in self._module.modules()]
        self._module.eval()
        value, forms = first, [(first.shape[1:], first.dtype)]
        for number, part in enumerate(self._parts):
            with torch.no_grad(), self.autocast(self.device):
                value = part.to(self.device)(value.to(self.device))
            part.to("cpu")
            if not isinstance(value, Tensor) or value.shape[:1] != first.shape[:1] or not value.is_floating_point():
                found = f"{value.dtype}{list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise InvalidJob(
                    f"stage {number} gives {found} for {len(first)} examples",
                    code=CODE,
                    hint="cut where there is one tensor of floats whose first dimension counts the examples",
                )
            forms.append((value.shape[1:], value.dtype))
        for module, was in modes:
            module.training = was
        self._forms = forms

    def _chosen(self, inputs: Tensor) -> tuple[str, ...]:
        return balanced_cuts(measured_pieces(self._module, inputs), self.size)

    @property
    def stage(self) -> nn.Sequential:
        """The modules of this rank."""
        return self._parts[self.rank]

    def passes(self, descent: Callable[[Weights], Descent], loss: Loss, seed: int) -> StagePasses:
        """Return the passes of a training. Other ranks than the first draw other masks of dropout."""
        seed_torch((seed_of(seed, self.rank) if self.rank else seed) % 2**63, self.device)
        return StagePasses(self, loss, descent)

    def place_stage(self, inputs: Tensor) -> None:
        """Move this rank's stage to the device. `inputs`: those of any batch."""
        self._prepare(inputs)
        self.stage.to(self.device)

    def made(self, rows: int, *, trains: bool) -> MeasuredStage:
        """Return the stage for micro-batches of this number of rows."""
        needs = trains and self.rank > 0
        (shape, dtype), (out_shape, out_dtype) = self._forms[self.rank : self.rank + 2]
        made = MeasuredStage(
            self.stage,
            self.rank,
            self.size,
            self.device,
            input_args=torch.empty((rows, *shape), dtype=dtype, device="meta", requires_grad=needs),
            output_args=torch.empty((rows, *out_shape), dtype=out_dtype, device="meta", requires_grad=trains),
        )
        made.autocast = self.autocast
        return made

    def micro_batches(self, examples: int) -> tuple[int, int]:
        """Return the number of micro-batches of a batch, and the rows of each."""
        return self._microbatches, -(-examples // self._microbatches)

    @property
    def weights(self) -> Weights:
        """The weights of this rank's stage, under their names in the whole model."""
        return Weights(self.stage, self._roles)

    def total_norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the norm of the gradient of all stages."""
        own = nn.utils.get_total_norm(gradients)
        square = own.to(self.device, torch.float64) ** 2
        self.add_up([square])
        return square.sqrt().to(own.dtype)

    def finish(self, report: StageReport) -> None:
        """Give each stage's tensors to all ranks, on the CPU, and log the measurements of all of them."""
        self.stage.to("cpu")
        for rank, part in enumerate(self._parts):
            self.copy_from(rank, [*part.parameters(), *part.buffers()])
        self._reports[:] = [StageReport(**json.loads(one)) for one in self.gather(json.dumps(asdict(report)).encode())]
        if self.rank == 0:
            log.info(pipeline_text(self._reports, self._microbatches))

    def evaluated(self, batches: Iterable[Batch], found: Evaluation, loss: Loss) -> Metrics:
        """Return the metrics over batches, which the last stage finds, at rank 0; {} at the others."""
        passes = StagePasses(self, loss)
        for batch in batches:
            passes.evaluate(batch, found)
        metrics = self.gather(json.dumps(found.named()).encode())
        return {} if self.rank else cast("Metrics", json.loads(metrics[-1]))

    def free(self) -> None:
        for part in self._parts:
            part.to("cpu")


class StagePasses(Passes):
    """The passes of batches through a pipeline in one task, as one rank sees them.

    `descent` makes the descent of the rank's weights, when the first batch has told the stages.
    """

    def __init__(self, site: PipelinedSite, loss: Loss, descent: Callable[[Weights], Descent] | None = None) -> None:
        self.device = site.device
        self._site, self._loss, self._make = site, loss, descent
        self._descent: Descent | None = None
        self.is_last = site.rank == site.size - 1
        self._made: tuple[int, MeasuredStage] | None = None
        self._measured, self._seconds = [0.0, 0], 0.0

    def train(self, batch: Batch, *, is_shared: bool) -> tuple[Tensor, Tensor]:
        """Pass a batch as `Passes` says; the last rank's part is the whole loss."""
        inputs, target = _pair(batch.data)
        if self._descent is None:
            assert self._make is not None
            self._site.place_stage(inputs)
            self._descent = self._make(self._site.weights)
            self._descent.total_norm = self._site.total_norm
        factor = self._descent.begin(batch.examples)
        count, rows = self._site.micro_batches(batch.examples)
        losses = MicroLosses(self._loss, target.to(self._site.device), rows, factor, self._site.autocast)
        schedule = Schedule1F1B(self._stage(rows, trains=True), count, losses, scale_grads=False)
        start = perf_counter()
        self._pass(schedule, inputs, rows * count, target=torch.arange(count), return_outputs=False)
        self._seconds += perf_counter() - start
        self._descent.end()
        shared = losses.total.clone()
        if is_shared:
            self._site.add_up([shared])
        return shared, losses.total

    def step(self) -> None:
        if self._descent is not None:
            self._descent.step()

    def finish(self) -> None:
        if self._descent is not None:
            self._site.finish(self._report(self._descent.optimizer))

    def evaluate(self, batch: Batch, found: Evaluation) -> None:
        """Add a batch's output to the means of the last rank."""
        inputs, target = _pair(batch.data)
        if self._made is None:
            self._site.place_stage(inputs)
        count, rows = self._site.micro_batches(batch.examples)
        schedule = Schedule1F1B(self._stage(rows, trains=False), count)
        output = self._pass(schedule, inputs, rows * count)
        if self.is_last:
            output, target = output[: batch.examples], target.to(self._site.device)
            with self._site.autocast(self._site.device):
                mean = self._loss(output, target)
            found.add(output, target, mean, batch.examples)

    def _pass(self, schedule: Schedule1F1B, inputs: Tensor, rows: int, **last: Any) -> Any:
        given = (_padded(inputs, rows).to(self._site.device),) if self._site.rank == 0 else ()
        return schedule.step(*given, **(last if self.is_last else {}))

    def _stage(self, rows: int, *, trains: bool) -> MeasuredStage:
        if self._made is None or self._made[0] != rows:
            self._note()
            self._made = rows, self._site.made(rows, trains=trains)
        return self._made[1]

    def _note(self) -> None:
        """Add up the measurements of a stage that another one replaces."""
        if self._made is not None:
            self._measured[0] += self._made[1].busy_s
            self._measured[1] += self._made[1].bytes_sent

    def _report(self, optimizer: torch.optim.Optimizer | None) -> StageReport:
        """Return the measurements of the task."""
        self._note()
        device = self._site.device
        if device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(device)
        else:
            memory = sum(memory_here(self._site.stage, optimizer))
        return StageReport(self._seconds, self._measured[0], int(self._measured[1]), memory)


def stages_of(module: nn.Module, cuts: Iterable[int | str], size: int) -> list[nn.Sequential]:
    """Return the stages of a chain. Raises `InvalidJob` for cuts that do not fit the module or the number of ranks."""
    points = tuple(cuts)
    if len(points) + 1 != size:
        raise InvalidJob(
            f"{len(points)} cuts make {len(points) + 1} stages, and this node has {size} processes",
            code=CODE,
            hint=f'give {size - 1} cuts, or cuts="auto"',
        )
    parts, seen = parts_at(module, points), dict[int, str]()
    for number, part in enumerate(parts):
        if not any(one.requires_grad for one in part.parameters()):
            text, hint = f"stage {number} has no parameter to train", "move the cuts, so that each stage has one"
            raise InvalidJob(text, code=CODE, hint=hint)
        tensors = {id(one): name for name, one in (*part.named_parameters(), *part.named_buffers())}
        if shared := seen.keys() & tensors.keys():
            text = f"two stages share the tensor {min(tensors[one] for one in shared)}"
            raise InvalidJob(text, code=CODE, hint="move the cuts, so that one stage has all modules that use it")
        seen |= tensors
    return parts


def pipeline_text(reports: list[StageReport], microbatches: int) -> str:
    """Return the measurements of a pipeline in words."""
    memory = ", ".join(f"{one.memory_bytes / 1e6:.1f}" for one in reports)
    return (
        f"a pipeline of {len(reports)} stages was idle {idle(reports):.0%} of the time (equal stages: "
        f"{bubble(len(reports), microbatches):.0%}), sent {sum(one.bytes_sent for one in reports) / 1e6:.1f} MB "
        f"between stages, and took {memory} MB of memory by rank"
    )


def idle(reports: list[StageReport]) -> float:
    """Return the fraction of time in which stages did not compute."""
    return 1.0 - sum(one.busy_s for one in reports) / max(1e-9, sum(one.seconds for one in reports))


def bubble(stages: int, microbatches: int) -> float:
    """Return the fraction of time in which a stage waits, if all take the same time and transfers take none."""
    return (stages - 1) / (microbatches + stages - 1)


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    """Return the input and the target of a batch. Raises `LearnerFailed` for one of another form."""
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not all(isinstance(one, Tensor) for one in batch):
        text, hint = "a pipeline needs batches of one input and one target", "give tensors (x, y), or pairs of them"
        raise LearnerFailed(text, code=CODE, hint=hint)
    (inputs,), target = split(batch)
    return inputs, target


def _padded(inputs: Tensor, rows: int) -> Tensor:
    """Return this number of rows: the first one again after the last."""
    more = rows - len(inputs)
    return torch.cat([inputs, inputs[:1].expand(more, *inputs.shape[1:])]) if more else inputs
