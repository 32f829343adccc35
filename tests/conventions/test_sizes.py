"""Nothing is longer than a person can hold in mind."""

import ast
from pathlib import Path

from tests.conventions.sources import ROOT, nodes, plant, texts, trees

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 8
SOURCES = (".py", ".ts", ".tsx", ".js", ".mjs", ".css", ".sh")
GENERATED = (".d.ts",)  # types made from the API's description
LISTS = ("tests/",)  # read from top to bottom, whatever their length


def long_files(root: Path) -> list[str]:
    """Source files of more than FILE_LINES_MAX lines, tests included."""
    lengths = {
        name: len(text.splitlines())
        for name, text in texts(root)
        if name.endswith(SOURCES) and not name.endswith(GENERATED)
    }
    return [f"{name}: {n} lines, at most {FILE_LINES_MAX}" for name, n in lengths.items() if n > FILE_LINES_MAX]


def large_functions(root: Path) -> list[str]:
    """Functions that are too long or take too many parameters (self and cls not counted); LISTS may."""
    found = []
    for name, tree in trees(root):
        for node in nodes(tree):
            if name.startswith(LISTS) or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            where = f"{name}:{node.lineno}: {node.name}"
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                found.append(f"{where}: {lines} lines, at most {FUNCTION_LINES_MAX}")
            parameters = parameters_of(node)
            if parameters > PARAMETERS_MAX:
                found.append(f"{where}: {parameters} parameters, at most {PARAMETERS_MAX}")
    return found


def parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many arguments a function takes, `*args` and `**kwargs` counted as one each."""
    spec = node.args
    named = [argument.arg for argument in (*spec.posonlyargs, *spec.args)]
    bound = 1 if named and named[0] in {"self", "cls"} else 0
    return len(named) - bound + len(spec.kwonlyargs) + (spec.vararg is not None) + (spec.kwarg is not None)


def test_files_are_short() -> None:
    assert long_files(ROOT) == []


def test_functions_are_small() -> None:
    assert large_functions(ROOT) == []


def test_long_files_are_found(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "shoal/long.py": "x = 1\n" * 501,
            "tests/test_long.py": "x = 1\n" * 501,
            "dashboard/src/page.tsx": "x\n" * 501,
            "dashboard/src/api.d.ts": "x\n" * 501,
            "shoal/right.py": "x = 1\n" * 500,
            "notes.md": "x\n" * 501,
        },
    )
    assert [line.partition(":")[0] for line in long_files(tmp_path)] == [
        "dashboard/src/page.tsx",
        "shoal/long.py",
        "tests/test_long.py",
    ]


def test_large_functions_are_found(tmp_path: Path) -> None:
    body = "    x = 1\n"
    plant(
        tmp_path,
        {
            "shoal/long.py": f"async def long():\n{body * 60}\ndef right():\n{body * 59}",
            "shoal/wide.py": (
                "class Thing:\n"
                "    def wide(self, a, b, c, d, /, e, f, *args, g, **more): ...\n"
                "    def right(self, a, b, c, d, e, f, *, g, h): ...\n"
            ),
            "tests/test_long.py": f"def test_long():\n{body * 60}",
        },
    )
    assert large_functions(tmp_path) == [
        "shoal/long.py:1: long: 61 lines, at most 60",
        "shoal/wide.py:2: wide: 9 parameters, at most 8",
    ]
