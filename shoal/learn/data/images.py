"""Folders of images as training data, in one line: a folder per class.

train = images("pictures/", size=(32, 32), classes=["cat", "dog"], augment=flipped)
learner = TorchLearner(network, train, test)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from shoal.core.errors import InvalidJob, LearnerFailed

Pixels = npt.NDArray[np.float32]
Example = tuple[Pixels, np.int64]
CODE = "learner.images"


def images(
    folder: str | Path,
    size: tuple[int, int],
    *,
    classes: Sequence[str] | None = None,
    mode: Literal["RGB", "L"] = "RGB",
    augment: Callable[[Pixels], Any] | None = None,
    resident_bytes_max: int = 1 << 28,
) -> ImageFolder:
    """Return the images in the folders of a folder as examples: `float32[channels, height, width]` in 0 to 1, and the
    place of the folder's name among the classes.

    `size`: (height, width), to which each image is scaled. `classes`: names of folders, the same on every node;
    default: those that are there, sorted. `mode`: RGB, or L for grey. `augment`: applied each time to each image; its
    draws from `random` and `numpy.random` follow the task's seed. Pixels are kept in memory while they take at most
    `resident_bytes_max`; otherwise each image is read when it is needed.

    Raises `InvalidJob`, by name, for files that are not images and for folders that are not class.
    """
    root = Path(folder).expanduser()
    found = sorted(path.name for path in _visible(root) if path.is_dir())
    known = found if classes is None else list(classes)
    if unknown := sorted(set(found) - set(known)):
        raise _invalid(f"{root / unknown[0]} is none of the classes {known}", "add it to classes, on every node")
    files = [(path, known.index(name)) for name in found for path in _visible(root / name)]
    if not files:
        raise _invalid(f"{root} holds no folder with images", "put the images of each class into a folder of its name")
    for path, _ in files:
        _check(path)
    return ImageFolder(files, size, mode, augment, resident_bytes_max)


class ImageFolder(Sequence[Example]):
    """Images of classes, read when they are needed. `labels` has their classes."""

    def __init__(
        self,
        files: Sequence[tuple[Path, int]],
        size: tuple[int, int],
        mode: str,
        augment: Callable[[Pixels], Any] | None,
        resident_bytes_max: int,
    ) -> None:
        self._files, self._size, self._mode, self._augment = files, size, mode, augment
        self.labels = np.array([label for _, label in files], np.int64)
        self._resident_bytes_max = resident_bytes_max
        fits = len(files) * size[0] * size[1] * len(mode) <= resident_bytes_max
        self._kept: dict[int, npt.NDArray[np.uint8]] | None = {} if fits else None

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, place: int) -> Example: ...

    @overload
    def __getitem__(self, place: slice | Sequence[int]) -> ImageFolder: ...

    def __getitem__(self, place: Any) -> Any:
        """Return an example; for a slice or several places, those images alone."""
        if isinstance(place, slice | Sequence | np.ndarray):
            places = range(len(self))[place] if isinstance(place, slice) else [int(one) for one in place]
            files = [self._files[one] for one in places]
            return ImageFolder(files, self._size, self._mode, self._augment, self._resident_bytes_max)
        pixels = self._pixels(int(place)).astype(np.float32) / np.float32(255)
        made = pixels if self._augment is None else np.ascontiguousarray(self._augment(pixels), np.float32)
        return made, self.labels[place]

    def _pixels(self, place: int) -> npt.NDArray[np.uint8]:
        """Return `uint8[channels, height, width]`."""
        if self._kept is not None and place in self._kept:
            return self._kept[place]
        path, (height, width) = self._files[place][0], self._size
        try:
            with Image.open(path) as image:
                scaled = image.convert(self._mode).resize((width, height), Image.Resampling.BILINEAR)
        except (OSError, SyntaxError) as error:  # Pillow's for a damaged PNG
            raise LearnerFailed(f"cannot read the image {path}: {error}", code=CODE, hint="remove it") from error
        pixels = np.asarray(scaled, np.uint8).reshape(height, width, -1).transpose(2, 0, 1)
        if self._kept is not None:
            self._kept[place] = pixels
        return pixels


def _visible(folder: Path) -> Iterator[Path]:
    """Yield what is in a folder, sorted, except hidden files."""
    try:
        yield from sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise _invalid(f"{folder}: {error.strerror}", "name a folder with a folder of images for each class") from None


def _check(path: Path) -> None:
    try:
        with Image.open(path):  # reads its head alone
            return
    except (OSError, UnidentifiedImageError) as error:
        raise _invalid(f"{path} is not an image that Pillow can read", "remove it, or convert it to PNG") from error


def _invalid(message: str, hint: str) -> InvalidJob:
    return InvalidJob(message, code=CODE, hint=hint)
