"""Any safetensors file can be a job's first model; nothing else can."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save_file

from shoal.core.errors import InvalidPayload
from shoal.core.model.tree import Tree, digest
from shoal.model_file import load_model, opened, save_model
from shoal.wire.payload import PIECE_BYTES, payload_pieces, read_header

TENSORS = {
    "z.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a.count": np.array([1, 2**40], dtype=np.int64),
    "a.bias": np.array([0.5], dtype=np.float32),
    "empty": np.zeros((0, 3), dtype=np.float32),
}


def body_of(path: Path) -> bytes:
    with opened(path) as model:
        body = b"".join(model.pieces())
        assert (len(body), hashlib.sha256(body).hexdigest()) == (model.nbytes, model.digest)
        assert b"".join(model.pieces()) == body  # it can be read again
    return body


@pytest.mark.parametrize("metadata", [None, {"made": "elsewhere"}])
def test_a_file_of_another_program_is_put_in_order(place: Path, metadata: dict[str, str] | None) -> None:
    save_file(TENSORS, place / "m.safetensors", metadata)
    body = body_of(place / "m.safetensors")
    assert read_header(body).keys() == {"model"}  # raises unless it is canonical
    found = load(body)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype


def test_batch_norms_statistics_are_marked_in_a_file_that_marks_none(place: Path) -> None:
    """As torch names them; a tensor that is alone, of whole numbers or marked otherwise is not taken for one."""
    pair = {"bn.running_mean": np.zeros(2, np.float32), "bn.running_var": np.ones(2, np.float32)}
    whole = {"x.running_mean": np.zeros(1, np.int64), "x.running_var": np.zeros(1, np.int64)}
    alone = {"running_mean": np.zeros(1, np.float32), "other_running_mean": np.zeros(1, np.float32)}
    save_file({**pair, **whole, **alone, "z.weight": np.ones(1, np.float32)}, place / "m.safetensors")
    layout = read_header(body_of(place / "m.safetensors"))["model"]
    assert layout is not None
    assert layout.statistics == pair.keys()
    save_file({"running_var": np.zeros(1, np.float32), **alone}, place / "m.safetensors")
    layout = read_header(body_of(place / "m.safetensors"))["model"]
    assert layout is not None
    assert layout.statistics == {"running_mean", "running_var"}


def test_a_file_of_ours_keeps_its_marks(place: Path) -> None:
    arrays = {"bn.running_mean": np.ones(2, np.float32), "bn.running_var": np.ones(2, np.float32)}
    made = Tree.of(arrays, statistics=["bn.running_var"])
    save_model(made, place / "m.safetensors")
    found = load_model(place / "m.safetensors")
    assert (found.layout, digest(found)) == (made.layout, digest(made))


def test_a_file_of_ours_is_sent_as_it_is(place: Path) -> None:
    body = b"".join(bytes(piece) for piece in payload_pieces({"model": Tree.of(TENSORS), "momentum": 0.5}))
    (place / "m.safetensors").write_bytes(body)
    assert body_of(place / "m.safetensors") == body


def test_large_tensors_are_sent_in_pieces(place: Path) -> None:
    save_file({"b": np.ones(700_000, np.float32), "a": np.zeros(3, np.int64)}, place / "m.safetensors")
    with opened(place / "m.safetensors") as model:
        assert max(map(len, model.pieces())) <= PIECE_BYTES


def header(entries: object, data: bytes = b"") -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        b"\xff" * 100,
        header(b"{"),
        header([1]),
        header({"a": {"dtype": "F32"}}),
        header({"a": {"dtype": "COMPLEX", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
        header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234"),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, b"1234"),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, b"1234"),
        header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234"),
        header({"a": {"dtype": "F32", "shape": "1", "data_offsets": [0, 4]}}, b"1234"),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, b"1234"),
        header({"@a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "b": 3}, b"1234"),
    ],
)
def test_what_is_no_model_is_refused_with_its_name(place: Path, content: bytes) -> None:
    (place / "m.safetensors").write_bytes(content)
    with pytest.raises(InvalidPayload, match=r"m\.safetensors") as caught, opened(place / "m.safetensors"):
        pytest.fail("it was taken")
    assert caught.value.hint


def test_a_missing_file_is_named(place: Path) -> None:
    with pytest.raises(InvalidPayload, match=r"gone\.safetensors"), opened(place / "gone.safetensors"):
        pytest.fail("it was taken")
