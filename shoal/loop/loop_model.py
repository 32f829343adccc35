"""The user's model, as a loop's tasks see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from shoal.core.algorithm.learner import Progress, TrainConfig
from shoal.core.errors import InvalidPayload
from shoal.core.model.tree import Layout, Tree


class LoopModel(Protocol):
    """A model of the user's thread, and copies of its weights as trees."""

    @property
    def layout(self) -> Layout: ...

    @property
    def device(self) -> str: ...

    def initial(self) -> Tree:
        """Return the weights that a job without any begins with."""
        ...

    def training(self, model: Tree, kept: Any, seed: int) -> AbstractContextManager[None]:
        """Load the weights and seed the default generators, which are restored afterwards."""
        ...

    def evaluating(self, model: Tree) -> AbstractContextManager[Any]:
        """Load the weights and enter evaluation mode; return what the user's function measures."""
        ...

    def pack(self, model: Any) -> Tree:
        """Return the weights of the user's model, or of None: of the one of the loop. Raises `ShoalError` where they
        are not the job's."""
        ...

    def local(self) -> Any:
        """Return copies of the tensors that stay on this node."""
        ...

    def state_dict(self, model: Tree) -> dict[str, Any]:
        """Return the whole state of the user's module with these weights."""
        ...

    def batches(self, data: Any, config: TrainConfig, progress: Progress) -> Iterator[tuple[Any, float]]:
        """Yield the batches of one training, and the fraction done after each."""
        ...


def different(layout: Layout, name: str, shown: str) -> InvalidPayload:
    """Return the error for a reported tensor of another type or shape; `shown`: what it is, such as "F32[2]"."""
    text = f"the reported model's {name} is {shown}, and the job's is {layout.index[name].shown}"
    return InvalidPayload(text, code="payload.layout", hint="report the model that node.tasks(model) was given")


def lacking(names: list[str]) -> InvalidPayload:
    """Return the error for a report without some tensors."""
    text = f"the reported model lacks {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}"
    return InvalidPayload(text, code="payload.layout", hint="report the model that node.tasks(model) was given")
