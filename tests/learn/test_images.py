"""Folders of images: examples that are read when they are needed, the same on every node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import SGDClassifier
from torch import nn

from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.model.tree import digest
from shoal.learn import SklearnLearner, TorchConfig, TorchLearner
from shoal.learn.data.images import images

COLORS = {"blue": (0, 0, 255), "red": (255, 0, 0)}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Six images of two colors, of several sizes and formats; hidden files are none of them."""
    for name, color in COLORS.items():
        (tmp_path / name).mkdir()
        Image.new("RGB", (20, 10), color).save(tmp_path / name / "a.png")
        Image.new("RGB", (8, 8), color).save(tmp_path / name / "b.bmp")
        Image.new("RGB", (64, 48), color).quantize(4).save(tmp_path / name / "c.gif")
        (tmp_path / name / ".DS_Store").write_text("")
    (tmp_path / "README.txt").write_text("no class")
    return tmp_path


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 6, 2))


def test_images_are_scaled_and_labeled(pictures: Path) -> None:
    found = images(pictures, (4, 6))
    assert (len(found), found.labels.tolist()) == (6, [0, 0, 0, 1, 1, 1])
    for place in range(6):
        pixels, label = found[place]
        assert (pixels.shape, pixels.dtype) == ((3, 4, 6), np.float32)
        expected = np.array(COLORS[("blue", "red")[label]], np.float32)[:, None, None] / 255
        assert np.allclose(pixels, expected, atol=0.02)
    grey, _ = images(str(pictures), (4, 6), mode="L")[0]
    assert grey.shape == (1, 4, 6)


def test_images_stand_upright(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    upper = np.zeros((40, 60, 3), np.uint8)
    upper[:20] = 255
    Image.fromarray(upper).save(tmp_path / "a" / "a.png")
    pixels, _ = images(tmp_path, (4, 6))[0]
    assert np.abs(pixels.mean((0, 2)) - [1, 1, 0, 0]).max() < 0.15


def test_classes_are_those_that_nodes_agreed_on(pictures: Path) -> None:
    assert images(pictures, (4, 6), classes=["red", "green", "blue"]).labels.tolist() == [2, 2, 2, 0, 0, 0]
    with pytest.raises(InvalidJob, match=r"blue is none of the classes \['red'\]") as caught:
        images(pictures, (4, 6), classes=["red"])
    assert "on every node" in caught.value.hint


def test_a_part_of_the_images(pictures: Path) -> None:
    found = images(pictures, (4, 6))
    assert found[1:4].labels.tolist() == [0, 0, 1]
    assert found[np.array([5, 0])].labels.tolist() == [1, 0]
    assert np.array_equal(found[[5, 0]][0][0], found[5][0])


def test_what_is_no_image_is_named(pictures: Path, tmp_path: Path) -> None:
    (pictures / "red" / "notes.txt").write_text("a note")
    with pytest.raises(InvalidJob, match=r"notes\.txt is not an image that Pillow can read"):
        images(pictures, (4, 6))
    (pictures / "red" / "notes.txt").unlink()
    whole = (pictures / "red" / "b.bmp").read_bytes()
    (pictures / "red" / "b.bmp").write_bytes(whole[:70])
    cut = images(pictures, (4, 6))
    with pytest.raises(LearnerFailed, match=r"cannot read the image .*b\.bmp"):
        TorchLearner(network, cut).train(TrainConfig())
    with pytest.raises(InvalidJob, match="holds no folder with images"):
        images(pictures / "red", (4, 6))
    with pytest.raises(InvalidJob, match="No such file or directory"):
        images(pictures / "gone", (4, 6))


def flipped(pixels: Any) -> Any:
    return pixels[:, :, ::-1] if np.random.rand() < 0.5 else pixels + 0.1  # noqa: NPY002


def test_augmentation_follows_the_seed(pictures: Path) -> None:
    found = []
    for seed in (1, 1, 2):
        learner = TorchLearner(network, images(pictures, (4, 6), augment=flipped), device="cpu")
        learner.init(0)
        learner.train(TrainConfig(epochs=2, batch_size=6, seed=seed))
        found.append(digest(learner.model()))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("resident", [0, 1 << 20])
def test_images_stay_in_memory_if_they_fit(pictures: Path, resident: int) -> None:
    found = images(pictures, (4, 6), resident_bytes_max=resident)
    before = [found[place][0] for place in range(6)]
    for path in pictures.glob("*/*"):
        path.unlink()
    if resident:
        assert all(np.array_equal(found[place][0], before[place]) for place in range(6))
        return
    with pytest.raises(LearnerFailed, match="cannot read the image"):
        found[0]


@pytest.mark.usefixtures("processes")
def test_learners_train_on_images(pictures: Path) -> None:
    """In the training thread, in processes of a loader, and without torch."""
    found = images(pictures, (4, 6))
    trees = []
    for workers in (0, 1):
        learner = TorchLearner(network, found, found, config=TorchConfig(workers=workers), device="cpu")
        learner.init(0)
        learner.train(TrainConfig(epochs=5, batch_size=2))
        assert learner.evaluate()["eval/accuracy"] == 1.0
        trees.append(digest(learner.model()))
    assert trees[0] == trees[1]
    other = SklearnLearner(SGDClassifier(loss="log_loss"), found, found, classes=[0, 1])
    other.train(TrainConfig(epochs=5, batch_size=2))
    assert other.evaluate()["eval/accuracy"] == 1.0
