"""The form of docstrings, changelog entries and commit subjects.

The rules, which CONTRIBUTING.md explains: a function's docstring starts with a verb in the imperative ("Return",
"Store"), a class's or a module's with the noun that it is; no relative clause opens one; a changelog entry is one line
that starts with a verb; a commit's subject is imperative and has at most 72 characters. `english.py` has the rules for
sentences anywhere.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.conventions.english import PLACES
from tests.conventions.shape import is_text
from tests.conventions.sources import Finding, nodes, texts, trees

VERBS = frozenset((Path(__file__).with_name("verbs.txt")).read_text(encoding="utf-8").split())
"""Verbs that may open a function's docstring or a commit's subject, in the imperative; add what is missing."""
OPENINGS = re.compile(
    r"(?:What|Who|Whose|Whoever|Whom|Whatever|Whether|Which|That which|Those who|How|Where|When|Why|All that|"
    r"Everything|Everybody|Nobody|Somebody|(?:Of|To|From|By|For|With|In) (?:what|whom|which))\b"
)
DEEDS = re.compile(
    r"(?:Announces|Answers|Asks|Carries|Clears|Compares|Decides|Does|Drives|Ends|Follows|Gives|Has|Holds|Is|Keeps|"
    r"Lets|Looks|Makes|Measures|Moves|Offers|Pauses|Raises|Reads|Receives|Runs|Says|Sees|Sends|Serves|Ships|Signs|"
    r"Speaks|Stands|Starts|Takes|Tells|Turns|Watches|Works|Writes)\b"
)
"""Openings of classes and modules that say what it does instead of what it is."""
SUBJECT_MAX = 72
RULE = "tests/conventions/prose.py"
"""Commits after the one that added this file follow the rule for subjects."""


def docstrings(root: Path) -> list[Finding]:
    """Return each docstring that breaks a rule, and how."""
    return [
        Finding(path, line, f"{why}: {first_line(text)}")
        for path, tree in trees(root)
        if path.startswith(PLACES)
        for line, kind, text in documented(tree)
        for why in faults(kind, text)
    ]


def documented(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield (line, kind, docstring) of a module, its classes, functions, properties and attributes."""
    for node in nodes(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if text := ast.get_docstring(node):
            yield getattr(node, "lineno", 1), kind_of(node), text
        for before, after in zip(node.body, node.body[1:], strict=False):
            if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr) and is_text(after.value):
                yield after.lineno, "attribute", ast.literal_eval(after.value)


def kind_of(node: ast.AST) -> str:
    """Return `class`, `module`, `property` or `function`."""
    if isinstance(node, ast.Module | ast.ClassDef):
        return type(node).__name__.removesuffix("Def").lower()
    decorators = {ast.unparse(one) for one in getattr(node, "decorator_list", ())}
    return "property" if any("property" in one or one.endswith(".setter") for one in decorators) else "function"


def faults(kind: str, text: str) -> Iterator[str]:
    """Yield each rule that a docstring breaks."""
    plain = " ".join(text.split())
    if OPENINGS.match(plain):
        yield "opens with a relative clause"
    elif kind == "function" and not starts_with_a_verb(plain):
        yield "does not start with a verb"
    elif kind in {"class", "module"} and DEEDS.match(plain):
        yield "does not start with a noun"


def starts_with_a_verb(text: str) -> bool:
    """Return whether the first word is a verb of the list; an adverb may stand before it."""
    first, _, rest = text.partition(" ")
    word = first.strip(".,:;!")
    if word.endswith("ly") and word not in VERBS and rest:
        return rest.split()[0].strip(".,:;").capitalize() in VERBS
    return word in VERBS


def first_line(text: str) -> str:
    """Return the beginning of a docstring, shortened."""
    line = text.strip().splitlines()[0]
    return line if len(line) <= 90 else f"{line[:89]}…"


# ---------------------------------------------------------------------------------------------- changelog and commits
def changelog(root: Path) -> list[Finding]:
    """Return each changelog entry that has more than one line, or does not start with a verb."""
    return [
        Finding(name, number, f"{why}: {line.strip()[:60]}")
        for name, text in texts(root)
        if name == "CHANGELOG.md"
        for number, line in enumerate(text.splitlines(), 1)
        if number > text.partition("\n## ")[0].count("\n") + 1
        for why in entry_faults(line)
    ]


def entry_faults(line: str) -> Iterator[str]:
    """Yield each rule that a line of a changelog's sections breaks."""
    if line.startswith(" ") and line.strip():
        yield "continues an entry"
    if line.startswith("- ") and not starts_with_a_verb(line.removeprefix("- ")):
        yield "does not start with a verb"


def commit_subjects(root: Path) -> list[Finding]:
    """Return each commit after the rule's own whose subject is too long or not imperative; none without git."""
    if not (root / ".git").exists():
        return []
    added = _git(root, "log", "--diff-filter=A", "--format=%H", "--", RULE).split()
    if not added:
        return []
    subjects = _git(root, "log", "--no-merges", "--format=%h %s", f"{added[-1]}..HEAD").splitlines()
    return [
        Finding("commit", 1, f"{line}: {why}") for line in subjects for why in subject_faults(line.partition(" ")[2])
    ]


def subject_faults(subject: str) -> Iterator[str]:
    """Yield each rule that a commit's subject breaks."""
    if len(subject) > SUBJECT_MAX:
        yield f"{len(subject)} characters, at most {SUBJECT_MAX}"
    if not starts_with_a_verb(subject):
        yield "not imperative"
    if subject.endswith("."):
        yield "ends with a full stop"


def _git(root: Path, *arguments: str) -> str:
    """Return the output of a git command."""
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout
