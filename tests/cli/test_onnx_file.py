"""`shoal export --onnx`: a file that a runtime without torch computes the same outputs from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn

from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.learn import GrowingLearner, TorchLearner, models
from shoal.learn.loading import load_trained
from shoal.serving.onnx_file import save_onnx
from shoal.wire.payload import payload_pieces
from tests.cli.command_cases import export_answers
from tests.cli.conftest import Shoal
from tests.learn.numpy_models import array_learners
from tests.support.fake_coordinator import FakeCoordinator, at, raw

pytestmark = pytest.mark.usefixtures("quick")

MINE = """
import torch
from shoal.learn import TorchLearner, models

def learner():
    return TorchLearner(models.bn, (torch.rand(1, 64), torch.zeros(1, dtype=torch.long)))
"""


def learner(model: Callable[[], nn.Module] = models.bn) -> TorchLearner:
    return TorchLearner(model, (torch.rand(3, 64), torch.zeros(3, dtype=torch.long)))


def test_a_model_of_a_job_becomes_a_file(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    (place / "mine.py").write_text(MINE)
    one = learner()
    export_answers(fake, place)
    fake.answers["GET /jobs/digits/models/2"] = raw(b"".join(map(bytes, payload_pieces({"model": one.init(5)}))))
    assert "add --learner" in shoal("export", "digits", "--onnx", "digits.onnx", env=at(fake)).stderr
    done = shoal("export", "digits", "--onnx", "digits.onnx", "--learner", "mine.py", env=at(fake))
    assert (done.exit_code, done.stdout, done.stderr) == (0, "digits.onnx: version 2\n", "")
    assert sorted(path.name for path in place.iterdir()) == ["digits.onnx", "mine.py"]
    inputs = np.random.default_rng(0).random((7, 64), np.float32)
    (outputs,) = ReferenceEvaluator(str(place / "digits.onnx")).run(None, {"input_0": inputs})
    np.testing.assert_allclose(outputs, one.predict(inputs), atol=1e-5)
    assert str(Path(torch.__file__).parent).encode() not in (place / "digits.onnx").read_bytes()


def test_a_growing_learner_writes_the_network_of_the_stage_of_the_model(place: Path) -> None:
    def of_width(stage: int) -> TorchLearner:
        return learner(lambda: nn.Sequential(nn.Linear(64, 8 * (stage + 1)), nn.ReLU(), nn.Linear(8 * (stage + 1), 10)))

    growing, second = GrowingLearner(of_width, 2), of_width(1)
    load_trained(growing, second.init(3))
    save_onnx(growing, place / "a.onnx")
    inputs = np.random.default_rng(0).random((2, 64), np.float32)
    (outputs,) = ReferenceEvaluator(str(place / "a.onnx")).run(None, {"input_0": inputs})
    np.testing.assert_allclose(outputs, second.predict(inputs), atol=1e-5)


class SignDependent(nn.Linear):
    """A module whose way depends on the values, which torch cannot trace."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


def test_what_has_no_file_is_said(place: Path) -> None:
    with pytest.raises(InvalidJob, match="ArrayLearner has no ONNX file"):
        save_onnx(array_learners()[0], place / "a.onnx")
    with pytest.raises(LearnerFailed, match=r"exporting the module failed.*data-dependent"):
        save_onnx(learner(lambda: SignDependent(64, 10)), place / "a.onnx")
    assert not list(place.iterdir())
