"""Counter-examples for the sizes of packages, folders, classes and functions."""

from pathlib import Path

from tests.conventions import shape
from tests.conventions.report import RULES
from tests.conventions.sources import Finding, plant


def sizes(findings: list[Finding]) -> dict[str, int]:
    return {finding.text.partition(":")[0]: finding.size for finding in findings}


def test_lines_of_code_are_neither_blank_nor_comment_nor_docstring(tmp_path: Path) -> None:
    source = (
        '"""Module.\n\nMore.\n"""\n\n# why\nx = 1  # here\n"""Attribute."""\n\n\n'
        'def f():\n    """Do."""\n    return """a\nb"""\n'
    )
    found = shape.code_lines(plant(tmp_path, {"shoal/one.py": source, "tests/two.py": "x = 1\n"}))
    assert [(one.path, one.size) for one in found] == [("shoal/one.py", 4)]


def test_full_folders_are_found(tmp_path: Path) -> None:
    plant(tmp_path, {f"shoal/core/m{number}.py": "" for number in range(13)})
    plant(tmp_path, {"shoal/core/__init__.py": "", "shoal/core/notes.md": "", "shoal/core/model/tree.py": ""})
    plant(tmp_path, {f"shoal/algorithms/m{number}.py": "" for number in range(30)})
    rule = RULES["files-in-folder"]
    found = rule.find(tmp_path)
    assert rule.number(found) == 13
    assert [str(one) for one in rule.offenders(found)] == ["shoal/core:1: 13 files"]


def test_methods_are_counted_with_inherited_ones(tmp_path: Path) -> None:
    base = "class Base:\n" + "".join(f"    def m{number}(self): ...\n" for number in range(20))
    more = "".join(f"    def n{number}(self): ...\n" for number in range(6))
    child = f"class Child(Base):\n    def m0(self): ...\n    def __len__(self): ...\n{more}"
    plant(tmp_path, {"shoal/base.py": base, "shoal/child.py": child})
    rule = RULES["class-methods"]
    assert sizes(rule.find(tmp_path)) == {"Base": 20, "Child": 26}
    assert [one.path for one in rule.offenders(rule.find(tmp_path))] == ["shoal/child.py"]


def test_attributes_are_counted_with_inherited_ones_and_not_in_records(tmp_path: Path) -> None:
    fields = "".join(f"    f{number}: int\n" for number in range(16))
    source = (
        "class Base:\n    def __init__(self):\n        self.a, self.b = 1, 2\n        self.c: int = 3\n"
        "        other.d = 4\n"
        f"\n\n@dataclass\nclass Mutable(Base):\n    kind: ClassVar[str] = ''\n{fields}"
        f"\n\n@dataclass(frozen=True)\nclass Frozen:\n{fields}\n\nclass View(BaseModel):\n{fields}"
    )
    rule = RULES["class-attributes"]
    found = rule.find(plant(tmp_path, {"shoal/one.py": source}))
    assert sizes(found) == {"Base": 3, "Mutable": 19, "Frozen": 0, "View": 0}
    assert [one.text for one in rule.offenders(found)] == ["Mutable: 19 attributes"]


def test_long_functions_are_found(tmp_path: Path) -> None:
    body = "    x = 1\n"
    source = f"def long():\n{body * 60}\n\ndef short():\n    return 1\n"
    rule = RULES["function-lines"]
    assert sizes(rule.find(plant(tmp_path, {"shoal/one.py": source}))) == {"long": 61, "short": 2}
    assert [one.text for one in rule.offenders(rule.find(tmp_path))] == ["long: 61 lines"]
