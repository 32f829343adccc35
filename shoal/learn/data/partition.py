"""Partitions of examples over nodes: one sorted index array per part, with every example in exactly one of them.

    iid         a random permutation, cut into equal pieces
    dirichlet   per class, the parts' shares are drawn from Dir(alpha); small alpha: few classes per part
                (Hsu, Qi, Brown: "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
                Classification", 2019)
    shards      sort by class, cut into equal shards, deal some to each part
                (McMahan et al., AISTATS 2017, section 3: two shards of 300 for each of 100 clients)
    quantity    random examples, and the parts' sizes are drawn from Dir(beta); small beta: few parts hold most
                (Li et al.: "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022, section IV.C)
    by_group    all examples of one group (a writer, a hospital) stay together

All are pure functions of their arguments: nodes that use the same seed agree without talking.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace

import numpy as np
import numpy.typing as npt

from shoal.core.errors import InvalidJob

Indices = npt.NDArray[np.int64]
Labels = npt.ArrayLike

FORMS = "iid, dirichlet:ALPHA, shards:PER_PART or quantity:BETA"


def iid(examples: int, parts: int, seed: int = 0) -> list[Indices]:
    """Return random parts whose sizes differ by at most one."""
    _check(examples, parts)
    return _sorted(np.array_split(np.random.default_rng(seed).permutation(examples), parts))


def dirichlet(labels: Labels, parts: int, alpha: float, seed: int = 0, *, least: int = 1) -> list[Indices]:
    """Return parts with symmetric Dirichlet class fractions, each with at least `least` examples."""
    classes = np.asarray(labels)
    _check(len(classes), parts * least)
    if not alpha > 0:
        raise InvalidJob(f"alpha is {alpha}, and must be greater than 0")
    rng = np.random.default_rng(seed)
    dealt: list[list[Indices]] = [[] for _ in range(parts)]
    for label in np.unique(classes):
        members = rng.permutation(np.flatnonzero(classes == label))
        edges = np.rint(np.cumsum(rng.dirichlet(np.full(parts, alpha)))[:-1] * len(members)).astype(np.int64)
        for part, piece in zip(dealt, np.split(members, edges), strict=True):
            part.append(piece)
    return _topped_up([np.concatenate(pieces) for pieces in dealt], least, rng)


def shards(labels: Labels, parts: int, per_part: int = 2, seed: int = 0) -> list[Indices]:
    """Return the pathological split: examples sorted by class, cut into shards, `per_part` dealt to each part."""
    classes = np.asarray(labels)
    if per_part < 1:
        raise InvalidJob(f"{per_part} shards per part; at least 1 is needed")
    _check(len(classes), parts * per_part)
    pieces = np.array_split(np.argsort(classes, kind="stable"), parts * per_part)
    dealt = np.random.default_rng(seed).permutation(len(pieces)).reshape(parts, per_part)
    return _sorted([np.concatenate([pieces[shard] for shard in part_shards]) for part_shards in dealt])


def quantity(examples: int, parts: int, beta: float, seed: int = 0, *, least: int = 1) -> list[Indices]:
    """Return random parts with sizes proportional to Dir(beta), each with at least `least` examples."""
    _check(examples, parts * least)
    if not beta > 0:
        raise InvalidJob(f"beta is {beta}, and must be greater than 0")
    rng = np.random.default_rng(seed)
    spare = examples - parts * least
    edges = np.rint(np.cumsum(rng.dirichlet(np.full(parts, beta)))[:-1] * spare).astype(np.int64)
    return _sorted(np.split(rng.permutation(examples), edges + least * np.arange(1, parts)))


def by_group(groups: Labels, parts: int | None = None) -> list[Indices]:
    """Return one part per group; with `parts`, deal groups, largest first, each to the smallest part."""
    names, inverse, counts = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    count = len(names) if parts is None else parts
    _check(len(names), count, "groups")
    part_of = np.arange(len(names))
    if parts is not None:
        loads = [(0, part) for part in range(parts)]
        for group in np.argsort(-counts, kind="stable"):
            load, part_of[group] = loads[0]
            heapreplace(loads, (load + int(counts[group]), int(part_of[group])))
    owners = part_of[inverse]
    ends = np.cumsum(np.bincount(owners, minlength=count))[:-1]
    return _sorted(np.split(np.argsort(owners, kind="stable"), ends))


def divided(form: str, labels: Labels, parts: int, seed: int = 0) -> list[Indices]:
    """Return the partition that a text names, such as "iid" or "dirichlet:0.5" (`FORMS`). Raises `InvalidJob`."""
    kind, _, given = form.partition(":")
    try:
        match kind:
            case "iid" if not given:
                return iid(len(np.asarray(labels)), parts, seed)
            case "dirichlet":
                return dirichlet(labels, parts, float(given), seed)
            case "shards":
                return shards(labels, parts, int(given or 2), seed)
            case "quantity":
                return quantity(len(np.asarray(labels)), parts, float(given), seed)
    except ValueError as error:
        raise InvalidJob(f"split {form!r}: {given!r} is not a number", hint=f"use {FORMS}") from error
    raise InvalidJob(f"no split is called {form!r}", hint=f"use {FORMS}")


def chosen(divisions: Sequence[Indices], part: int) -> Indices:
    """Return the part of a number. Raises `InvalidJob` when there is none."""
    if not 0 <= part < len(divisions):
        raise InvalidJob(
            f"there is no part {part} of {len(divisions)}", hint=f"parts are numbered 0 to {len(divisions) - 1}"
        )
    return divisions[part]


def train_test_split(indices: Indices, test_fraction: float, seed: int = 0) -> tuple[Indices, Indices]:
    """Return (training indices, test indices): a random `test_fraction` for testing, at least one of two or more."""
    if not 0 <= test_fraction < 1:
        raise InvalidJob(f"the test fraction is {test_fraction}, and must be at least 0 and less than 1")
    count = min(len(indices) - 1, max(1, round(test_fraction * len(indices)))) if test_fraction else 0
    order = np.random.default_rng(seed).permutation(indices)
    return np.sort(order[count:]), np.sort(order[:count])


def _check(examples: int, parts: int, what: str = "examples") -> None:
    if parts < 1 or examples < parts:
        raise InvalidJob(f"{examples} {what} cannot be divided over {parts} parts")


def _topped_up(parts: list[Indices], least: int, rng: np.random.Generator) -> list[Indices]:
    """Move random examples from the largest part to those with fewer than `least`."""
    for place in range(len(parts)):
        while len(parts[place]) < least:
            largest = max(range(len(parts)), key=lambda i: len(parts[i]))
            taken = int(rng.integers(len(parts[largest])))
            parts[place] = np.append(parts[place], parts[largest][taken])
            parts[largest] = np.delete(parts[largest], taken)
    return _sorted(parts)


def _sorted(parts: Sequence[Indices]) -> list[Indices]:
    return [np.sort(part).astype(np.int64) for part in parts]
