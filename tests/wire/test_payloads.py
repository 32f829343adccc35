"""A body is a safetensors file, is read only where it is needed, and is checked while it arrives."""

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidPayload
from shoal.core.model import tree as core
from shoal.core.model.tree import DTYPES, FLOATS, Layout, Tree
from shoal.wire.payload import (
    HEADER_BYTES_MAX,
    PIECE_BYTES,
    ByteWindow,
    PayloadCheck,
    header_length,
    layouts_of,
    leaves_of,
    measure,
    open_payload,
    payload_layout,
    payload_pieces,
    read_header,
)
from tests.core import strategies as values
from tests.core.strategies import BASE_MODELS
from tests.wire.strategies import TENSOR_NAMES, based, body_of, same, slots, trees

KNOWN = tuple(name for name in DTYPES if name != "BF16")
ANYTHING = st.binary(min_size=1, max_size=8)


class CountingFile:
    """A body on disk, as far as `ByteSource` can tell; remembers what was asked for."""

    def __init__(self, data: bytes) -> None:
        self.data, self.asked = data, list[tuple[int, int]]()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, part: slice) -> bytes:
        start, stop, step = part.indices(len(self.data))
        assert step == 1
        self.asked.append((start, stop))
        return self.data[start:stop]


def body_with(entries: dict[str, Any], data: bytes = b"") -> bytes:
    """A body with any header at all, written as the canonical one would be."""
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def code_of(body: bytes) -> str:
    with pytest.raises(InvalidPayload) as caught:
        open_payload(body)
    return caught.value.code


# The bytes


@given(trees(dtypes=KNOWN), BASE_MODELS)
def test_a_model_is_what_safetensors_saves(tree: Tree, base_model: str) -> None:
    saved = safetensors.numpy.save({name: tree[name].copy() for name in tree}, {"base_model": base_model})
    if not base_model:
        saved = safetensors.numpy.save({name: tree[name].copy() for name in tree})
    assert body_of({"model": based(tree, base_model)}) == saved


@pytest.mark.parametrize("dtype", KNOWN)
def test_every_type_is_what_safetensors_saves(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(DTYPES[dtype])
    named = {"w": array, "scalar": np.array(array[0, 1]), "none": array[:0], "é 名": array.T.copy()}
    body = body_of({"model": Tree.of(named)})
    assert body == safetensors.numpy.save(named)
    read = open_payload(body)["model"]
    assert isinstance(read, Tree)
    for name, kept in named.items():
        assert read[name].dtype == kept.dtype
        assert read[name].tolist() == kept.tolist()


@given(slots())
def test_slots_come_back(made: dict) -> None:
    body = body_of(made)
    found = open_payload(body)
    assert same(found, made)
    assert body_of(found) == body
    assert read_header(body) == layouts_of(made)
    assert list(found) == sorted(made, key=lambda name: (name != "model", name))


@given(slots())
def test_safetensors_reads_the_body_and_its_places(made: dict) -> None:
    tensors = dict(safetensors.deserialize(body_of(made)))
    wanted = {}
    for slot, value in made.items():
        if not isinstance(value, Tree):
            wanted[f"@{slot}"] = ("F64", [], np.float64(value).tobytes())
            continue
        for leaf in value.layout.leaves:
            name = leaf.name if slot == "model" else f"@{slot}/{leaf.name}"
            wanted[name] = (leaf.dtype, list(leaf.shape), bytes(value.buffer[leaf.start : leaf.stop]))
    assert {n: (i["dtype"], list(i["shape"]), bytes(i["data"])) for n, i in tensors.items()} == wanted
    body = body_of(made)
    first = 8 + header_length(body[:8])
    for leaf in leaves_of(body):
        assert body[first + leaf.start : first + leaf.stop] == wanted[leaf.name][2]


def test_pieces_are_of_at_most_a_mebibyte() -> None:
    tree = Tree.of({"w": np.arange(700_001, dtype=np.float32)})
    made = {"model": tree, "c": tree, "step": 2.0}
    lengths = [len(piece) for piece in payload_pieces(made)]
    assert max(lengths) == PIECE_BYTES == 1 << 20
    assert sum(lengths) == len(body_of(made))
    assert same(open_payload(body_of(made)), made)


def test_nothing_is_a_body_too() -> None:
    assert body_of({}) == body_with({}) == safetensors.numpy.save({})
    assert open_payload(body_of({})) == {}


def test_a_name_that_could_be_a_slot_is_not_sent() -> None:
    with pytest.raises(InvalidPayload, match="must not start with @") as caught:
        body_of({"model": Tree.of({"@c/w": np.zeros(1)})})
    assert caught.value.code == "payload.name"
    assert same(open_payload(body_of(other := {"c": Tree.of({"@c/w": np.zeros(1)})})), other)


# Reading only what is needed


def test_a_source_is_read_when_a_tensor_is_used() -> None:
    made = {
        "model": Tree.of({"big": np.arange(100_000, dtype=np.float32), "small": np.arange(3, dtype=np.float16)}),
        "c": Tree.of({"w": np.arange(50_000, dtype=np.float64)}),
        "step": 7.0,
    }
    source = CountingFile(body_of(made))
    head = 8 + header_length(source.data[:8])
    found = open_payload(source)
    assert source.asked == [(0, 8), (0, head), (len(source) - 8, len(source))]
    places = {leaf.name: (head + leaf.start, head + leaf.stop) for leaf in leaves_of(source)}
    for slot, name, place in (("model", "small", "small"), ("c", "w", "@c/w"), ("model", "big", "big")):
        source.asked.clear()
        tree, kept = found[slot], made[slot]
        assert isinstance(tree, Tree)
        assert isinstance(kept, Tree)
        assert tree[name].tolist() == kept[name].tolist()
        assert source.asked == [places[place]]


def test_measuring_reads_everything_once_and_in_blocks() -> None:
    made = {"model": Tree.of({"w": np.ones(100_000, np.float32), "n": np.ones(9, np.int64)})}
    source = CountingFile(body_of(made))
    found = open_payload(source)
    source.asked.clear()
    assert measure(found) == pytest.approx(math.sqrt(100_000))
    assert sum(stop - start for start, stop in source.asked) == 400_000  # a norm needs no whole numbers
    assert max(stop - start for start, stop in source.asked) <= 4 * core.BLOCK_ELEMENTS


def test_sending_reads_everything_once_and_in_pieces() -> None:
    source = CountingFile(body_of({"model": Tree.of({"w": np.zeros(400_000)})}))
    found = open_payload(source)
    source.asked.clear()
    assert body_of(found) == source.data
    assert sum(stop - start for start, stop in source.asked) == 3_200_000
    assert max(stop - start for start, stop in source.asked) == PIECE_BYTES


BOUNDS = st.none() | st.integers(-12, 12)


@given(st.binary(max_size=10), st.integers(0, 10), st.integers(0, 10), BOUNDS, BOUNDS)
def test_a_window_is_a_part(data: bytes, start: int, stop: int, low: int | None, high: int | None) -> None:
    start, stop = sorted((min(start, len(data)), min(stop, len(data))))
    window = ByteWindow(data, start, stop)
    assert len(window) == stop - start
    assert window[low:high] == data[start:stop][low:high]


# Finiteness


def with_bad(dtype: str, length: int, index: int, bad: float) -> Tree:
    """Tensors a and b of one type, all ones but for one number of b."""
    ones = np.ones(length, np.float32 if dtype == "BF16" else DTYPES[dtype])
    spoilt = ones.copy()
    spoilt[index] = bad
    if dtype == "BF16":
        ones, spoilt = ((array.view(np.uint32) >> 16).astype(np.uint16) for array in (ones, spoilt))
    return Tree.of({"a": ones, "b": spoilt, "n": np.arange(3)}, {"a": dtype, "b": dtype})


@pytest.mark.parametrize("dtype", sorted(FLOATS))
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_named(dtype: str, bad: float) -> None:
    length = core.BLOCK_ELEMENTS + 5
    for index in (0, 1, core.BLOCK_ELEMENTS - length % 7, core.BLOCK_ELEMENTS, length - 1):
        tree = with_bad(dtype, length, index, bad)
        for slot, name in (("model", "b"), ("c", "@c/b")):
            with pytest.raises(InvalidPayload) as caught:
                measure({"first": 1.0, "model": Tree.of({"a": np.ones(2)}), slot: tree})
            assert caught.value.message == f"{name}[{index}] is not finite"
            assert caught.value.code == "payload.not-finite"
            assert caught.value.hint


@pytest.mark.parametrize(
    ("dtype", "bits"), [("F32", 0x7F800001), ("F16", 0x7C01), ("BF16", 0xFF81), ("F64", 0x7FF << 52 | 1)]
)
def test_a_signalling_nan_is_named_without_a_warning(dtype: str, bits: int) -> None:
    width = DTYPES[dtype].itemsize
    array = np.array([0, bits], f"<u{width}")
    tree = Tree.of({"w": array if dtype == "BF16" else array.view(DTYPES[dtype])}, {"w": dtype})
    with pytest.raises(InvalidPayload, match=r"^w\[1\] is not finite"):
        measure({"model": tree})


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_named(bad: float) -> None:
    for made in ({"step": bad}, open_payload(body_of({"model": Tree.of({"w": np.ones(1)}), "step": bad}))):
        with pytest.raises(InvalidPayload, match=r"^@step is not finite\n"):
            measure(made)


@pytest.mark.parametrize(("dtype", "size"), [("F64", 1e200), ("F32", 3e38)])
def test_a_norm_that_overflows_is_told_from_infinity(dtype: str, size: float) -> None:
    tree = Tree.of({"w": np.array([size, -size], DTYPES[dtype])})
    with pytest.raises(InvalidPayload, match="the norm overflows") as caught:
        measure({"model": tree})
    assert caught.value.code == "payload.not-finite"


@pytest.mark.parametrize("index", [0, core.BLOCK_ELEMENTS - 1, core.BLOCK_ELEMENTS, core.BLOCK_ELEMENTS + 4])
@pytest.mark.parametrize(("slot", "name"), [("model", "mask"), ("c", "@c/mask")])
def test_a_boolean_is_0_or_1(index: int, slot: str, name: str) -> None:
    mask = np.ones(core.BLOCK_ELEMENTS + 5, bool)
    body = bytearray(body_of({slot: Tree.of({"mask": mask, "none": np.zeros(0, bool), "w": np.ones(2)})}))
    assert measure(open_payload(bytes(body))) == pytest.approx(math.sqrt(2))
    for wrong in (2, 255):
        body[len(body) - len(mask) + index] = wrong
        with pytest.raises(InvalidPayload) as caught:
            measure(open_payload(bytes(body)))
        assert caught.value.message == f"{name}[{index}] is a BOOL of neither 0 nor 1"
        assert caught.value.code == "payload.boolean"


@given(slots(bound=100.0))
def test_the_greatest_norm_counts(made: dict) -> None:
    norms = [0.0]
    for value in made.values():
        if isinstance(value, Tree):
            floats = [values.wide(value, leaf.name).ravel() for leaf in value.layout.leaves if leaf.dtype in FLOATS]
            norms.append(math.sqrt(sum(float((part**2).sum()) for part in floats)))
        else:
            norms.append(abs(value))
    assert measure(made) == pytest.approx(max(norms), rel=1e-5)


# Headers that are not right


def test_who_changes_what_he_was_told_of_a_header_changes_it_for_nobody_else() -> None:
    body = b"".join(bytes(piece) for piece in payload_pieces({"model": Tree.of({"a": np.zeros(3, np.float32)})}))
    told = read_header(body)
    told.clear()
    assert list(read_header(body)) == ["model"]


def test_one_right_header_is_taken() -> None:
    assert open_payload(body_with({"a": entry("F32", [2], 0, 8)}, bytes(8))).keys() == {"model"}


EIGHT = bytes(8)
WRONG = {
    "no body": (b"", "payload.short"),
    "seven bytes": (bytes(7), "payload.short"),
    "a header of nothing": (bytes(8), "payload.header"),
    "a header of one byte": (b"\x01" + bytes(7) + b"{", "payload.header"),
    "a header beyond the body": (b"\x10" + bytes(7) + b"{}", "payload.short"),
    "a header of eight exabytes": ((2**63).to_bytes(8, "little") + b"{}", "payload.header"),
    "a header of all ones": (b"\xff" * 8 + b"{}", "payload.header"),
    "a header above the limit": ((HEADER_BYTES_MAX + 1).to_bytes(8, "little") + b"{}", "payload.header"),
    "no padding": (b"\x02" + bytes(7) + b"{}", "payload.header"),
    "a list": (body_with([]), "payload.header"),  # type: ignore[arg-type]
    "no object": (body_with({"a": 1}), "payload.header"),
    "metadata": (body_with({"__metadata__": {"format": "pt"}, "a": entry("F32", [2], 0, 8)}, EIGHT), "payload.header"),
    "a tensor called so": (body_with({"__metadata__": entry("F32", [2], 0, 8)}, EIGHT), "payload.header"),
    "inside a slot too": (body_with({"@c/__metadata__": entry("F32", [2], 0, 8)}, EIGHT), "payload.invalid"),
    "no name": (body_with({"": entry("F32", [2], 0, 8)}, EIGHT), "payload.name"),
    "a name of 513": (body_with({"a" * 513: entry("F32", [2], 0, 8)}, EIGHT), "payload.name"),
    "a name of 171 x 3": (body_with({"名" * 171: entry("F32", [2], 0, 8)}, EIGHT), "payload.name"),
    "a line break": (body_with({"a\nb": entry("F32", [2], 0, 8)}, EIGHT), "payload.name"),
    "a slot without a name": (body_with({"@": entry("F64", [], 0, 8)}, EIGHT), "payload.name"),
    "a nameless slot's": (body_with({"@/w": entry("F64", [], 0, 8)}, EIGHT), "payload.name"),
    "a model as a slot": (body_with({"@model/w": entry("F64", [], 0, 8)}, EIGHT), "payload.name"),
    "a model as a number": (body_with({"@model": entry("F64", [], 0, 8)}, EIGHT), "payload.name"),
    "a number of four bytes": (body_with({"@c": entry("F32", [], 0, 4)}, bytes(4)), "payload.header"),
    "a number with a shape": (body_with({"@c": entry("F64", [1], 0, 8)}, EIGHT), "payload.header"),
    "a slot of both kinds": (
        body_with({"@c": entry("F64", [], 0, 8), "@c/w": entry("F64", [], 8, 16)}, bytes(16)),
        "payload.header",
    ),
    "and the other way round": (
        body_with({"@c/w": entry("F64", [], 0, 8), "@c": entry("F64", [], 8, 16)}, bytes(16)),
        "payload.header",
    ),
    "no type": (body_with({"a": {"shape": [2], "data_offsets": [0, 8]}}, EIGHT), "payload.dtype"),
    "an unknown type": (body_with({"a": entry("F8_E4M3", [8], 0, 8)}, EIGHT), "payload.dtype"),
    "a small type": (body_with({"a": entry("f32", [2], 0, 8)}, EIGHT), "payload.dtype"),
    "a negative size": (body_with({"a": entry("F32", [-2], 0, 8)}, EIGHT), "payload.shape"),
    "two negative sizes": (body_with({"a": entry("F32", [-2, -1], 0, 8)}, EIGHT), "payload.shape"),
    "a float's size": (body_with({"a": entry("F32", [2.0], 0, 8)}, EIGHT), "payload.shape"),  # type: ignore[list-item]
    "a size of true": (body_with({"a": entry("F32", [True, 2], 0, 8)}, EIGHT), "payload.shape"),
    "nine dimensions": (body_with({"a": entry("F32", [1] * 8 + [2], 0, 8)}, EIGHT), "payload.shape"),
    "too many elements": (body_with({"a": entry("U8", [2**53 + 1], 0, 8)}, EIGHT), "payload.shape"),
    "more than there are": (body_with({"a": entry("U8", [2**53], 0, 2**53)}, EIGHT), "payload.length"),
    "overflowing": (body_with({"a": entry("U8", [2**32, 2**32, 2], 0, 0)}), "payload.shape"),
    "overflowing though empty": (body_with({"a": entry("F64", [0, 2**53, 2**53], 0, 0)}), "payload.shape"),
    "empty at the end": (body_with({"a": entry("F64", [2**53, 2**53, 0], 0, 0)}), "payload.shape"),
    "a hole": (body_with({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, bytes(12)), "payload.header"),
    "an overlap": (
        body_with({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, bytes(12)),
        "payload.header",
    ),
    "one place for two": (
        body_with({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 0, 8)}, EIGHT),
        "payload.header",
    ),
    "not from the start": (body_with({"a": entry("F32", [2], 4, 12)}, bytes(12)), "payload.header"),
    "the wrong task": (
        body_with({"b": entry("F32", [1], 0, 4), "a": entry("F32", [1], 4, 8)}, EIGHT),
        "payload.header",
    ),
    "one byte more": (body_with({"a": entry("F32", [2], 0, 8)}, bytes(9)), "payload.length"),
    "one byte less": (body_with({"a": entry("F32", [2], 0, 8)}, bytes(7)), "payload.length"),
    "more said than known": (body_with({"a": entry("F32", [2], 0, 8) | {"more": 1}}, EIGHT), "payload.header"),
}


@pytest.mark.parametrize(("body", "code"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_body_is_refused(body: bytes, code: str) -> None:
    assert code_of(body) == code
    assert not checked(body, [3], None)


def test_sizes_at_the_limits_are_taken() -> None:
    for shape in ([2**53, 0], [0, 2**53], [1] * 8, [0] * 8):
        stop = math.prod(shape) * 8
        found = open_payload(body_with({"a": entry("F64", shape, 0, stop)}, bytes(stop)))["model"]
        assert isinstance(found, Tree)
        assert found["a"].shape == tuple(shape)
    for name in ("a" * 512, "名" * 170, " ", "a@b", "a/b", '"\\'):
        assert open_payload(body_with({name: entry("F64", [], 0, 8)}, EIGHT)).keys() == {"model"}


# While it arrives


def checked(body: bytes, cuts: list[int], expected: Layout | None, announced: int | None = None) -> bool:
    """Return whether a `PayloadCheck` takes this body in pieces of these lengths, over and over."""
    try:
        check = PayloadCheck(len(body) if announced is None else announced, expected, nbytes_max=1 << 30)
        place = 0
        for number, length in enumerate(itertools.cycle(cuts)):
            if place >= len(body):
                break
            piece = body[place : place + length]
            check.feed(memoryview(piece) if number % 2 else piece)
            place += length
        check.finish()
    except InvalidPayload:
        return False
    return True


CUTS = st.lists(st.integers(1, 80) | st.just(8) | st.just(1 << 20), min_size=1, max_size=5)


def layout_of(made: dict) -> Layout:
    return payload_layout(layouts_of(made))


@given(slots(), CUTS)
def test_a_right_body_is_taken_in_any_pieces(made: dict, cuts: list[int]) -> None:
    body = body_of(made)
    assert checked(body, cuts, None)
    assert checked(body, cuts, layout_of(made))


@given(slots(), slots(), CUTS)
def test_another_models_body_is_taken_only_where_any_is(made: dict, other: dict, cuts: list[int]) -> None:
    body, agree = body_of(other), layout_of(other).header == layout_of(made).header
    assert checked(body, cuts, layout_of(made)) == agree
    assert checked(body, cuts, None)


@given(slots(), CUTS, st.data())
def test_a_changed_body_is_taken_only_if_its_form_is_right(made: dict, cuts: list[int], data: st.DataObject) -> None:
    body = body_of(made)
    place = data.draw(st.integers(0, len(body)))
    until = data.draw(st.integers(place, min(len(body), place + 8)))
    changed = body[:place] + data.draw(ANYTHING) + body[until:]
    try:
        read_header(changed)
        right = True
    except InvalidPayload:
        right = False
    assert checked(changed, cuts, None) == right
    header = layout_of(made).header
    assert checked(changed, cuts, layout_of(made)) == (len(changed) == len(body) and changed.startswith(header))


@given(slots(), CUTS, st.integers(1, 100))
def test_a_body_has_the_length_that_was_announced(made: dict, cuts: list[int], more: int) -> None:
    body, whole = body_of(made), layout_of(made)
    for expected in (None, whole):
        assert not checked(body, cuts, expected, len(body) + more)
        assert not checked(body, cuts, expected, len(body) - min(more, len(body)))
        assert not checked(body[: -min(more, len(body))], cuts, expected, len(body))
        assert not checked(body + bytes(more), cuts, expected, len(body))


@given(trees(), st.data())
def test_a_foreign_header_is_refused_at_its_first_byte(tree: Tree, data: st.DataObject) -> None:
    body, expected = bytearray(body_of({"model": tree})), layout_of({"model": tree})
    wrong = data.draw(st.integers(0, len(expected.header) - 1))
    body[wrong] ^= data.draw(st.integers(1, 255))
    check = PayloadCheck(len(body), expected, nbytes_max=1 << 30)
    for place in range(wrong):
        check.feed(body[place : place + 1])
    with pytest.raises(InvalidPayload, match="not the one of the job's model") as caught:
        check.feed(body[wrong : wrong + 1])
    assert caught.value.code == "payload.header"


@given(TENSOR_NAMES)
def test_a_new_header_is_refused_before_its_tensors_come(name: str) -> None:
    body = body_with({name: entry("F32", [2], 0, 8)}, bytes(9))
    check = PayloadCheck(len(body), None, nbytes_max=1 << 30)
    check.feed(body[: len(body) - 10])
    with pytest.raises(InvalidPayload) as caught:
        check.feed(body[len(body) - 10 : len(body) - 9])
    assert caught.value.code == "payload.length"


def test_a_length_is_refused_before_anything_comes() -> None:
    tree = Tree.of({"w": np.zeros(4)})
    body = body_of({"model": tree})
    for nbytes in (0, 1, len(body) - 1, len(body) + 1, 2**60):
        with pytest.raises(InvalidPayload) as caught:
            PayloadCheck(nbytes, tree.layout, nbytes_max=1 << 30)
        assert caught.value.code == "payload.length"
    for expected in (None, tree.layout):
        PayloadCheck(len(body), expected, nbytes_max=len(body))
        with pytest.raises(InvalidPayload) as caught:
            PayloadCheck(len(body), expected, nbytes_max=len(body) - 1)
        assert caught.value.code == "payload.too-large"


def test_a_sender_is_stopped_as_soon_as_it_is_wrong() -> None:
    body = body_of({"model": Tree.of({"w": np.zeros(4)})})
    for expected in (None, payload_layout(read_header(body))):
        check = PayloadCheck(len(body), expected, nbytes_max=1 << 30)
        check.feed(body)
        with pytest.raises(InvalidPayload, match="more than the announced") as caught:
            check.feed(b"x")
        assert caught.value.code == "payload.length"
    check = PayloadCheck(100, None, nbytes_max=1 << 30)
    with pytest.raises(InvalidPayload, match="longer than the body") as caught:
        check.feed((93).to_bytes(8, "little"))
    assert caught.value.code == "payload.short"


def test_a_check_keeps_no_more_than_the_header() -> None:
    tree = Tree.of({"w": np.zeros(1 << 18)})
    body = body_of({"model": tree})
    for expected in (None, tree.layout):
        check = PayloadCheck(len(body), expected, nbytes_max=1 << 30)
        check.feed(body)
        check.finish()
        assert len(check._head) == len(tree.layout.header)
