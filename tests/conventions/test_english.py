"""Counter-examples for plain English, and the places where it is looked for."""

from pathlib import Path

import pytest

from tests.conventions import english
from tests.conventions.english import PATTERNS, Pattern
from tests.conventions.sources import plant

BAD = "It waits for nobody."
DOCSTRING = f'"""A module.\n\n{BAD}\n"""\n'
STRING = f'ERROR = "{BAD}"\n'
COMMENT = "X = 1\n# It waits\n# for nobody.\n"


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_each_pattern_finds_its_counter_example_and_no_plain_sentence(pattern: Pattern) -> None:
    assert [fault.partition(":")[0] for fault in english.faults(pattern.bad)] == [pattern.name]
    assert list(english.faults(pattern.good)) == []


@pytest.mark.parametrize(
    ("path", "text", "lines"),
    [
        ("shoal/one.py", DOCSTRING, [1]),
        ("shoal/one.py", COMMENT, [2]),
        ("shoal/one.py", STRING, [1]),
        ("shoal/one.py", 'raise Refused(\n    f"{node} waits "\n    "for nobody"\n)\n', [2]),
        ("shoal/one.py", f'\nURL = "http://a/#b"  # {BAD}\n', [2]),
        ("tests/one.py", DOCSTRING, [1]),
        ("tests/one.py", COMMENT, [2]),
        ("docs/one.md", "# A page\n\nIt waits\nfor nobody.\n", [3]),
        ("docs/one.md", f"- A list.\n- {BAD}\n", [2]),
        ("docs/one.md", "| key | |\n|---|---|\n| `size` | whoever asks |\n", [3]),
        ("docs/one.md", f"```sh\nmake\n```\n{BAD}\n", [4]),
        ("deploy/try.sh", f"make  # {BAD}\n", [1]),
        ("pyproject.toml", f"x = 1\n# {BAD}\n", [2]),
        ("dashboard/src/one.ts", f"/** {BAD} */\nlet x = 1; // {BAD}\n", [1, 2]),
        ("dashboard/src/one.ts", "\n/**\n * It waits\n * for nobody.\n */\n", [2]),
        ("dashboard/src/one.ts", f'throw new Error("{BAD}");\n', [1]),
        ("dashboard/src/one.ts", f"throw new Error(`${{name}}: x. {BAD}`);\n", [1]),
        ("dashboard/src/One.tsx", f"<p>\n  {BAD}\n</p>\n", [1]),
        ("dashboard/src/One.tsx", f"<p>\n  {BAD} <b>{{name}}</b>\n</p>\n", [1]),
        ("dashboard/src/one.css", f"/* {BAD} */\n", [1]),
        ("deploy/helm/shoal/templates/_one.tpl", f"{{{{- /* {BAD} */ -}}}}\n", [1]),
        ("deploy/helm/shoal/templates/NOTES.txt", f"Ready.\n\n{BAD}\n", [3]),
    ],
)
def test_a_sentence_is_found(tmp_path: Path, path: str, text: str, lines: list[int]) -> None:
    assert [one.line for one in english.sentences(plant(tmp_path, {path: text}))] == lines


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tests/one.py", STRING),
        ("tests/conventions/one.py", DOCSTRING),
        ("shoal/one.py", 'NAME = "nobody"\nnobody = somebody()\n'),
        ("shoal/one.py", '"""Refuse the name "nobody", and `whoever`."""\n'),
        ("docs/one.md", "Do not write `nobody`.\n\n    nobody waits\n\n```sh\nid nobody root\n```\n"),
        ("deploy/one.yaml", "user: nobody at all\n"),
        ("dashboard/src/one.test.ts", f'test("{BAD}", () => {{}});\n'),
        ("dashboard/src/One.tsx", "const nobody = somebody > 0 && (anybody.has(x) as Map<string, nobody>);\n"),
    ],
)
def test_quotations_code_and_texts_of_tests_are_left_out(tmp_path: Path, path: str, text: str) -> None:
    assert english.sentences(plant(tmp_path, {path: text})) == []
