"""Learners on a text: they predict each next byte.

The last tenth of the text is held out. The rest is cut into `parts` pieces of equal length, one for each node, and a
node evaluates on as large a piece of the held-out tenth: so the mean over all nodes is that of the whole.
"""

from __future__ import annotations

from functools import partial
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.errors import InvalidJob
from shoal.learn.data.partition import chosen
from shoal.learn.text.gpt import GPT
from shoal.learn.text.grammar import made_text
from shoal.learn.training.torch_learner import TorchLearner

HELD_OUT = 0.1
STRIDE = 8
"""Bytes from the begin of one example of the training data to that of the next."""


def learner(
    part: int = 0,
    parts: int = 4,
    *,
    file: str = "",
    context: int = 64,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    weight_decay: float = 0.1,
) -> TorchLearner:
    """Return a learner for one part of a text. `file` is a text of any encoding; without one, a grammar makes 400 kB.

    The model is a `GPT` over bytes, the optimizer AdamW, and the metric `eval/bits_per_byte`.
    """
    text = Path(file).read_bytes() if file else made_text()
    cut = round(len(text) * (1 - HELD_OUT))
    train, test = (_piece(one, part, parts, context) for one in (text[:cut], text[cut:]))
    return TorchLearner(
        partial(GPT, context=context, width=width, layers=layers, heads=heads),
        _examples(train, context, STRIDE),
        _examples(test, context, context),
        loss=loss,
        metrics={"bits_per_byte": bits_per_byte},
        optimizer=partial(_adamw, weight_decay=weight_decay),
    )


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross entropy of the next bytes, in nats."""
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten().long())


def bits_per_byte(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross entropy in bits."""
    return loss(output, target) / log(2)


def _adamw(parameters: Any, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay)


def _piece(text: bytes, part: int, parts: int, context: int) -> Tensor:
    """Return one of the parts of a text. Raises `InvalidJob` if it is shorter than one example."""
    if min(parts, context) < 1 or len(text) // parts <= context:
        raise InvalidJob(
            f"{len(text)} bytes of a text cannot give {parts} parts with a context of {context}",
            hint="use parts and a context of at least 1; for large ones, a longer text",
        )
    return torch.from_numpy(chosen(np.array_split(np.frombuffer(text, np.uint8), parts), part).copy())


def _examples(text: Tensor, context: int, stride: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, `uint8[examples, context]`."""
    windows = text.unfold(0, context + 1, stride)
    return windows[:, :-1], windows[:, 1:]
