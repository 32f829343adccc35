"""The ready learner on a text: its model, its data, the text that a grammar makes, and simulations of it."""

from __future__ import annotations

import hashlib
from math import log, log2
from pathlib import Path

import numpy as np
import pytest
import torch

import shoal
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob
from shoal.core.model.tree import digest
from shoal.jobs.spec import parse_job
from shoal.learn import load_learner, text
from shoal.learn.stacked import stacked_tasks
from shoal.learn.text.grammar import made_text

SMALL = {"context": 16, "width": 16, "layers": 1, "heads": 2}


@pytest.mark.parametrize("tied", [True, False])
def test_a_token_changes_no_logits_before_it(tied: bool) -> None:
    model = text.GPT(50, context=9, width=12, layers=2, heads=3, tied=tied).eval()
    tokens = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[:, 5] = (other[:, 5] + 1) % 50
    before, after = model(tokens), model(other)
    assert before.shape == (2, 9, 50)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.isclose(before[:, 5:], after[:, 5:]).all(-1).any(), "each later token sees it"
    assert len(list(model.parameters())) == 2 + 2 * 12 + 2 + (0 if tied else 1)


def test_the_text_of_the_grammar_is_the_same_everywhere() -> None:
    made = made_text()
    assert len(made) == 400_000
    assert hashlib.sha256(made).hexdigest().startswith("d7e59c74255dc4ff")
    assert made_text(1000) == made[:1000] != made_text(1000, seed=1)


def test_a_text_is_divided_without_overlap(tmp_path: Path) -> None:
    """The test data of all parts are the last tenth."""
    whole = bytes(range(256)) * 4
    (tmp_path / "text").write_bytes(whole)
    options = {"parts": "3", "file": str(tmp_path / "text"), "context": "8", "width": "8", "heads": "1"}
    learners = [load_learner("shoal.learn.text:learner", {**options, "part": str(part)}) for part in range(3)]
    starts = [[bytes(row) for row in one.train_data.tensors[0].numpy()] for one in learners]
    found = [whole.index(row, 300 * part) for part, rows in enumerate(starts) for row in rows]
    assert found[:2] == [0, 8]
    assert max(found) + 9 <= 922
    assert all(len(rows) == (307 - 8 + 7) // 8 for rows in starts)
    for one in learners:
        x, y = one.test_data.tensors
        assert torch.equal(x[:, 1:], y[:, :-1])
        assert all(bytes(row) in whole[922:] for row in x.numpy())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parts": 10_000}, "cannot give 10000 parts"),
        ({"part": 4}, "no part 4"),
        ({"width": 30}, "width 30"),
        ({"context": 0}, "a context of 0"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        text.learner(**options)


def test_it_learns_more_than_the_frequencies_of_bytes() -> None:
    made = made_text()
    counts = np.bincount(np.frombuffer(made, np.uint8)) / len(made)
    entropy = -sum(float(p) * log2(p) for p in counts if p)
    learner = text.learner(0, 4, context=32)
    learner.init(0)
    at_first = learner.evaluate()["eval/bits_per_byte"]
    learner.train(TrainConfig(steps=60, batch_size=16, lr=3e-3))
    found = learner.evaluate()
    assert found["eval/bits_per_byte"] < entropy - 0.5 < 7 < at_first
    assert found["eval/bits_per_byte"] == pytest.approx(found["eval/loss"] / log(2))


def test_a_simulation_gives_the_same_bits_at_each_run_and_the_same_model_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = stacked_tasks.GROUP_MIN
    job = parse_job(
        {"name": "j", "rounds": 1, "seed": 3, "algorithm": {"name": "fedavg", "epochs": 0.02, "lr": 1e-3}}
        | {"schedule": {"name": "rounds", "min_nodes": nodes, "quorum": nodes}}
    )

    def run() -> shoal.Result:
        return shoal.simulate(job, [text.learner(part, nodes, **SMALL) for part in range(nodes)])

    at_once, again = run(), run()
    monkeypatch.setattr(stacked_tasks, "GROUP_MIN", nodes + 1)
    one_by_one = run()
    assert digest(at_once.model) == digest(again.model)
    assert at_once.training.startswith(f"{nodes} tasks at once")
    bits = [one.versions[-1].metrics["eval/bits_per_byte"] for one in (at_once, one_by_one)]
    assert bits[0] == pytest.approx(bits[1], rel=1e-3), "AdamW's first steps turn the sign of gradients near 0"
