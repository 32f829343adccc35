"""One exception tree; its docstring draws it completely."""

import inspect
import re

import pytest

from shoal.core import errors
from shoal.core.errors import ShoalError

CLASSES = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, ShoalError)}


def drawn() -> dict[str, str]:
    """The parent of each class in the drawing ("" for the root)."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([│├└─ ]*)([A-Z]\w+)  ", line)
        if found:
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            parents[found[2]] = path[depth - 1] if depth else ""
    return parents


def test_the_drawing_is_the_tree() -> None:
    assert drawn() == {name: "" if kind is ShoalError else kind.__mro__[1].__name__ for name, kind in CLASSES.items()}


def test_codes_are_stable_and_different() -> None:
    codes = [kind.default_code for kind in CLASSES.values()]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(\.[a-z-]+)*", code) for code in codes)


@pytest.mark.parametrize("kind", CLASSES.values())
def test_an_error_says_what_and_what_to_do(kind: type[ShoalError]) -> None:
    plain = kind("it broke")
    assert (str(plain), plain.message, plain.code, plain.hint) == ("it broke", "it broke", kind.default_code, "")
    full = kind("it broke", code="some.code", hint="mend it")
    assert (full.code, full.hint) == ("some.code", "mend it")
    assert inspect.getdoc(kind)
