"""Packages that need each other: between siblings at every level, imports form no circle."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from tests.conventions.sources import PYTHON_PACKAGES, Finding, nodes, trees


def import_cycles(root: Path) -> list[Finding]:
    """Return each set of sibling modules or packages that import each other in a circle; its size is their number."""
    modules = dict(module_names(root))
    needs = {name: set(imports_of(tree, name, path, modules)) for name, (path, tree) in modules.items()}
    packages = sorted({name.rpartition(".")[0] for name in modules} - {""})
    ancestors = sorted({*packages, *(part for name in packages for part in parents_of(name))})
    return [
        Finding(ancestor.replace(".", "/"), 1, describe(circle, graph), len(circle))
        for ancestor in ancestors
        if (graph := sibling_graph(needs, ancestor))
        for circle in circles(graph)
    ]


def describe(circle: list[str], graph: Mapping[str, set[str]]) -> str:
    """Return the names in a circle, each with those of them that it imports."""
    return "; ".join(f"{name} -> {', '.join(sorted(graph[name].intersection(circle)))}" for name in circle)


def module_names(root: Path) -> Iterator[tuple[str, tuple[str, ast.Module]]]:
    """Yield (dotted name, (path, tree)) of each module of the packages."""
    for path, tree in trees(root, *PYTHON_PACKAGES):
        parent = next(package for package in PYTHON_PACKAGES if path.startswith(f"{package}/"))
        inside = PurePosixPath(path).relative_to(PurePosixPath(parent).parent).with_suffix("")
        name = ".".join(inside.parts)
        yield name.removesuffix(".__init__"), (path, tree)


def imports_of(tree: ast.Module, own: str, path: str, modules: Mapping[str, object]) -> Iterator[str]:
    """Yield the modules of the packages that a module imports, late imports and those for types included."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                name = full if full in modules else node.module
                if name in modules and name != own:
                    yield name


def sibling_graph(needs: Mapping[str, set[str]], ancestor: str) -> dict[str, set[str]]:
    """Return which children of a package import which, whatever the depth of the modules."""
    graph: dict[str, set[str]] = {}
    prefix = f"{ancestor}."
    for name, imported in needs.items():
        if not name.startswith(prefix):
            continue
        child = name.removeprefix(prefix).partition(".")[0]
        others = {one.removeprefix(prefix).partition(".")[0] for one in imported if one.startswith(prefix)}
        graph.setdefault(child, set()).update(others - {child})
    return graph


def parents_of(name: str) -> list[str]:
    """Return the packages above a dotted name."""
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node, each sorted."""
    reach = {name: reachable(graph, name) for name in graph}
    found = {tuple(sorted({name, *(other for other in reach[name] if name in reach.get(other, ()))})) for name in reach}
    return [list(one) for one in sorted(found) if len(one) > 1]


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Return all names that can be reached from one."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        for name in graph.get(todo.pop(), ()):
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return seen
