"""The learner that the documentation shows, and what adapters cost on the wire."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.jobs.spec import parse_job
from shoal.learn.loading import load_learner
from shoal.learn.training.weights import Weights
from shoal.model_file import save_model
from tests.conventions.sources import ROOT
from tests.docs.test_documents import blocks
from tests.learn.tiny_bert import adapted, base, learner

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

EXAMPLE = ROOT / "examples" / "lora_text"
BRIEF = {"name": "fedavg", "epochs": 0.1, "batch_size": 16, "lr": 0.003}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a base that has learned next to nothing."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.chdir(tmp_path)
    import_module("make_base").make_base(tmp_path / "base", examples=64)
    return tmp_path


def test_the_learner_of_the_document_trains(folder: Path) -> None:
    text = (ROOT / "docs" / "how-to" / "hugging-face.md").read_text()
    (folder / "mine.py").write_text(blocks(ROOT / "docs/how-to/hugging-face.md", "python")[0])
    assert len(text.partition("def model")[2].partition("```")[0].strip().splitlines()) <= 15
    job = parse_job({"name": "mine", "rounds": 1, "algorithm": BRIEF})
    made = shoal.simulate(job, [load_learner("mine.py", {"part": str(part)}) for part in range(2)])
    assert made.state == "done"
    assert made.metrics["eval/loss"] > 0
    assert min(made.model).startswith("base_model.model.bert.encoder.layer.0.attention.self.query.lora_A")


def spent(filters: list[Any], *, rank: int = 4, **sizes: Any) -> tuple[float, int, int]:
    """The bytes that a node sends in a round, and those of its adapters and of its whole model, as files."""
    made = [learner(lambda: adapted(rank, **sizes), count=8) for _ in range(2)]
    job = parse_job({"name": "adapters", "rounds": 2, "algorithm": {**BRIEF, "epochs": 1}, "filters": filters})
    up = shoal.simulate(job, made, fidelity="wire").up_bytes["node-1"] / 2
    files = [save_model(tree, Path("file")).stat().st_size for tree in (made[0].model(), Weights(base(**sizes)).save())]
    return up, files[0], files[1]


def test_a_round_costs_the_bytes_of_the_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report's own words are half a kilobyte: much beside tiny adapters, little beside those of 100 kB."""
    monkeypatch.chdir(tmp_path)
    up, adapters, whole = spent([], hidden_size=64, intermediate_size=256)
    assert up <= adapters + 600
    assert whole >= 40 * up
    up, adapters, _ = spent([], rank=16, hidden_size=256)
    assert adapters > 100_000
    assert up <= 1.02 * adapters
    up, adapters, _ = spent([{"name": "quantize"}], rank=16, hidden_size=256)
    assert up <= 0.27 * adapters
