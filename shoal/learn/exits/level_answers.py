"""The computation of answers level by level, as on separate machines: a level gets only what is sent to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.core.errors import InvalidPayload
from shoal.core.exits.byte_costs import Hop, packed_bytes, score_bytes
from shoal.core.exits.packed_bits import PackedFeatures, pack_bits, unpack_bits
from shoal.core.exits.thresholds import ExitRecord, checked_thresholds, decide_each
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


class LevelOutput(NamedTuple):
    """The result of one level's part."""

    scores: npt.NDArray[np.float32]
    """[examples, classes]."""
    features: PackedFeatures | None
    """None of the cloud."""


def at_devices(network: ExitNetwork, inputs: Sequence[Tensor]) -> LevelOutput:
    """Compute the devices' part; a device that is left out computes nothing. Raises `InvalidJob` for other views."""
    views = network.views_of(inputs)
    with _evaluating(network):
        parts = [
            network.at_device(number, view) if network.present[number] else None for number, view in enumerate(views)
        ]
        each = _filled([None if one is None else one[1] for one in parts])
        scores = network.at_first_exit(each, torch.tensor(network.present, device=each.device)[:, None])
    return _output(scores, [None if one is None else one[0] for one in parts])


def at_level(network: ExitNetwork, level: int, below: PackedFeatures) -> LevelOutput:
    """Compute the part of a level above the devices. Raises `InvalidPayload` for bytes that do not fit."""
    machines = len(network.bodies) if level == 1 else 1
    if len(below.parts) != machines or not any(part is not None for part in below.parts):
        text = f"features of {len(below.parts)} machines instead of {machines}"
        raise InvalidPayload(text, code="payload.bits", hint="both levels need the same network")
    weight = next(network.parameters())
    received = [
        None if part is None else torch.from_numpy(unpack_bits(part, below.shape)).to(weight) for part in below.parts
    ]
    with _evaluating(network):
        present = torch.tensor([part is not None for part in received], device=weight.device)[:, None]
        features, scores = network.above(level, _filled(received), present)
    return _output(scores, [] if features is None else [features])


def _output(scores: Tensor, features: Sequence[Tensor | None]) -> LevelOutput:
    packed = [None if one is None else pack_bits(one.float().cpu().numpy()) for one in features]
    shapes = [tuple(one.shape[1:]) for one in features if one is not None]
    return LevelOutput(scores.float().cpu().numpy(), PackedFeatures(shapes[0], tuple(packed)) if shapes else None)


def answer(network: ExitNetwork, inputs: Sequence[Tensor], thresholds: Sequence[float]) -> LevelAnswers:
    """Answer examples at the first level that is sure enough, and count the bytes that are sent.

    A device that is left out computes and sends nothing. Raises `InvalidJob` for thresholds that do not fit.
    """
    limits = checked_thresholds(thresholds, len(network.levels))
    output = at_devices(network, inputs)
    count, width = output.scores.shape
    waiting, senders = np.arange(count), sum(network.present)
    classes, exits = (np.zeros(count, np.int64) for _ in range(2))
    sent = count * score_bytes(width) * senders if len(network.present) > 1 else 0
    for level in range(len(network.levels)):
        answers = decide_each(output.scores, level, limits)
        classes[waiting[answers]] = output.scores.argmax(1)[answers]
        exits[waiting[answers]] = level
        waiting = waiting[~answers]
        if not waiting.size or output.features is None:
            break
        features = output.features.chosen(~answers)
        sent += features.nbytes
        output = at_level(network, level + 1, features)
    return LevelAnswers(classes, exits, sent)


def _filled(parts: Sequence[Tensor | None]) -> Tensor:
    """Return all parts as one tensor; an absent one is NaN, which the fusion leaves out."""
    there = next(one for one in parts if one is not None)
    return torch.stack([torch.full_like(there, torch.nan) if one is None else one for one in parts])
