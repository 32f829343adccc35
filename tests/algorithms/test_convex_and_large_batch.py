"""Methods of convex optimization and of large clusters: ADMM, L-BFGS, large batches (studies B3, B4, D2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import shoal
from shoal.algorithms.admm import ADMM
from shoal.algorithms.largebatch import LargeBatch
from shoal.algorithms.lbfgs import LBFGS, direction
from shoal.core.algorithm.algorithm import LocalResult, LocalTask, Update, tree_slot
from shoal.core.algorithm.learner import Progress, TrainConfig, Trained, no_progress
from shoal.core.algorithm.sharding import ShardedTotals
from shoal.core.errors import InvalidJob, InvalidPayload, LearnerFailed
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Slots, Tree, norm
from shoal.core.model.vector_parts import whole
from shoal.jobs.spec import parse_job
from shoal.sim.network.faults import Faults, NetworkCut
from tests.algorithms.softmax import Softmax, digits

DECAY = 1e-3
Floats = npt.NDArray[np.float64]


def loss_of(x: Floats, y: npt.NDArray[Any]) -> Callable[[Floats], tuple[float, Floats]]:
    """Mean loss of a softmax regression with `DECAY / 2 |w|^2`, and its gradient, in float64 and without shoal."""

    def loss(flat: Floats) -> tuple[float, Floats]:
        w, b = flat[: 64 * 10].reshape(64, 10), flat[64 * 10 :]
        logits = x @ w + b
        odds = np.exp(logits - logits.max(1, keepdims=True))
        odds /= odds.sum(1, keepdims=True)
        value = -np.log(odds[np.arange(len(y)), y]).mean() + DECAY / 2 * float(flat @ flat)
        odds[np.arange(len(y)), y] -= 1
        return float(value), np.concatenate([(x.T @ odds).reshape(-1), odds.sum(0)]) / len(y) + DECAY * flat

    return loss


def flat(model: Any) -> Floats:
    return np.concatenate([model["w"].astype(np.float64).reshape(-1), model["b"].astype(np.float64)])


def optimum(loss: Callable[[Floats], tuple[float, Floats]]) -> float:
    from scipy.optimize import minimize

    options = {"maxiter": 5000, "ftol": 1e-14, "gtol": 1e-9}
    return float(minimize(loss, np.zeros(650), jac=True, method="L-BFGS-B", options=options).fun)


def simulated(parts: list[Softmax], rounds: int, **algorithm: Any) -> Any:
    schedule = {"name": "rounds", "min_nodes": len(parts)}
    return shoal.simulate(
        parse_job({"name": "batch", "rounds": rounds, "algorithm": algorithm, "schedule": schedule}), parts
    )


# ---------------------------------------------------------------------------------------------- L-BFGS, study B three
def test_lbfgs_finds_the_common_optimum() -> None:
    """Within 1e-4 of what scipy finds, after at most 80 versions."""
    x, y = digits()
    loss = loss_of(x, y)
    learners = [Softmax(x[part::5], y[part::5]) for part in range(5)]
    model = simulated(learners, 80, name="lbfgs", weight_decay=DECAY).model
    assert loss(flat(model))[0] <= optimum(loss) + 1e-4


def test_lbfgs_on_shards_exchanges_numbers_alone() -> None:
    """Study B3a: five workers, four shards, at most 80 steps; some tens of kilobytes of numbers, where gradients are
    nearly a megabyte."""
    x, y = digits()
    loss, algorithm, told = loss_of(x, y), LBFGS(weight_decay=DECAY), []

    def each(do: Callable[[int], Any], parts: Any) -> list[Any]:
        found = [do(part) for part in parts]
        told.extend(share for share in found if isinstance(share, dict))
        return found

    learners = [Softmax(x[part::5], y[part::5]) for part in range(5)]
    slots = algorithm.init(learners[0].init(0))
    for version in range(80):
        totals = ShardedTotals("float64", tree_slot(slots, "model").layout, 4, each)
        for node, learner in enumerate(learners):
            sent = algorithm.task_slots(slots, str(node), "train")
            made = algorithm.local(learner, LocalTask((1, 1), "train", version, 0, sent), {})
            assert isinstance(made, LocalResult)
            size = norm(tree_slot(made.slots, "gradient"))
            algorithm.fold(totals, Update(str(node), version, made.weight, made.slots, size), 1.0)
        slots = totals.step(algorithm, slots)
    assert loss(flat(tree_slot(slots, "model")))[0] <= optimum(loss) + 1e-4
    assert all(len(share) == 1 for share in told)
    assert len(told) * 8 <= 120_000


@pytest.mark.parametrize("shards", [1, 4])
def test_lbfgs_goes_on_when_a_node_is_lost(shards: int) -> None:
    """With its data the node takes its part of the loss away: what remains has an optimum of its own, where the loss
    can be greater than what all had reached before."""
    x, y = digits()
    y = np.where(np.arange(len(y)) % 10 < 3, (y + 1) % 10, y)  # three in ten are wrong: a great loss
    parts = np.array_split(np.arange(len(y)), 5)
    learners = [Softmax(x[part], y[part]) for part in parts[:4]] + [Softmax(0 * x, 0 * y)]
    left = np.concatenate(parts[:4])
    loss = loss_of(x[left], y[left])
    job = {
        "name": "lost",
        "rounds": 120,
        "shards": shards,
        "algorithm": {"name": "lbfgs", "weight_decay": DECAY},
        "schedule": {"name": "rounds", "min_nodes": 4},
    }
    result = shoal.simulate(parse_job(job), learners, faults=Faults(cuts=(NetworkCut("node-4", 60.0, 1000.0),)))
    assert loss(flat(result.model))[0] <= optimum(loss) + 1e-4


def test_the_two_loops_are_newtons_step_on_a_quadratic() -> None:
    """With as many pairs as there are dimensions, -H g is exact: A = diag(1, 4), pairs along the axes."""
    pairs = [(tree(1, 0), tree(1, 0)), (tree(0, 1), tree(0, 4))]
    assert np.allclose(whole(direction(tree(3, 8), pairs))["w"], [-3, -2])


def test_the_two_loops_are_the_dense_bfgs_matrix() -> None:
    """Nocedal and Wright, equation 6.17, from gamma I on: H = (I - r s y') H (I - r y s') + r s s', r = 1 / <y, s>."""
    pairs = [(tree(1, 1, 0), tree(1, 4, 0)), (tree(2, -1, 1), tree(2, -4, 9)), (tree(0.5, 3, -1), tree(0.5, 12, -9))]
    arrays = [(s["w"].astype(float), y["w"].astype(float)) for s, y in pairs]
    s, y = arrays[-1]
    dense = np.eye(3) * (s @ y) / (y @ y)
    for s, y in arrays:
        left = np.eye(3) - np.outer(s, y) / (y @ s)
        dense = left @ dense @ left.T + np.outer(s, s) / (y @ s)
    assert np.allclose(whole(direction(tree(1, -2, 3), pairs))["w"], -dense @ [1, -2, 3], atol=1e-5)


def tree(*values: float) -> Tree:
    return Tree.of({"w": np.array(values, np.float32)})


def measured(algorithm: LBFGS, slots: Slots, loss: float, gradient: Tree) -> Slots:
    totals = algorithm.fold(Totals(), Update("a", 0, 2.0, {"gradient": gradient, "loss": loss}, norm(gradient)), 1.0)
    return algorithm.step(slots, totals)


def test_a_trial_that_is_worse_is_tried_nearer_and_never_published() -> None:
    algorithm = LBFGS()
    slots = measured(algorithm, algorithm.init(tree(0, 0)), 1.0, tree(0.5, 0))
    assert tree_slot(slots, "trial")["w"].tolist() == [-0.5, 0]
    slots = measured(algorithm, slots, 2.0, tree(9, 9))
    assert tree_slot(slots, "trial")["w"].tolist() == [-0.25, 0]
    assert tree_slot(slots, "model")["w"].tolist() == [0, 0]
    slots = measured(algorithm, slots, 0.9, tree(0.25, 0))
    assert tree_slot(slots, "model")["w"].tolist() == [-0.25, 0]
    assert algorithm.task_slots(slots, "a", "evaluate")["model"] is slots["model"]


def test_a_search_that_finds_nothing_begins_anew_along_the_gradient() -> None:
    algorithm = LBFGS()
    slots = measured(algorithm, algorithm.init(tree(0, 0)), 1.0, tree(0.5, 0))
    slots = measured(algorithm, slots, 0.8, tree(0.25, 0.1))
    assert "s0" in slots
    x = tree_slot(slots, "model")
    for _ in range(21):
        slots = measured(algorithm, slots, float("1e9"), tree(1, 1))
    assert "s0" not in slots
    assert tree_slot(slots, "model") is x
    np.testing.assert_allclose(tree_slot(slots, "trial")["w"], x["w"] - np.float32([0.25, 0.1]))


class Silent(Softmax):
    """One that does not tell its loss."""

    def gradient(self, config: TrainConfig, *, progress: Progress = no_progress) -> tuple[Trained, Tree]:
        trained, gradient = super().gradient(config, progress=progress)
        return Trained(trained.weight), gradient


def test_what_lbfgs_cannot_do() -> None:
    with pytest.raises(InvalidPayload, match="running_mean has no gradient"):
        LBFGS().init(Tree.of({"bn.running_mean": np.zeros(2, np.float32)}, statistics=["bn.running_mean"]))
    x, y = digits()
    sent: Slots = {"model": Softmax(x, y).model()}
    with pytest.raises(LearnerFailed, match="does not measure train/loss"):
        LBFGS().local(Silent(x, y), LocalTask((1, 1), "train", 0, 0, sent), {})


# ------------------------------------------------------------------------------------------------ ADMM, study B four
@pytest.mark.extended
@pytest.mark.timeout(300)
def test_admm_finds_the_optimum_of_nodes_with_two_labels_each() -> None:
    """Study B4: within 1e-3 after 60 versions; one average of what each finds alone is far away."""
    x, y = digits()
    parts = [np.flatnonzero((y == 2 * part) | (y == 2 * part + 1)) for part in range(5)]
    parts = [part[: min(map(len, parts))] for part in parts]  # ADMM's nodes count alike
    together = np.concatenate(parts)
    loss = loss_of(x[together], y[together])
    best, learners = optimum(loss), [Softmax(x[part], y[part]) for part in parts]
    inner = {"epochs": 50, "batch_size": 0, "lr": 1.0}
    found = simulated(learners, 60, name="admm", rho=0.01, weight_decay=DECAY, **inner).model
    assert loss(flat(found))[0] <= best + 1e-3
    once = simulated(learners, 1, name="fedavg", epochs=1000, batch_size=0, lr=0.5).model
    assert loss(flat(once))[0] > best + 0.3


class Quadratic(Softmax):
    """f(w) = |w - target|^2 / 2, solved exactly: w = (target + rho c) / (1 + rho) for the center c."""

    def __init__(self, target: float, rho: float) -> None:
        self.target, self.rho, self.weights = target, rho, tree(0.0)

    def load(self, model: Tree) -> None:
        self.weights = model

    def evaluate(self) -> dict[str, float]:
        return {}

    def train(
        self, config: TrainConfig, *, correct: Any = None, extra_loss: Any = None, progress: Progress = no_progress
    ) -> Trained:
        center = -float(correct(tree(0.0), tree(0.0))["w"][0]) / self.rho
        self.weights = tree((self.target + self.rho * center) / (1 + self.rho))
        return Trained(1.0)


def test_admm_by_hand() -> None:
    """Two quadratics, three versions, as Boyd et al. write them down."""
    rho, relax, decay, targets = 0.5, 1.6, 0.25, (1.0, -3.0)
    algorithm = ADMM(rho=rho, over_relaxation=relax, weight_decay=decay)
    slots, memories = algorithm.init(tree(0.0)), [Slots(), Slots()]
    z, u = 0.0, [0.0, 0.0]
    for version in range(3):
        totals = Totals()
        for node, target in enumerate(targets):
            sent = algorithm.task_slots(slots, str(node), "train")
            made = algorithm.local(Quadratic(target, rho), LocalTask((1, 1), "train", version, 0, sent), memories[node])
            assert isinstance(made, LocalResult)
            assert made.memory is not None
            memories[node] = made.memory
            totals = algorithm.fold(totals, Update(str(node), version, 1.0, made.slots, 9.0, slots), 1.0)
        slots = algorithm.step(slots, totals)
        h = [
            relax * (target + rho * (z - u[node])) / (1 + rho) + (1 - relax) * z for node, target in enumerate(targets)
        ]
        z = rho / (decay + rho) * sum(h[node] + u[node] for node in range(2)) / 2
        u = [u[node] + h[node] - z for node in range(2)]
        assert tree_slot(slots, "model")["w"][0] == pytest.approx(z, abs=1e-6)


# ----------------------------------------------------------------------------------------- large batches, study D two
def stepped(algorithm: LargeBatch, slots: Slots, gradients: list[Tree]) -> Slots:
    totals = Totals()
    for node, gradient in enumerate(gradients):
        against = Tree.of({name: -gradient[name] for name in gradient})
        totals = algorithm.fold(totals, Update(str(node), 0, 1.0, {"model": against}, norm(gradient)), 1.0)
    return algorithm.step(slots, totals)


def matrix(w: list[list[float]], b: list[float]) -> Tree:
    return Tree.of({"w": np.array(w, np.float32), "b": np.array(b, np.float32)})


def test_lars_by_hand() -> None:
    """You et al., Algorithm 1: matrices move by their own trust; biases, which have none, by its share of the rate."""
    algorithm = LargeBatch(lr=0.5, linear_scaling=False, beta=0.9, lars_coefficient=0.01, weight_decay=0.1)
    slots = algorithm.init(matrix([[3, 0], [0, 4]], [1, 1]))
    w, b, mw, mb = np.array([[3.0, 0], [0, 4]]), np.ones(2), np.zeros((2, 2)), np.zeros(2)
    for gw, gb in (([[1, 2], [0, 0]], [1, 0]), ([[0, 0], [-1, 1]], [0, 2])):
        slots = stepped(algorithm, slots, [matrix(gw, gb)])  # type: ignore[arg-type]
        trust = 0.01 * np.linalg.norm(w) / (np.linalg.norm(gw) + 0.1 * np.linalg.norm(w))
        mw, mb = 0.9 * mw + 0.5 * trust * (np.array(gw) + 0.1 * w), 0.9 * mb + 0.5 * 0.01 * np.array(gb)
        w, b = w - mw, b - mb
        assert np.allclose(tree_slot(slots, "model")["w"], w, atol=1e-6)
        assert np.allclose(tree_slot(slots, "model")["b"], b, atol=1e-6)


def test_the_rate_grows_with_the_nodes_and_from_a_warm_up_and_falls() -> None:
    algorithm = LargeBatch(lr=0.1, warm_up=4, steps=10)
    assert [algorithm.rate(step, 8) for step in (0, 2, 4)] == pytest.approx([0.1, 0.45 * 0.64, 0.8 * 0.36])
    assert algorithm.rate(10, 8) == algorithm.rate(99, 8) == 0
    assert LargeBatch(lr=0.1, linear_scaling=False).rate(5, 8) == 0.1


def test_batches_of_all_nodes_make_one_step_of_sgd() -> None:
    """Study A1a: K nodes with batches of B are one worker with a batch of K B."""
    x, y = digits()
    whole = [Softmax(x[:800], y[:800])]
    parts = [Softmax(x[part:800:4], y[part:800:4]) for part in range(4)]
    same = {"name": "largebatch", "batch_size": 0, "lr": 0.5, "linear_scaling": False}
    one, four = simulated(whole, 5, **same).model, simulated(parts, 5, **same).model
    assert all(np.allclose(one[name], four[name], atol=1e-5) for name in one)


WRONG: list[tuple[Any, dict[str, float]]] = [
    (ADMM, {"rho": 0.0}),
    (ADMM, {"over_relaxation": 2.0}),
    (ADMM, {"weight_decay": -1.0}),
    (LBFGS, {"history_size": 0}),
    (LBFGS, {"lr": 0.0}),
    (LargeBatch, {"beta": 1.0}),
    (LargeBatch, {"lars_coefficient": -0.1}),
]


@pytest.mark.parametrize(("kind", "fields"), WRONG)
def test_numbers_that_make_no_sense(kind: Any, fields: dict[str, float]) -> None:
    with pytest.raises(InvalidJob) as caught:
        kind(**fields)
    assert caught.value.code == "job.algorithm"
