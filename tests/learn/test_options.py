"""Texts from the command line become what a function declares."""

from pathlib import Path
from typing import Literal, Optional

import pytest

from shoal.core.errors import InvalidJob
from shoal.learn.options import fitted, literal


def typed(
    whole: int,
    real: float = 0.5,
    flag: bool = False,
    text: str = "",
    place: Path = Path(),
    choice: Literal["a", 2] = "a",
    perhaps: int | None = None,
    maybe: Optional[float] = None,  # noqa: UP045 - people write it
) -> None: ...


def untyped(whole=3, real=0.5, flag=True, text=None, *, bare="x"): ...


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("whole", "-12", -12),
        ("whole", "1_000", 1000),
        ("real", "1e-3", 0.001),
        ("real", "2", 2.0),
        ("flag", "Yes", True),
        ("flag", "0", False),
        ("text", "007", "007"),
        ("place", "a/b", Path("a/b")),
        ("choice", "2", 2),
        ("choice", "a", "a"),
        ("perhaps", "5", 5),
        ("maybe", "0.25", 0.25),
    ],
)
def test_texts_become_the_declared_type(name: str, text: str, value: object) -> None:
    found = fitted(typed, {"whole": "1", name: text}, "it")[name]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("whole", "4", 4), ("real", "4", 4.0), ("flag", "off", False), ("text", "4", 4), ("bare", "4", "4")],
)
def test_without_a_declared_type_the_default_decides(name: str, text: str, value: object) -> None:
    found = fitted(untyped, {name: text}, "it")[name]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("whole", "1.5", "not a whole number"),
        ("real", "much", "not a number"),
        ("flag", "maybe", "not true or false"),
        ("choice", "b", "option choice is 'b'"),
        ("perhaps", "", "not a whole number"),
    ],
)
def test_texts_of_another_type_are_refused(name: str, text: str, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        fitted(typed, {"whole": "1", name: text}, "it")


def test_classes_and_wild_functions() -> None:
    class Thing:
        def __init__(self, size: int, **more: object) -> None: ...

    assert fitted(Thing, {"size": "3", "color": "red"}, "it") == {"size": 3, "color": "red"}
    with pytest.raises(InvalidJob, match="needs size") as told:
        fitted(Thing, {}, "it")
    assert told.value.hint == "it takes size"
    with pytest.raises(InvalidJob, match="has no option x") as told:
        fitted(lambda: 3, {"x": "1"}, "it")
    assert told.value.hint == "it takes no options"


def test_annotations_that_cannot_be_read_are_passed_over() -> None:
    def odd(size: "Nowhere" = 3): ...  # noqa: F821

    assert fitted(odd, {"size": "4"}, "it") == {"size": 4}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.05", 0.05),
        ("true", True),
        ('"3"', "3"),
        ("iid", "iid"),
        ("dirichlet:0.5", "dirichlet:0.5"),
        ("", ""),
        ("/a b/c", "/a b/c"),
        ('[1, "a"]', [1, "a"]),
        ("1\nother = 2", "1\nother = 2"),
        ("a=b", "a=b"),
    ],
)
def test_values_are_toml_or_text(text: str, value: object) -> None:
    assert literal(text) == value
    assert type(literal(text)) is type(value)
