"""The computation of answers level by level, as on separate machines: a level gets only what is sent to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.core.exits.byte_costs import Hop, packed_bytes, score_bytes
from shoal.core.exits.entropy import normalized_entropy
from shoal.core.exits.packed_bits import pack_bits, unpack_bits
from shoal.core.exits.thresholds import ExitRecord, Flags, checked_thresholds, decide
from shoal.learn.exits.exit_network import ExitNetwork


class LevelAnswers(NamedTuple):
    """The answers to examples, and what they cost."""

    classes: npt.NDArray[np.int64]
    exits: npt.NDArray[np.int64]
    """The number of the exit that answered each."""
    sent: int
    """Bytes sent between the levels."""


@contextmanager
def _evaluating(network: ExitNetwork) -> Iterator[None]:
    """Put the network in evaluation mode for a while."""
    was = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(was)


def record_exits(network: ExitNetwork, inputs: Sequence[Tensor], labels: Tensor, batch_size: int = 1024) -> ExitRecord:
    """Return entropies and correctness of all exits, for the choice of thresholds."""
    with _evaluating(network):
        parts = [network(*batch) for batch in zip(*(torch.split(one, batch_size) for one in inputs), strict=True)]
    scores = torch.cat(parts).movedim(1, 0).float().cpu().numpy()
    return ExitRecord.of(scores, labels.cpu().numpy())


def hops_of(network: ExitNetwork, inputs: Sequence[Tensor]) -> list[Hop]:
    """Return the bytes on the links between the levels, found by one example."""
    views = [view[:1] for view in network.views_of(inputs)]
    present = torch.tensor(network.present)[:, None]
    hops = []
    with _evaluating(network):
        parts = [network.at_device(number, view) for number, view in enumerate(views)]
        below, senders = torch.stack([features for features, _ in parts]), sum(network.present)
        scores = score_bytes(parts[0][1].shape[1]) if len(parts) > 1 else 0
        for level in range(1, len(network.levels)):
            hops.append(Hop(senders, scores, packed_bytes(below[0].numel())))
            features, _ = network.above(level, below, present.to(below[0].device))
            below, senders, scores = below if features is None else features[None], 1, 0
    return hops


def answer(network: ExitNetwork, inputs: Sequence[Tensor], thresholds: Sequence[float]) -> LevelAnswers:
    """Answer examples at the first level that is sure enough, and count the bytes that are sent.

    A device that is left out computes and sends nothing. Raises `InvalidJob` for thresholds that do not fit.
    """
    limits = checked_thresholds(thresholds, len(network.levels))
    views = network.views_of(inputs)
    classes, exits = (np.zeros(len(views[0]), np.int64) for _ in range(2))
    waiting, present = np.arange(len(classes)), torch.tensor(network.present, device=views[0].device)[:, None]
    with _evaluating(network):
        parts = [
            network.at_device(number, view) if network.present[number] else None for number, view in enumerate(views)
        ]
        below = [None if one is None else one[0] for one in parts]
        each = _filled([None if one is None else one[1] for one in parts])
        scores = network.at_first_exit(each, present)
        sent = each[0].nbytes * sum(network.present) if len(views) > 1 else 0
        for level in range(len(network.levels)):
            entropies = normalized_entropy(scores.float().cpu().numpy())
            answers = np.array([decide(float(one), level, limits).answers for one in entropies], np.bool_)
            classes[waiting[answers]] = scores.argmax(1).cpu().numpy()[answers]
            exits[waiting[answers]] = level
            waiting = waiting[~answers]
            if not waiting.size:
                break
            received, count = _send(below, ~answers)
            sent += count
            features, scores = network.above(level + 1, _filled(received), present)
            below = [features]
    return LevelAnswers(classes, exits, sent)


def _send(features: Sequence[Tensor | None], chosen: Flags) -> tuple[list[Tensor | None], int]:
    """Return the features of the chosen examples as the next level unpacks them, and the bytes on the way."""
    received, sent = list[Tensor | None](), 0
    for one in features:
        packed = None if one is None else pack_bits(one.float().cpu().numpy()[chosen])
        sent += 0 if packed is None else packed.nbytes
        received.append(
            None
            if packed is None or one is None
            else torch.from_numpy(unpack_bits(packed, tuple(one.shape[1:]))).to(one)
        )
    return received, sent


def _filled(parts: Sequence[Tensor | None]) -> Tensor:
    """Return all parts as one tensor; an absent one is NaN, which the fusion leaves out."""
    there = next(one for one in parts if one is not None)
    return torch.stack([torch.full_like(there, torch.nan) if one is None else one for one in parts])
