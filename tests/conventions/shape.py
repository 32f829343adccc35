"""The size of packages, folders, classes and functions."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tests.conventions.sources import PYTHON_PACKAGES, Finding, nodes, texts, trees

COLLECTIONS = (
    "benchmarks",  # one script per measurement
    "coordinator/shoal_coordinator/api/routes",
    "coordinator/shoal_coordinator/schemas",
    "coordinator/shoal_coordinator/storage/migrations/versions",
    "shoal/algorithms",
    "shoal/cli/commands",
    "shoal/filters",
    "shoal/mixing",
    "shoal/schedules",
    "shoal/selection",
)
"""Folders of like things, which may hold any number of files."""
RECORDS = {"BaseModel", "BaseSettings", "NamedTuple", "TypedDict", "Protocol", "StrEnum", "Enum", "IntEnum"}
"""Bases whose fields are data that the wire or a file spells out, not state that methods share."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


# ----------------------------------------------------------------------------------------------------------- packages
def code_lines(root: Path) -> list[Finding]:
    """Return each file of the four Python packages with its lines of code."""
    sources = dict(texts(root))
    return [
        Finding(name, 1, f"{lines} lines of code", lines)
        for name, tree in trees(root, *PYTHON_PACKAGES)
        if (lines := count_code_lines(sources[name], tree))
    ]


def count_code_lines(source: str, tree: ast.Module) -> int:
    """Return the number of lines that are neither blank nor a comment nor part of a docstring."""
    documented = {
        line
        for node in nodes(tree)
        if isinstance(node, ast.Expr) and is_text(node.value)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in documented
        for number, line in enumerate(source.splitlines(), 1)
    )


def is_text(node: ast.expr) -> bool:
    """Return whether an expression is a literal string."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def files_in_folder(root: Path) -> list[Finding]:
    """Return each folder of Python files with their number (`__init__` and `__main__` left out), collections exempt."""
    folders = Counter(
        PurePosixPath(name).parent.as_posix()
        for name, _ in texts(root)
        if name.endswith(".py")
        and not name.startswith("tests/")
        and PurePosixPath(name).stem.strip("_") == PurePosixPath(name).stem
    )
    return [
        Finding(folder, 1, f"{count} files", count) for folder, count in folders.items() if folder not in COLLECTIONS
    ]


# ------------------------------------------------------------------------------------------------------------ classes
def class_methods(root: Path) -> list[Finding]:
    """Return each class with the number of its methods, inherited ones included."""
    return [
        Finding(path, node.lineno, f"{node.name}: {len(methods)} methods", len(methods))
        for path, node, methods, _ in class_members(root)
    ]


def class_attributes(root: Path) -> list[Finding]:
    """Return each class with the number of its attributes, inherited ones included; records have fields instead."""
    return [
        Finding(path, node.lineno, f"{node.name}: {len(attributes)} attributes", len(attributes))
        for path, node, _, attributes in class_members(root)
    ]


def class_members(root: Path) -> Iterator[tuple[str, ast.ClassDef, set[str], set[str]]]:
    """Yield (path, class, names of methods, names of attributes) of every class of the packages."""
    found = [
        (path, node)
        for path, tree in trees(root, *PYTHON_PACKAGES)
        for node in nodes(tree)
        if isinstance(node, ast.ClassDef)
    ]
    by_name: dict[str, list[tuple[str, ast.ClassDef]]] = {}
    for path, node in found:
        by_name.setdefault(node.name, []).append((path, node))

    def line(path: str, node: ast.ClassDef, seen: tuple[ast.ClassDef, ...] = ()) -> Iterator[ast.ClassDef]:
        yield node
        for base in node.bases:
            name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base).rpartition(".")[2]
            homes = by_name.get(name, [])
            chosen = [pair for pair in homes if pair[0] == path] or homes[:1]
            for home, ancestor in chosen[:1]:
                if ancestor not in (*seen, node):
                    yield from line(home, ancestor, (*seen, node))

    for path, node in found:
        ancestors = list(line(path, node))
        methods = {name for one in ancestors for name in methods_of(one)}
        attributes = {name for one in ancestors for name in attributes_of(one)} - methods
        yield path, node, methods, set() if any(is_record(one) for one in ancestors) else attributes


def methods_of(node: ast.ClassDef) -> set[str]:
    """Return the names of a class's functions, properties among them, dunders left out."""
    return {
        one.name
        for one in node.body
        if isinstance(one, Function) and not (one.name.startswith("__") and one.name.endswith("__"))
    }


def attributes_of(node: ast.ClassDef) -> set[str]:
    """Return the names of a class's own attributes: fields, and what its methods assign to `self`."""
    fields = {
        one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign)
        and isinstance(one.target, ast.Name)
        and "ClassVar" not in ast.unparse(one.annotation)
    }
    assigned = {
        target.attr
        for method in node.body
        if isinstance(method, Function)
        for statement in ast.walk(method)
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign)
        for whole in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
        for target in ast.walk(whole)
        if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store)
        if isinstance(target.value, ast.Name) and target.value.id == "self"
    }
    return fields | assigned


def is_record(node: ast.ClassDef) -> bool:
    """Return whether a class's fields are data: a schema, a tuple, an enumeration, or a frozen dataclass."""
    bases = {
        ast.unparse(base.value if isinstance(base, ast.Subscript) else base).rpartition(".")[2] for base in node.bases
    }
    frozen = any("dataclass" in ast.unparse(one) and "frozen=True" in ast.unparse(one) for one in node.decorator_list)
    return frozen or bool(bases & RECORDS)


# ---------------------------------------------------------------------------------------------------------- functions
def function_lines(root: Path) -> list[Finding]:
    """Return each function of the packages with the number of its lines."""
    return [
        Finding(path, node.lineno, f"{node.name}: {lines} lines", lines)
        for path, tree in trees(root, *PYTHON_PACKAGES)
        for node in nodes(tree)
        if isinstance(node, Function)
        if (lines := (node.end_lineno or node.lineno) - node.lineno + 1)
    ]
