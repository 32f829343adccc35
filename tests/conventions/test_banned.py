"""What may not stand in the project: ways to run foreign code, swallowed errors, half-done work, names of a place."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conventions.sources import PACKAGES, ROOT, dotted, nodes, plant, texts, trees

# Each of these turns bytes from outside into code (or, torchvision, doesn't fit the CPU build of torch).
MODULES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve", "torchvision"}
CALLS = {"torch.save", "torch.load", "torch.jit.load", "torch.package", "numpy.save", "np.save", "pandas.read_pickle"}
MAY_PRINT = ("shoal/cli/",)

# Written so that no pattern matches itself.
MARKS = re.compile(r"\b(?:TO[D]O|FIX[M]E|X[X]X|HAC[K])\b")
HOSTS = re.compile(
    r"\b(?:pypi|npmjs|yarnpkg|pythonhosted|anaconda|debian|ubuntu)\.(?:com|io|net|org)\b|\bdownload\.pytorch\b"
)
PLACES = re.compile(
    r"/work/(?:main|shared|\.library)\b|(?<![\w.])/ro[o]t/|/home/\w+/|/opt/(?:pypi|wheels)\b|/tmp/(?:venv|notes)\b"
    r"|\.\./shared\b|\b(?:ALGORITHMS|CONTRACT|DESIGN|ECOSYSTEM|GOSSIP|PERFORMANCE|RELIABILITY|SCALE)\.md\b"
)
UNPUBLISHED = re.compile(r"""\bpip3? install (?:-\S+ )*['"]?shoal(?![\w/-]|\.\w)""")
LOCKS = ("package-lock.json",)  # their checksums spell anything


def foreign_code(root: Path) -> list[str]:
    """Imports and calls that can run code found in data."""
    return [f"{name}:{line}: {what}" for name, tree in trees(root) for line, what in foreign_nodes(tree)]


def foreign_nodes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, what) of each in one file."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            imported = []
        for name in imported:
            if name.partition(".")[0] in MODULES or name in CALLS:
                yield node.lineno, f"imports {name}"
        if isinstance(node, ast.Attribute) and (name := dotted(node)) in CALLS:
            yield node.lineno, f"uses {name}"
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield node.value.lineno, "allows pickle"


def swallowed_errors(root: Path) -> list[str]:
    """Handlers that do nothing, and `suppress` of everything."""
    found = []
    for name, tree in trees(root):
        for node in nodes(tree):
            if isinstance(node, ast.ExceptHandler) and all(is_nothing(statement) for statement in node.body):
                found.append(f"{name}:{node.lineno}: an error is swallowed")
            if isinstance(node, ast.Call) and dotted(node.func) in {"suppress", "contextlib.suppress"}:
                too_wide = {"BaseException", "Exception"} & {dotted(argument) for argument in node.args}
                found += [f"{name}:{node.lineno}: every {kind} is swallowed" for kind in sorted(too_wide)]
    return found


def is_nothing(statement: ast.stmt) -> bool:
    """Whether a statement is `pass`, `...` or a lone string."""
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def half_done(root: Path) -> list[str]:
    """Marks of work left for later."""
    found = [
        f"{name}:{line}: {mark.group()}"
        for name, text in texts(root)
        if not name.endswith(LOCKS)
        for line, mark in matches(MARKS, text)
    ]
    found += [
        f"{name}:{node.lineno}: {node.id}"
        for name, tree in trees(root)
        for node in nodes(tree)
        if isinstance(node, ast.Name) and node.id == "NotImplementedError"
    ]
    return found


def prints(root: Path) -> list[str]:
    """Calls of print in the packages, outside the command line: everything else reports or logs."""
    return [
        f"{name}:{node.lineno}: print"
        for name, tree in trees(root, *PACKAGES)
        if not name.startswith(MAY_PRINT)
        for node in nodes(tree)
        if isinstance(node, ast.Call) and dotted(node.func) == "print"
    ]


def named_places(root: Path) -> list[str]:
    """Hosts of package registries, and paths and papers that exist only where the project was written."""
    return [
        f"{name}:{line}: {match.group()}"
        for name, text in texts(root)
        for pattern in (HOSTS, PLACES)
        for line, match in matches(pattern, text)
    ]


def unpublished_installs(root: Path) -> list[str]:
    """Commands that install shoal from a package index: none has it. Install a folder, or a wheel's file."""
    return [
        f"{name}:{line}: {match.group()}" for name, text in texts(root) for line, match in matches(UNPUBLISHED, text)
    ]


def matches(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, re.Match[str]]]:
    """(line number, match) of every place where the pattern is found."""
    for number, line in enumerate(text.splitlines(), 1):
        for match in pattern.finditer(line):
            yield number, match


RULES = (foreign_code, swallowed_errors, half_done, prints, named_places, unpublished_installs)


@pytest.mark.parametrize("rule", RULES)
def test_nothing_banned_is_here(rule) -> None:
    assert rule(ROOT) == []


@pytest.mark.parametrize(
    "source",
    [
        *(f"import {name}\n" for name in sorted(MODULES)),
        "from pickle import loads\n",
        "import dill.session\n",
        "from torch import load\n",
        "import torch\ntorch.save({}, 'x')\n",
        "import torch\ntorch.load('x')\n",
        "import numpy as np\nnp.load('x', allow_pickle=True)\n",
    ],
)
def test_foreign_code_is_found(tmp_path: Path, source: str) -> None:
    assert len(foreign_code(plant(tmp_path, {"tests/bad.py": source}))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    x()\nexcept:\n    pass\n",
        "try:\n    x()\nexcept (KeyError, ValueError):\n    ...\n",
        "try:\n    x()\nexcept Exception:\n    'never mind'\n",
        "with contextlib.suppress(OSError, Exception):\n    x()\n",
    ],
)
def test_swallowed_errors_are_found(tmp_path: Path, source: str) -> None:
    assert len(swallowed_errors(plant(tmp_path, {"dev.py": source}))) == 1


@pytest.mark.parametrize("mark", ["TO" + "DO", "FIX" + "ME", "X" * 3, "HAC" + "K"])
def test_half_done_work_is_found(tmp_path: Path, mark: str) -> None:
    plant(tmp_path, {"shoal/bad.py": f"# {mark}: later\n", "docs/bad.md": f"{mark}\n"})
    plant(tmp_path, {"dashboard/package-lock.json": f"sha512-a/{mark}+b", "docs/fine.md": f"{mark}S, a{mark}"})
    assert half_done(tmp_path) == [f"docs/bad.md:1: {mark}", f"shoal/bad.py:1: {mark}"]


def test_missing_bodies_are_found(tmp_path: Path) -> None:
    plant(tmp_path, {"shoal/bad.py": "def f():\n    raise NotImplementedError('later')\n"})
    assert half_done(tmp_path) == ["shoal/bad.py:2: NotImplementedError"]


def test_prints_are_found(tmp_path: Path) -> None:
    source = "print('x')\n"
    plant(tmp_path, dict.fromkeys(("shoal/bad.py", "shoal/cli/fine.py", "dev.py", "examples/fine.py"), source))
    assert prints(tmp_path) == ["shoal/bad.py:1: print"]


@pytest.mark.parametrize(
    "text",
    [
        "https://py|pi.org/simple",
        "from files.python|hosted.org",
        "see registry.npm|js.org.",
        "deb.debi|an.org",
        "--extra-index-url https://download.py|torch.org/whl/cpu",
        "cd /work/ma|in",
        "in /ro|ot/x",
        "in /home/|jo/x",
        "--data ../sha|red/data",
        "as DESI|GN.md says",
    ],
)
def test_named_places_are_found(tmp_path: Path, text: str) -> None:
    """The bar keeps this file itself within the rule."""
    plant(tmp_path, {"README.md": "\n" + text.replace("|", "") + "\n"})
    assert [line.partition(": ")[0] for line in named_places(tmp_path)] == ["README.md:2"]


def test_ordinary_paths_and_hosts_are_no_places(tmp_path: Path) -> None:
    text = "GET /api/v1/work?wait_s=30, /var/lib/shoal, /tmp/x, http://127.0.0.1:8080, the root/\n"
    assert named_places(plant(tmp_path, {"README.md": text})) == []


@pytest.mark.parametrize(
    "text",
    [
        "pip install sh|oal",
        "`pip install 'sh|oal[torch]'`",
        'pip install "sh|oal"',
        "bin/pip3 install -U --quiet sh|oal.",
    ],
)
def test_installs_from_an_index_are_found(tmp_path: Path, text: str) -> None:
    plant(tmp_path, {"dashboard/src/a.ts": "\n" + text.replace("|", "") + "\n"})
    assert [line.partition(": ")[0] for line in unpublished_installs(tmp_path)] == ["dashboard/src/a.ts:2"]


def test_installs_from_a_folder_or_a_file_are_fine(tmp_path: Path) -> None:
    text = (
        "pip install '.[torch]', pip install 'shoal-0.1.0-py3-none-any.whl[torch]', pip install shoal/, install shoal\n"
    )
    assert unpublished_installs(plant(tmp_path, {"README.md": text})) == []
