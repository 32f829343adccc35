"""Distillation: the output of a fixed model as an additional loss of another one on the same batch.

Hinton, Vinyals, Dean: "Distilling the Knowledge in a Neural Network", 2015, section 2, at temperature 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shoal.core.algorithm.learner import ExtraLoss
from shoal.core.errors import InvalidJob
from shoal.learn.data.batches import split


def taught_by(teacher: nn.Module, weight: float) -> ExtraLoss:
    """Return the loss `weight * CE(softmax(teacher(x)), output)`; the teacher is in eval mode and gets no gradient."""
    teacher.eval()

    def loss(batch: Any, output: Any) -> Tensor:
        if not isinstance(output, Tensor) or output.ndim < 2:
            raise InvalidJob("distillation needs a model whose output is logits of shape (batch, classes, …)")
        inputs, _ = split(batch)
        with torch.no_grad():
            probabilities = teacher(*inputs).softmax(1)
        return weight * nn.functional.cross_entropy(output, probabilities)

    return loss
