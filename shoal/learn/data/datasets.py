"""Data sets that are fetched once and kept: MNIST and Fashion-MNIST, checked by SHA-256. Needs numpy, not torch.

LeCun, Bottou, Bengio, Haffner: "Gradient-based learning applied to document recognition", Proceedings of the IEEE 1998.
Xiao, Rasul, Vollgraf: "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms", 2017.

The checksums are those of the unpacked files, so that any way of compressing them is accepted.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.core.errors import InvalidJob, InvalidPayload, StorageFailed, Unreachable
from shoal.core.errors.phrases import counted
from shoal.learn.data.idx import CHUNK_BYTES, array_of, file_chunks, unpacked

DownloadProgress = Callable[[str, int, int], None]
"""`(file, bytes so far, bytes in all or 0)`, called while a file is fetched."""

TIMEOUT_S = 30.0


class DataFile(NamedTuple):
    """One unpacked file: its name, length and SHA-256."""

    name: str
    nbytes: int
    sha256: str


@dataclass(frozen=True)
class DataSet:
    """Four IDX files, and the addresses to try for them, with ".gz" appended to each name."""

    title: str
    licence: str
    parts: tuple[DataFile, DataFile, DataFile, DataFile]
    sources: tuple[str, ...]


class Images(NamedTuple):
    """Grey images and their classes: `x uint8[n, 28, 28]`, `y uint8[n]`."""

    train_x: npt.NDArray[np.uint8]
    train_y: npt.NDArray[np.uint8]
    test_x: npt.NDArray[np.uint8]
    test_y: npt.NDArray[np.uint8]


def _parts(*sums: str) -> tuple[DataFile, DataFile, DataFile, DataFile]:
    train_x, train_y, test_x, test_y = sums
    return (
        DataFile("train-images-idx3-ubyte", 47_040_016, train_x),
        DataFile("train-labels-idx1-ubyte", 60_008, train_y),
        DataFile("t10k-images-idx3-ubyte", 7_840_016, test_x),
        DataFile("t10k-labels-idx1-ubyte", 10_008, test_y),
    )


DATA_SETS = {
    "mnist": DataSet(
        "MNIST, 70,000 handwritten digits",
        "CC BY-SA 3.0",
        _parts(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
    ),
    "fashion-mnist": DataSet(
        "Fashion-MNIST, 70,000 pictures of clothes",
        "MIT",
        _parts(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        (
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
    ),
}

# Where packages of operating systems put data sets, in a folder of the set's name.
SYSTEM_FOLDERS = (Path("/usr/share/datasets"),)


def no_download_progress(file: str, done: int, total: int) -> None:
    """Ignore progress."""


def cache_folder() -> Path:
    """Return the folder of data sets: SHOAL_DATA__CACHE, else "shoal/data" in the user's cache folder."""
    if chosen := os.environ.get("SHOAL_DATA__CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "shoal" / "data"


def data_set(name: str) -> DataSet:
    """Return the data set of a name. Raises `InvalidJob` for an unknown one."""
    if name not in DATA_SETS:
        raise InvalidJob(
            f"no data set is called {name!r}", code="data.unknown", hint=f"there are {' and '.join(DATA_SETS)}"
        )
    return DATA_SETS[name]


def get(
    name: str,
    source: Path | None = None,
    *,
    cache: Path | None = None,
    progress: DownloadProgress = no_download_progress,
) -> Path:
    """Put a data set into the cache, unpacked and checked, and return its folder. Valid files stay.

    Taken from the folder `source`, or one right below it; without one, from a folder of the operating system or else
    from the internet. Raises `InvalidPayload` for files that are not the data set's, `InvalidJob` where `source` lacks
    one, `Unreachable` when no address answers, `StorageFailed` when the cache cannot be written.
    """
    wanted = data_set(name)
    folder = (cache or cache_folder()) / name
    for part in wanted.parts:
        if not _is_whole(folder / part.name, part):
            _keep(folder / part.name, _fetched(name, part, source, progress))
    return folder


def load(name: str, folder: Path | None = None) -> Images:
    """Return a data set from the cache or a folder of IDX files (plain or .gz), checked each time. Fetches nothing.

    The arrays are read-only. Raises `InvalidJob` where it is not there, `InvalidPayload` where a file is damaged.
    """
    place = folder.expanduser() if folder is not None else cache_folder() / name
    wanted = data_set(name)
    if _found(place, wanted.parts[0]) is None and folder is None:
        raise InvalidJob(
            f"{name} is not in the cache ({place})", code="data.missing", hint=f"get it with: shoal data get {name}"
        )
    return _load(name, place.resolve())


@lru_cache(maxsize=2)
def _load(name: str, folder: Path) -> Images:
    """Return the data set, cached for all learners of a process."""
    arrays = [array_of(_from_folder(folder, part, no_download_progress), part.name) for part in data_set(name).parts]
    return Images(*arrays)


def _is_whole(path: Path, part: DataFile) -> bool:
    try:
        return path.stat().st_size == part.nbytes and hashlib.sha256(path.read_bytes()).hexdigest() == part.sha256
    except OSError:  # missing or unreadable: it has to be written again, which reports the cause
        return False


def _found(folder: Path, part: DataFile) -> Path | None:
    """Return the part's file in a folder, plain or gzipped."""
    for path in (folder / part.name, folder / f"{part.name}.gz"):
        if path.is_file():
            return path
    return None


def _fetched(name: str, part: DataFile, source: Path | None, progress: DownloadProgress) -> bytes:
    if source is not None:
        return _from_folder(_with(part, source.expanduser(), name), part, progress)
    for system in SYSTEM_FOLDERS:
        if _found(system / name, part) is not None:
            return _from_folder(system / name, part, progress)
    return _from_internet(name, part, progress)


def _with(part: DataFile, folder: Path, name: str) -> Path:
    """Return the folder with the part: this one, the subfolder named like the set, or another subfolder."""
    try:
        below = sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise InvalidJob(f"{folder}: {error.strerror}", code="data.missing", hint=_NAME_IT) from None
    for place in (folder, folder / name, *below):
        if _found(place, part) is not None:
            return place
    looked = f"{folder} and {counted(len(below), 'folder')} in it" if below else str(folder)
    raise _lacks(looked, part)


def _lacks(place: str, part: DataFile) -> InvalidJob:
    return InvalidJob(f"{place}: no {part.name}, nor {part.name}.gz", code="data.missing", hint=_NAME_IT)


_NAME_IT = "name the folder that holds the files themselves, or the one above it"


def _from_folder(folder: Path, part: DataFile, progress: DownloadProgress) -> bytes:
    path = _found(folder, part)
    if path is None:
        raise _lacks(str(folder), part)
    done, total = 0, path.stat().st_size

    def tick(count: int) -> None:
        nonlocal done
        done += count
        progress(part.name, done, total)

    try:
        content = unpacked(file_chunks(path, tick), str(path), part.nbytes)
    except OSError as error:
        raise StorageFailed(f"cannot read {path}: {error}", hint="check the file's permissions") from error
    return _checked(content, part, str(path))


def _from_internet(name: str, part: DataFile, progress: DownloadProgress) -> bytes:
    failures = []
    for source in DATA_SETS[name].sources:
        url = f"{source}{part.name}.gz"
        try:
            return _checked(unpacked(_download(url, part, progress), url, part.nbytes), part, url)
        except InvalidPayload as error:  # a page that says "not found", or a tampered mirror: try the next
            failures.append(error.message)
        except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
            failures.append(f"{url}: {error}")
    raise Unreachable(
        f"{part.name} of {name} could not be fetched: {'; '.join(failures)}",
        code="data.unreachable",
        hint=f"on a machine without internet: shoal data get {name} --from FOLDER",
    )


def _download(url: str, part: DataFile, progress: DownloadProgress) -> Iterator[bytes]:
    """Yield the response in pieces, at most as many bytes as the file can have."""
    request = urllib.request.Request(url, headers={"User-Agent": "shoal"})  # noqa: S310 - from the table above
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
        done, total = 0, int(answer.headers.get("Content-Length") or 0)
        while (chunk := answer.read(CHUNK_BYTES)) and done <= part.nbytes:
            done += len(chunk)
            progress(part.name, done, total)
            yield chunk


def _checked(content: bytes, part: DataFile, origin: str) -> bytes:
    found = hashlib.sha256(content).hexdigest()
    if found != part.sha256:
        raise InvalidPayload(
            f"{origin} is not the known {part.name}: its {len(content)} bytes have the SHA-256 {found}, "
            f"those of the known file {part.sha256}",
            code="data.checksum",
            hint="the file is damaged or another one; download the data set again",
        )
    return content


def _keep(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", delete=False) as file:
            temporary = file.name
            file.write(content)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise StorageFailed(
            f"cannot write {path}: {error}",
            hint="free some space, or set SHOAL_DATA__CACHE to a folder that can be written",
        ) from error
