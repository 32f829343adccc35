"""Counter-examples for the form of docstrings, changelog entries and commit subjects."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conventions import prose
from tests.conventions.sources import plant

BAD = {
    "function": [
        "What a peer is told.",
        "Whether it listens.",
        "How long it waits.",
        "The path of the database.",
        "Makes of what was passed on what was asked.",
        "Bytes that were sent.",
        "Of what was passed it makes a request.",
    ],
    "class": ["What outlives a request.", "Keeps the job's events."],
    "module": ["Who owns a job.", "Signs what peers believe."],
    "property": ["Whether it listens."],
    "attribute": ["Where it lies."],
}
GOOD = {
    "function": [
        "Return the path of the database.",
        "Atomically replace a file.",
        "Apply the effects.",
        "Store the update; raise `Refused` when it is too large.",
    ],
    "class": ["The state machine of one job.", "Raised when a report is refused.", "A task's timer."],
    "module": ["Routes of jobs."],
    "property": ["The number of nodes.", "Return the number of nodes."],
    "attribute": ["Seconds between two pings."],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind in BAD for text in BAD[kind]])
def test_bad_docstrings_are_found(kind: str, text: str) -> None:
    assert list(prose.faults(kind, text)) != []


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind in GOOD for text in GOOD[kind]])
def test_good_docstrings_pass(kind: str, text: str) -> None:
    assert list(prose.faults(kind, text)) == []


def test_docstrings_of_every_kind_are_read(tmp_path: Path) -> None:
    source = (
        '"""What this is."""\n\nX = 1\n"""Where it lies."""\n\n\nclass Thing:\n    """Who owns it."""\n\n    x: int\n'
        '    """How many."""\n\n    @property\n    def size(self):\n        """The number."""\n\n'
        '    async def go(self):\n        """The number."""\n'
    )
    plant(tmp_path, {"shoal/one.py": source, "tests/two.py": source})
    assert [(one.path, one.line) for one in prose.docstrings(tmp_path)] == [
        ("shoal/one.py", line) for line in (1, 4, 7, 11, 17)
    ]


def test_changelog_entries_of_two_lines_or_without_a_verb_are_found(tmp_path: Path) -> None:
    text = "# Changes\n\nTwo lines\n  of preface.\n\n## [Unreleased]\n\n- Use one.\n- Use\n  two.\n- A faster poll.\n"
    assert [one.line for one in prose.changelog(plant(tmp_path, {"CHANGELOG.md": text}))] == [10, 11]


@pytest.mark.parametrize("subject", ["A node drains", "Refused reports count", "Widen it.", f"Widen {'x' * 67}"])
def test_bad_subjects_are_found(subject: str) -> None:
    assert list(prose.subject_faults(subject)) != []


def test_an_imperative_subject_passes() -> None:
    assert list(prose.subject_faults("Widen the cohort when a node is lost")) == []


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not there")
def test_subjects_count_from_the_rule_on(tmp_path: Path) -> None:
    def commit(subject: str) -> None:
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        for command in (["add", "-A"], [*author, "commit", "-qm", subject]):
            subprocess.run(["git", *command], cwd=tmp_path, check=True)

    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for number, (path, subject) in enumerate([("a", "Whatever"), (prose.RULE, "No rule yet"), ("b", "A node drains")]):
        plant(tmp_path, {path: str(number)})
        commit(subject)
    (found,) = prose.commit_subjects(tmp_path)
    assert "A node drains: not imperative" in found.text
