"""A learner in thirty lines of numpy: softmax regression, whose gradient is known in closed form."""

from itertools import pairwise

import numpy as np

from shoal.core.algorithm.learner import Correct, ExtraLoss, Progress, TrainConfig, Trained, no_progress
from shoal.core.errors import InvalidPayload
from shoal.core.model.tree import Array, Tree, add
from shoal.core.protocol.message import Metrics
from shoal.learn.data import bundled

SIZES = (100, 500, 837)


class Softmax:
    """Multinomial logistic regression on `x: float[n, d]`, `y: int[n]`; evaluates on `test` if given."""

    applies_corrections = True

    def __init__(self, x: Array, y: Array, test: tuple[Array, Array] | None = None, classes: int = 10) -> None:
        self.x, self.y, self.test, self.classes = x, y, test, classes
        self.weights = self.init(0)

    def init(self, seed: int) -> Tree:
        rng = np.random.default_rng(seed)
        w = 0.1 * rng.standard_normal((self.x.shape[1], self.classes))
        return tree_of(w=w, b=np.zeros(self.classes))

    def load(self, model: Tree) -> None:
        if model.layout != self.weights.layout:
            raise InvalidPayload("not a softmax regression of this size")
        self.weights = model

    def model(self) -> Tree:
        return self.weights

    def optimizer_state(self) -> Tree:
        return tree_of()

    def load_optimizer_state(self, state: Tree | None) -> None:
        assert state is None or not state.layout.leaves  # plain SGD has none

    def train(
        self,
        config: TrainConfig,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        progress: Progress = no_progress,
    ) -> Trained:
        rng = np.random.default_rng(config.seed)
        size, losses = config.batch_size or len(self.y), []
        for epoch in range(int(config.epochs)):
            order = rng.permutation(len(self.y))
            for start in range(0, len(order), size):
                part = order[start : start + size]
                loss, gradient = self.slope(self.x[part], self.y[part], extra_loss)
                gradient = correct(self.weights, gradient) if correct else gradient
                self.weights = add(self.weights, gradient, -config.lr)
                losses.append(loss)
            progress((epoch + 1) / config.epochs)
        return Trained(float(len(self.y)), {"train/loss": float(np.mean(losses))})

    def gradient(self, config: TrainConfig, *, progress: Progress = no_progress) -> tuple[Trained, Tree]:
        size = config.batch_size or len(self.y)
        edges = [*range(0, len(self.y), size), len(self.y)]
        total: dict[str, Array] = {name: np.zeros_like(self.weights[name], np.float64) for name in self.weights}
        mean = 0.0
        for start, stop in pairwise(edges):
            loss, piece = self.slope(self.x[start:stop], self.y[start:stop])
            mean += loss * ((stop - start) / len(self.y))
            for name in total:
                total[name] += piece[name] * ((stop - start) / len(self.y))
            progress(stop / len(self.y))
        return Trained(float(len(self.y)), {"train/loss": mean}), tree_of(**total)

    def teach(self, teacher: Tree, weight: float) -> ExtraLoss:
        """For `slope`, which takes the gradient of the loss by the logits, times the number of examples."""

        def word(x: Array, odds: Array) -> Array:
            return np.asarray(weight * (odds - odds_of(teacher, x)))

        return word

    def slope(self, x: Array, y: Array, extra_loss: ExtraLoss | None = None) -> tuple[float, Tree]:
        """Loss and mean gradient at the present weights."""
        odds = self.odds(x)
        extra = extra_loss(x, odds) if extra_loss else 0.0
        loss = float(-np.log(odds[np.arange(len(y)), y]).mean())
        odds[np.arange(len(y)), y] -= 1
        odds += extra
        return loss, tree_of(w=x.T @ odds / len(y), b=odds.mean(0))

    def odds(self, x: Array) -> Array:
        return odds_of(self.weights, x)

    def evaluate(self) -> Metrics:
        if self.test is None:
            return {}
        x, y = self.test
        odds = self.odds(x)
        right = float((odds.argmax(1) == y).mean())
        loss = float(-np.log(odds[np.arange(len(y)), y]).mean())
        return {"eval/examples": float(len(y)), "eval/accuracy": right, "eval/loss": loss}


class Adapted(Softmax):
    """The same with the weights of a low-rank adapter, w = (B A)', as of a frozen w = 0."""

    rank = 4

    def init(self, seed: int) -> Tree:
        a = np.random.default_rng(seed).standard_normal((self.rank, self.x.shape[1])) / 4
        return tree_of(**{"lora_A.weight": a, "lora_B.weight": np.zeros((self.classes, self.rank))}, b=np.zeros(10))

    def slope(self, x: Array, y: Array, extra_loss: ExtraLoss | None = None) -> tuple[float, Tree]:
        loss, full = super().slope(x, y, extra_loss)
        a, b = self.weights["lora_A.weight"], self.weights["lora_B.weight"]
        factors = {"lora_A.weight": b.T @ full["w"].T, "lora_B.weight": full["w"].T @ a.T}
        return loss, tree_of(**factors, b=full["b"])

    def odds(self, x: Array) -> Array:
        a, b = (self.weights[f"lora_{name}.weight"].astype(float) for name in "AB")
        return odds_of(tree_of(w=(b @ a).T, b=self.weights["b"]), x)


def tree_of(**arrays: Array) -> Tree:
    """A tree of float32. It completes a base model, so that an algorithm or a path on which that is lost fails."""
    return Tree.of({name: array.astype(np.float32) for name, array in arrays.items()}, base_model="ba5e" * 16)


def odds_of(weights: Tree, x: Array) -> Array:
    """Return the output of a softmax regression for `x: float[n, d]`: `float[n, classes]`."""
    logits = x @ weights["w"].astype(np.float64) + weights["b"]
    grown = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(grown / grown.sum(1, keepdims=True))


def digits() -> tuple[Array, Array]:
    """The digits that shoal ships: `float64[1797, 64]` in 0 to 1, `int64[1797]`."""
    x, y = bundled.digits()
    return x / 16.0, y.astype(np.int64)


def unbalanced(tested: bool = False, kind: type[Softmax] = Softmax) -> list[Softmax]:
    """Three learners with 100, 500 and 837 digits; the rest is the test set."""
    x, y = digits()
    edges = np.cumsum((0, *SIZES))
    test = (x[edges[-1] :], y[edges[-1] :]) if tested else None
    return [kind(x[a:b], y[a:b], test) for a, b in pairwise(edges)]


def central(steps: int, lr: float, seed: int) -> Tree:
    """Gradient descent in float64 on all the data that `unbalanced` divides, written without shoal."""
    x, y = (part[: sum(SIZES)] for part in digits())
    start = Softmax(x, y).init(seed)
    w, b = start["w"].astype(np.float64), start["b"].astype(np.float64)
    for _ in range(steps):
        logits = x @ w + b
        odds = np.exp(logits - logits.max(1, keepdims=True))
        odds /= odds.sum(1, keepdims=True)
        odds[np.arange(len(y)), y] -= 1
        w, b = w - lr * (x.T @ odds) / len(y), b - lr * odds.mean(0)
    return Tree.of({"w": w, "b": b})
