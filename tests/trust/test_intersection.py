"""Two parties find the ids that both have, in one order, and exchange masked ids only."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from shoal.core.errors import InvalidJob, Refused
from shoal.trust.intersection import POINT, PrivateIntersection, SaltedIntersection

SECRET = bytes(range(16))
ONE = (
    b"\x6b\x17\xd1\xf2\xe1\x2c\x42\x47\xf8\xbc\xe6\xe5\x63\xa4\x40\xf2\x77\x03\x7d\x81\x2d\xeb\x33\xa0\xf4\xa1\x39\x45"
)
GENERATOR = ONE + b"\xd8\x98\xc2\x96"
"""The x-coordinate of P-256's generator (FIPS 186-4, D.1.2.3)."""

Rows = list[int]


def privately(mine: Sequence[str | bytes], theirs: Sequence[str | bytes]) -> tuple[Rows, Rows]:
    """The rows of both parties after an exchange."""
    a, b = PrivateIntersection(mine), PrivateIntersection(theirs)
    to_a, to_b = b.answer(a.masked()), a.answer(b.masked())
    return a.rows(to_a), b.rows(to_b)


def salted(mine: Sequence[str | bytes], theirs: Sequence[str | bytes]) -> tuple[Rows, Rows]:
    """The rows of both parties with one secret."""
    a, b = SaltedIntersection(mine, SECRET), SaltedIntersection(theirs, SECRET)
    return a.rows(b.masked()), b.rows(a.masked())


@pytest.mark.parametrize("between", [privately, salted])
@pytest.mark.parametrize("sizes", [(0, 0, 0), (0, 7, 0), (300, 200, 120), (40, 90, 40)])
def test_both_find_the_common_ids_in_one_order(between: object, sizes: tuple[int, int, int]) -> None:
    first, second, common = sizes
    rng = Random(sum(sizes))
    people = [f"person-{n}" for n in rng.sample(range(10_000), first + second - common)]
    mine, theirs = people[:first], people[first - common :]
    rng.shuffle(theirs)
    rows, their_rows = between(mine, theirs)  # type: ignore[operator]
    found = [mine[row] for row in rows]
    assert found == [theirs[row] for row in their_rows]
    assert len(found) == common
    assert set(found) == set(mine) & set(theirs)
    assert common < 40 or found != sorted(found)


def test_masked_ids_differ_in_each_intersection() -> None:
    first, second = PrivateIntersection(["a", b"b"]), PrivateIntersection(["a", b"b"])
    sent = {first.masked()[:POINT], first.masked()[POINT:], second.masked()[:POINT], second.masked()[POINT:]}
    assert len(sent) == 4


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (["a", ""], "the id of row 1 is ''"),
        (["a", 7], "the id of row 1 is 7"),
        (["a", "b", b"a"], "the rows 0 and 2 have the same id, b'a'"),
    ],
)
def test_ids_that_name_no_person_are_refused(ids: list[str | bytes], text: str) -> None:
    for make in (PrivateIntersection, lambda ids: SaltedIntersection(ids, SECRET)):
        with pytest.raises(InvalidJob, match=text):
            make(ids)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"\x01" * 31, "a message of 31 bytes; 32 for each"),
        (GENERATOR * 2, "a masked id is repeated"),
        (GENERATOR + b"\xff" * 32, "masked id 1 is not a point of P-256"),
    ],
    ids=["length", "repeated", "no point"],
)
def test_messages_of_another_form_are_refused_and_change_nothing(message: bytes, text: str) -> None:
    a, b = PrivateIntersection(["a"]), PrivateIntersection(["a", "b"])
    with pytest.raises(Refused, match=text):
        a.answer(message)
    a.answer(b.masked())
    assert a.rows(b.answer(a.masked())) == [0]


def test_a_party_answers_once_and_takes_an_answer_to_its_own_ids_alone() -> None:
    a, b = PrivateIntersection(["a"]), PrivateIntersection(["a", "b"])
    with pytest.raises(Refused, match="an answer before the other party's ids"):
        a.rows(b.answer(a.masked()))
    a.answer(b.masked())
    with pytest.raises(Refused, match="have been answered"):
        a.answer(b.masked())
    with pytest.raises(Refused, match="an answer of 2 ids to 1"):
        a.rows(b.masked())


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(InvalidJob, match="a secret of 15 bytes"):
        SaltedIntersection(["a"], SECRET[1:])


def test_a_message_of_too_many_ids_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.trust.intersection.IDS_MAX", 1)
    with pytest.raises(Refused, match="at most 1 ids"):
        PrivateIntersection([]).answer(bytes(64))
    with pytest.raises(InvalidJob, match="2 ids; at most 1"):
        PrivateIntersection(["a", "b"])
