"""Data sets in the cache: fetched once, checked always, and never half there."""

import contextlib
import gzip
import hashlib
import os
import shutil
import threading
import tracemalloc
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidJob, InvalidPayload, StorageFailed, Unreachable
from shoal.learn.data import datasets, idx

SHAPES = {"train-images": (6, 4, 4), "train-labels": (6,), "t10k-images": (3, 4, 4), "t10k-labels": (3,)}


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A data set of four tiny files under the name "tiny", in the folder "there"; the cache is the folder "cache"."""
    rng = np.random.default_rng(0)
    contents = {
        f"{name}-idx{len(shape)}-ubyte": idx_bytes(rng.integers(0, 256, shape, dtype=np.uint8))
        for name, shape in SHAPES.items()
    }
    parts = tuple(datasets.DataFile(name, len(raw), hashlib.sha256(raw).hexdigest()) for name, raw in contents.items())
    monkeypatch.setitem(datasets.DATA_SETS, "tiny", datasets.DataSet("tiny", "none", parts, ()))
    monkeypatch.setattr(datasets, "SYSTEM_FOLDERS", ())
    monkeypatch.setenv("SHOAL_DATA__CACHE", str(tmp_path / "cache"))
    (tmp_path / "there").mkdir()
    for name, raw in contents.items():
        (tmp_path / "there" / f"{name}.gz").write_bytes(gzip.compress(raw))
    return contents


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    """The folder "there" over HTTP."""
    handler = partial(Quiet, directory=str(tmp_path / "there"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def from_internet(monkeypatch: pytest.MonkeyPatch, *sources: str) -> None:
    old = datasets.DATA_SETS["tiny"]
    monkeypatch.setitem(datasets.DATA_SETS, "tiny", datasets.DataSet(old.title, old.licence, old.parts, sources))


def test_a_data_set_is_got_from_a_folder_and_loaded(
    tmp_path: Path, tiny: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idx, "CHUNK_BYTES", 40)
    seen: list[tuple[str, int, int]] = []
    folder = datasets.get("tiny", tmp_path / "there", progress=lambda *told: seen.append(told))
    assert folder == tmp_path / "cache" / "tiny"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == tiny
    assert [file for file, done, total in seen if done == total] == list(tiny)
    assert len(seen) > len(tiny)
    images = datasets.load("tiny")
    assert [part.shape for part in images] == list(SHAPES.values())
    assert images.train_x.tobytes() == tiny["train-images-idx3-ubyte"][16:]
    with pytest.raises(ValueError, match="read-only"):
        images.train_x[0] = 0


def test_plain_files_do_as_well(tmp_path: Path, tiny: dict[str, bytes]) -> None:
    for name, raw in tiny.items():
        (tmp_path / "there" / f"{name}.gz").unlink()
        (tmp_path / "there" / name).write_bytes(raw)
    datasets.get("tiny", tmp_path / "there")
    assert datasets.load("tiny", tmp_path / "there").test_y.shape == (3,)


def test_what_is_in_the_cache_is_not_fetched_again(tmp_path: Path) -> None:
    folder = datasets.get("tiny", tmp_path / "there")
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert datasets.get("tiny", tmp_path / "nowhere") == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_damaged_file_is_found_and_mended(tmp_path: Path, tiny: dict[str, bytes], damage: bytes | None) -> None:
    folder = datasets.get("tiny", tmp_path / "there")
    name = "t10k-images-idx3-ubyte"
    flipped = tiny[name][:-1] + bytes([tiny[name][-1] ^ 1])
    (folder / name).write_bytes(flipped if damage is None else damage)
    with pytest.raises(InvalidPayload, match="is not the known t10k-images") as told:
        datasets.load("tiny")
    assert told.value.code == "data.checksum"
    datasets.get("tiny", tmp_path / "there")
    assert datasets.load("tiny").test_x.shape == (3, 4, 4)


def test_another_data_sets_files_are_refused(tmp_path: Path) -> None:
    other = gzip.compress(idx_bytes(np.zeros((6, 4, 4), np.uint8)))
    (tmp_path / "there" / "train-images-idx3-ubyte.gz").write_bytes(other)
    with pytest.raises(InvalidPayload, match="SHA-256"):
        datasets.get("tiny", tmp_path / "there")
    assert not list((tmp_path / "cache").rglob("*ubyte*"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "there" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InvalidJob, match=r"there: no t10k-labels-idx1-ubyte, nor t10k-labels-idx1-ubyte\.gz"):
        datasets.get("tiny", tmp_path / "there")


def test_the_folder_above_the_files_will_do(tmp_path: Path, tiny: dict[str, bytes]) -> None:
    (tmp_path / "above").mkdir()
    (tmp_path / "above" / "a-note").write_text("not a folder")
    (tmp_path / "there").rename(tmp_path / "above" / "raw")
    datasets.get("tiny", tmp_path / "above")
    assert datasets.load("tiny").test_y.shape == (3,)


def test_of_several_folders_below_the_one_of_the_sets_name_counts(tmp_path: Path) -> None:
    """Data sets of one family have files of the same names."""
    for name in ("above/another", "above/tiny"):
        shutil.copytree(tmp_path / "there", tmp_path / name)
    for path in (tmp_path / "above" / "another").iterdir():
        path.write_bytes(gzip.compress(b"another set's"))
    datasets.get("tiny", tmp_path / "above")


def test_a_source_without_the_files_says_where_they_were_looked_for(tmp_path: Path) -> None:
    (tmp_path / "above" / "below" / "far").mkdir(parents=True)
    with pytest.raises(InvalidJob, match=r"above and 1 folder in it: no train-images") as told:
        datasets.get("tiny", tmp_path / "above")
    assert "or the one above it" in told.value.hint
    with pytest.raises(InvalidJob, match="nowhere: No such file"):
        datasets.get("tiny", tmp_path / "nowhere")


def test_loading_fetches_nothing() -> None:
    with pytest.raises(InvalidJob, match="not in the cache") as told:
        datasets.load("tiny")
    assert told.value.hint == "get it with: shoal data get tiny"


def test_unknown_data_sets_are_refused() -> None:
    with pytest.raises(InvalidJob, match="no data set is called 'minst'") as told:
        datasets.get("minst")
    assert "mnist and fashion-mnist" in told.value.hint


def test_the_systems_own_folder_comes_before_the_internet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "system").mkdir()
    (tmp_path / "there").rename(tmp_path / "system" / "tiny")
    monkeypatch.setattr(datasets, "SYSTEM_FOLDERS", (tmp_path / "system",))
    datasets.get("tiny")
    assert datasets.load("tiny").train_y.shape == (6,)


def test_a_data_set_is_downloaded(monkeypatch: pytest.MonkeyPatch, mirror: str, tiny: dict[str, bytes]) -> None:
    """The first mirror answers 404, the second has it."""
    from_internet(monkeypatch, f"{mirror}nothing/", mirror)
    seen: list[tuple[str, int, int]] = []
    folder = datasets.get("tiny", progress=lambda *told: seen.append(told))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == tiny
    assert all(done == total > 0 for _, done, total in seen)


def test_a_lying_mirror_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: str) -> None:
    lies = tmp_path / "there" / "lies"
    lies.mkdir()
    for place, path in enumerate((tmp_path / "there").glob("*.gz")):
        bad = [b"<html>moved</html>", gzip.compress(b"x" * 10_000_000), path.read_bytes()[:-9], b""][place]
        (lies / path.name).write_bytes(bad)
    from_internet(monkeypatch, f"{mirror}lies/", mirror)
    datasets.get("tiny")
    from_internet(monkeypatch, f"{mirror}lies/")
    with pytest.raises(Unreachable, match="could not be fetched") as told:
        datasets.get("tiny", cache=tmp_path / "other")
    assert "--from FOLDER" in told.value.hint
    assert not (tmp_path / "other" / "tiny").exists()


@pytest.mark.usefixtures("sockets")
def test_no_internet_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from_internet(monkeypatch, "http://127.0.0.1:9/")
    with pytest.raises(Unreachable, match=r"train-images-idx3-ubyte\.gz: .*refused"):
        datasets.get("tiny")


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    with pytest.raises(StorageFailed, match="cannot write") as told:
        datasets.get("tiny", tmp_path / "there")
    assert "SHOAL_DATA__CACHE" in told.value.hint


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StorageFailed, match="No space left"):
        datasets.get("tiny", tmp_path / "there")
    assert list((tmp_path / "cache" / "tiny").iterdir()) == []


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert datasets.cache_folder() == Path(os.environ["SHOAL_DATA__CACHE"])
    monkeypatch.delenv("SHOAL_DATA__CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/somebody")
    assert datasets.cache_folder() == Path("/var/somebody/shoal/data")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert datasets.cache_folder() == Path.home() / ".cache" / "shoal" / "data"


def test_the_table_is_complete() -> None:
    for name in ("mnist", "fashion-mnist"):
        known = datasets.data_set(name)
        assert [part.nbytes for part in known.parts] == [16 + 60_000 * 784, 8 + 60_000, 16 + 10_000 * 784, 8 + 10_000]
        assert all(len(part.sha256) == 64 for part in known.parts)
        assert all(source.endswith("/") for source in known.sources)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.binary(max_size=700))
def test_idx_round_trip(shape: list[int], filling: bytes) -> None:
    array = np.resize(np.frombuffer(filling or b"\0", np.uint8), shape)
    assert np.array_equal(idx.array_of(idx_bytes(array), "x"), array)


@given(st.one_of(st.binary(max_size=40), st.binary(max_size=40).map(lambda rest: b"\0\0\x08" + rest)))
def test_other_bytes_are_no_idx(raw: bytes) -> None:
    """Either a typed error, or exactly the bytes that were given."""
    with contextlib.suppress(InvalidPayload):
        assert idx_bytes(idx.array_of(raw, "x")) == raw


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "does not start"),
        (b"\0\0\x09\1\0\0\0\0", "does not start"),
        (b"\0\0\x08\0", "claims 0 dimensions"),
        (b"\0\0\x08\5" + bytes(20), "claims 5 dimensions"),
        (b"\0\0\x08\2\0\0\0\1", "claims 2 dimensions in 8 bytes"),
        (b"\0\0\x08\1\0\0\0\3ab", r"claims the shape \[3\] and holds 2 bytes"),
        (b"\0\0\x08\2\xff\xff\xff\xff\xff\xff\xff\xff", r"claims the shape \[4294967295, 4294967295\]"),
    ],
)
def test_what_is_wrong_with_an_idx_file_is_told(raw: bytes, said: str) -> None:
    with pytest.raises(InvalidPayload, match=said):
        idx.array_of(raw, "x")


@pytest.mark.parametrize("piece", [1, 7, 100_000])
@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_unpacking_in_any_pieces(pack, piece: int) -> None:
    raw = bytes(range(256)) * 100
    packed = pack(raw)
    chunks = [packed[at : at + piece] for at in range(0, len(packed), piece)]
    assert idx.unpacked(chunks, "x", len(raw)) == raw
    with pytest.raises(InvalidPayload, match="longer than"):
        idx.unpacked(chunks, "x", len(raw) - 1)


def test_a_bomb_is_stopped_early() -> None:
    """A small file that unpacks to a gigabyte costs no more than it may hold."""
    bomb = gzip.compress(b"\0" * (1 << 26))
    bomb_chunks = iter([bomb] + [b"never read"] * 3)
    tracemalloc.start()
    with pytest.raises(InvalidPayload, match="longer than"):
        idx.unpacked(bomb_chunks, "x", 1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    assert len(list(bomb_chunks)) == 3


@pytest.mark.parametrize("how", ["cut short", "overwritten"])
def test_damaged_gzip_is_told(how: str) -> None:
    packed = gzip.compress(os.urandom(500))
    spoiled = packed[:-1] if how == "cut short" else packed[:20] + b"xx" + packed[22:]
    with pytest.raises(InvalidPayload, match="gzip file") as told:
        idx.unpacked([spoiled], "x", 500)
    assert told.value.code == "data.broken"
