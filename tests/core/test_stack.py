"""Trees in one array give what each of them gives alone."""

from multiprocessing import Pipe

import numpy as np
import pytest

from shoal.core.model import stack, tree
from shoal.core.model.aggregation import TreeSum
from shoal.core.model.stack import Stack
from shoal.core.model.tree import Layout, Tree, digest, norm, sub

LAYOUT = Layout.of([("bias", "F32", (3,)), ("weight", "F32", (5, 4))])
BASE = Tree.of({"bias": np.ones(3, np.float32), "weight": np.full((5, 4), 0.1, np.float32)})


def rows(count: int, seed: int = 0) -> list[Tree]:
    values = np.random.default_rng(seed).normal(size=(count, LAYOUT.elements)).astype(np.float32)
    one = Stack(LAYOUT, values)
    return [one.row(index) for index in range(count)]


def alone(row: Tree) -> Tree:
    return Tree(LAYOUT, row.buffer.copy())


@pytest.mark.parametrize("block", [1 << 16, 7])
def test_displacements_and_norms_have_the_same_bits(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "BLOCK_ELEMENTS", block)
    monkeypatch.setattr(stack, "BLOCK_ELEMENTS", block)
    for row in rows(6):
        moved = sub(row, BASE)
        assert np.array_equal(moved.buffer, sub(alone(row), BASE).buffer)
        assert (norm(row), norm(moved)) == (norm(alone(row)), norm(alone(moved)))
    assert np.array_equal(sub(row, row).buffer, np.zeros(LAYOUT.nbytes, np.uint8))


@pytest.mark.parametrize("kind", ["float64", "fixed"])
def test_a_sum_of_rows_is_that_of_trees(kind: str) -> None:
    """Sums of several stacks in turns, of a row twice, with other trees between, and read before the end."""
    one, other = rows(4), rows(4, seed=1)
    parts = [one[0], one[2], one[0], other[1], alone(one[3]), other[3], one[1], other[0], other[0]]
    together, apart = TreeSum(LAYOUT, kind), TreeSum(LAYOUT, kind)
    for weight, part in enumerate(parts, start=1):
        together.add(part, weight / 2, norm(part))
        apart.add(alone(part), weight / 2, norm(part))
        if weight == 7:
            assert together.gap() == pytest.approx(apart.gap(), rel=1e-12)
    assert np.allclose(together.mean_onto(BASE)["weight"], apart.mean_onto(BASE)["weight"], atol=1e-7)


def test_a_row_that_was_not_added_has_no_part_in_the_sum() -> None:
    values = np.ones((3, LAYOUT.elements), np.float32)
    values[1] = np.nan
    total, one = TreeSum(LAYOUT), Stack(LAYOUT, values)
    total.add(one.row(0), 2.0, norm(one.row(0)))
    total.add(one.row(2), 1.0, norm(one.row(2)))
    assert np.isnan(norm(one.row(1)))
    assert np.array_equal(total.mean_onto()["bias"], np.ones(3, np.float32))


def test_which_layouts_suit() -> None:
    assert Stack.suits(LAYOUT)
    assert not Stack.suits(Layout.of([("a", "F32", (3,)), ("b", "I64", ())]))
    assert not Stack.suits(Layout.of([]))


def test_rows_in_another_process_share_a_stack_still() -> None:
    """Results over all of them have the same bits there, and they are copied once."""
    here, there = Pipe()
    here.send([sub(row, BASE) for row in rows(3)])
    copied = there.recv_bytes()
    here.send_bytes(copied)
    moved = there.recv()
    assert len(copied) < 5 * LAYOUT.nbytes + 1000
    assert [row.known.index for row in moved] == [0, 1, 2]
    assert len({id(row.known.stack) for row in moved}) == 1
    assert [row.buffer.tobytes() for row in moved] == [sub(row, BASE).buffer.tobytes() for row in rows(3)]
    there.send(BASE)
    assert digest(here.recv()) == digest(BASE)
