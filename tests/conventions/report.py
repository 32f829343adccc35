"""The table of conventions, and the places that do not keep one.

python -m tests.conventions.report               the table
python -m tests.conventions.report RULE [PATH]   what breaks a rule, or is large, below a path; the largest first
"""

import statistics
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.conventions import cycles, english, names, prose, shape
from tests.conventions.sources import PYTHON_PACKAGES, ROOT, Finding

LIMITS = Path(__file__).with_name("limits.toml")


class Rule(NamedTuple):
    """A number that the project keeps small. `biggest`: the number is the largest size, else the sum of all sizes."""

    title: str
    target: int
    find: Callable[[Path], list[Finding]]
    biggest: bool = False

    def number(self, findings: list[Finding]) -> int:
        """Return the project's number."""
        sizes = [finding.size for finding in findings]
        return max(sizes, default=0) if self.biggest else sum(sizes)

    def offenders(self, findings: list[Finding]) -> list[Finding]:
        """Return what keeps the number above its target: all that count, or those that are too large."""
        found = [one for one in findings if one.size > self.target] if self.biggest else findings
        return sorted(found, key=lambda one: (-one.size, one.path, one.line))


RULES = {
    "code-lines": Rule("code lines of the four Python packages", 33_000, shape.code_lines),
    "files-in-folder": Rule("most files in a folder", 12, shape.files_in_folder, biggest=True),
    "class-homes": Rule("class names with several homes", 0, names.class_homes),
    "file-names": Rule("file names used in more than two folders", 0, names.file_names),
    "banned-words": Rule("banned words", 0, names.banned_words),
    "docstrings": Rule("docstrings that break a style rule", 0, prose.docstrings),
    "sentences": Rule("sentences that are not plain English", 0, english.sentences),
    "changelog": Rule("changelog entries that break a rule", 0, prose.changelog),
    "commit-subjects": Rule("commit subjects that break a rule", 0, prose.commit_subjects),
    "import-cycles": Rule("modules and packages in import cycles", 0, cycles.import_cycles),
    "class-methods": Rule("most methods in a class", 25, shape.class_methods, biggest=True),
    "class-attributes": Rule("most attributes in a class", 15, shape.class_attributes, biggest=True),
    "function-lines": Rule("longest function", 60, shape.function_lines, biggest=True),
}


def limits() -> dict[str, int]:
    """Return the largest number that each rule allows today."""
    return tomllib.loads(LIMITS.read_text(encoding="utf-8"))


def table(root: Path) -> str:
    """Return the table: each rule's number, today's limit and the target; code lines per package besides."""
    rows = [("", "now", "limit", "target")]
    today = limits()
    for name, rule in RULES.items():
        findings = rule.find(root)
        rows.append((rule.title, f"{rule.number(findings):,}", f"{today[name]:,}", f"{rule.target:,}"))
        if name == "code-lines":
            for package in PYTHON_PACKAGES:
                lines = sum(one.size for one in findings if one.path.startswith(f"{package}/"))
                rows.append((f"  {package.rpartition('/')[2]}", f"{lines:,}", "", ""))
        if name == "function-lines":
            median = statistics.median([one.size for one in findings] or [0])
            rows.append(("median function length", f"{median:g}", "", "6"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )


def main(arguments: list[str]) -> int:
    """Print the table, or the offenders of one rule."""
    if not arguments:
        print(table(ROOT))
        return 0
    name, *paths = arguments
    if name not in RULES:
        print(f"no rule {name!r}; there are: {', '.join(RULES)}", file=sys.stderr)
        return 2
    rule = RULES[name]
    findings = rule.offenders(rule.find(ROOT))
    shown = [one for one in findings if not paths or one.path.startswith(tuple(paths))]
    for one in shown:
        print(one)
    print(f"{len(shown)} of {len(findings)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
