"""The documentation says what the code does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from shoal import __version__
from shoal.jobs.spec import JobSpec, job_schema, load_job, parse_job
from shoal.plugins import KINDS, PEER_KINDS, algorithms, filters, mixings, schedules, selections
from tests.docs.tables import ROOT, documents, of_dataclass, renewed

LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\((?!https?://|mailto:)([^)#]*)#([^)]+)\)")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def blocks(path: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(path.read_text()) if kind == language]


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    broken = [link for link in LINK.findall(path.read_text()) if not (path.parent / link).exists()]
    assert not broken


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_anchors_are_headings(path: Path) -> None:
    found = [(path.parent / link if link else path, anchor) for link, anchor in ANCHOR.findall(path.read_text())]
    broken = [f"{target.name}#{anchor}" for target, anchor in found if anchor not in anchors(target)]
    assert not broken


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document, as GitHub makes them of headings, and those set by hand."""
    text = FENCED.sub("", path.read_text()) if path.suffix == ".md" else ""
    headings = {re.sub(r"[^\w\- ]", "", line.lower()) for line in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    return {heading.replace(" ", "-") for heading in headings} | {*re.findall(r'<a id="([^"]+)">', text)}


def test_the_index_lists_every_page() -> None:
    listed = set(LINK.findall((ROOT / "docs/README.md").read_text()))
    pages = [str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md") if path.parent.name != "adr"]
    assert len(pages) > 20
    assert not [page for page in pages if page not in {*listed, "README.md"}]


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_tables_are_in_step(path: Path) -> None:
    text = path.read_text()
    assert renewed(text) == text, "run `python -m tests.docs.tables`"


def test_decisions_are_numbered_one_after_the_other() -> None:
    found = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
    assert [int(path.name[:4]) for path in found] == list(range(1, len(found) + 1))
    assert [path.name for path in found if not path.read_text().startswith(f"# {int(path.name[:4])}. ")] == []


def test_every_algorithm_schedule_filter_and_selection_has_its_table() -> None:
    pages = ("algorithms", "schedules", "selection-and-filters")
    text = "".join((ROOT / f"docs/reference/{page}.md").read_text() for page in pages)
    kinds = (*algorithms().values(), *schedules().values(), *filters().values(), *selections().values())
    missing = [kind.name for kind in kinds if of_dataclass(kind) not in text]
    assert not missing


def test_every_way_of_mixing_has_its_section_and_table() -> None:
    text = (ROOT / "docs/reference/gossip.md").read_text()
    for kind in mixings().values():
        assert f"## {kind.name}" in text
        assert of_dataclass(kind) in text


def test_every_term_of_the_glossary_is_used() -> None:
    """In another document, or on a page of the dashboard."""
    glossary = ROOT / "docs/reference/glossary.md"
    pages = [path for path in ROOT.glob("dashboard/src/**/*.tsx") if ".test." not in path.name]
    text = "\n".join(path.read_text().lower() for path in [*documents(), *pages] if path != glossary)
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \|$", glossary.read_text(), re.MULTILINE)
    terms = [term.strip("`") for row in rows for term in row.split(", ") if row != "term"]
    assert len(terms) > 60
    assert not [term for term in terms if not re.search(rf"\b{re.escape(term.lower())}(s|es)?\b", text)]


def test_the_schema_knows_every_field_that_the_tables_name() -> None:
    schema = job_schema()
    tables = schema["properties"] | {"mixing": schema["$defs"]["GossipConfig"]["properties"]["mixing"]}
    for what, known in {**KINDS, **PEER_KINDS}.items():
        place = tables["filters"]["items"] if what == "filter" else tables[what]
        assert [one["$ref"] for one in place["oneOf"]] == [f"#/$defs/{what}-{name}" for name in known()]
        for name, kind in known().items():
            table = schema["$defs"][f"{what}-{name}"]
            assert table["properties"].keys() == {"name", *(field.name for field in fields(kind))}
            assert table["properties"]["name"] == {"const": name}


def test_the_extras_that_a_user_may_want_are_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    section = (ROOT / "docs/how-to/deploy.md").read_text().partition("## Install\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(listed) == sorted(project["optional-dependencies"].keys() - {"test", "dev"})
    assert f"shoal-{__version__}-py3-none-any.whl" in section


def test_the_architecture_names_what_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    files = set(re.findall(r"`((?:shoal|coordinator|edge_client|dashboard|tests|docs)/[\w/.]*)`", text))
    assert len(files) > 20
    assert not [name for name in files if not (ROOT / name).exists()]
    code = "\n".join(
        path.read_text() for top in ("shoal", "coordinator", "edge_client") for path in ROOT.glob(f"{top}/**/*.py")
    )
    names = set(re.findall(r"`(?:wire\.)?(?:[A-Z]\w+\.)?(_?[a-z]\w+)`", text)) - {"cli", "wire", "core"}
    modules = {path.stem for path in ROOT.glob("shoal/*.py")} | {path.name for path in ROOT.glob("shoal/*/")}
    unknown = [name for name in names if not re.search(rf"(def|class) {name}\b|\b{name}\b *[:=(]", code)]
    assert not [name for name in unknown if name not in modules and not (ROOT / name).exists()]


def test_the_readme_shows_the_example_as_it_is() -> None:
    shown = blocks(ROOT / "README.md", "python")[0]
    assert shown in (ROOT / "examples/pytorch/learner.py").read_text()


def test_the_lines_of_the_readme_run(tmp_path: Path) -> None:
    """From data to a torch module that knows them."""
    simulated, loaded = blocks(ROOT / "README.md", "python")[1:3]
    told = (
        'print(f"{model[0].weight.abs().max():.6f}" == f"{abs(result.model[\'0.weight\']).max():.6f}", model.training)'
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{simulated}\n{loaded}\n{told}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tumours: done, 10 versions, 4 nodes, ")
    assert done.stdout.endswith("True False\n")


def test_job_files_in_documents_are_jobs() -> None:
    """Also parts of job files, which name no job."""
    found = [tomllib.loads(text) for path in documents() for text in blocks(path, "toml")]
    jobs = [values for values in found if values.keys() <= JobSpec.model_fields.keys()]
    assert len(jobs) > 10
    assert any("name" not in values for values in jobs)
    for values in jobs:
        parse_job({"name": "part", **values})


def test_keys_of_job_files_in_sentences_are_keys() -> None:
    """`[selection]`, `tags = …`; `tags = …` under `[selection]`."""
    text = "\n".join(path.read_text() for path in documents())
    found = re.findall(r"`\[(\w+)\]`, `(\w+ = [^`]+)`", text)
    found += [(table, key) for key, table in re.findall(r"`(\w+ = [^`]+)` under `\[(\w+)\]`", text)]
    keys = [(table, key) for table, key in found if table in JobSpec.model_fields and "…" not in key]
    assert len(keys) >= 2
    for table, key in keys:
        parse_job(tomllib.loads(f'name = "part"\n[{table}]\n{key}'))


TOML_FILES = sorted(path for path in ROOT.glob("**/*.toml") if not {".venv", "node_modules"} & set(path.parts))


@pytest.mark.parametrize("path", TOML_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_job_files_are_jobs(path: Path) -> None:
    if "[algorithm]" in path.read_text() and "node_modules" not in path.parts:
        assert load_job(path).name


def test_commands_in_the_readme_exist() -> None:
    text = "\n".join(blocks(ROOT / "README.md", "sh"))
    commands = set(re.findall(r"^shoal ((?:[a-z]+)(?: (?:list|show|create|get))?)", text, re.MULTILINE))
    assert len(commands) >= 5
    for command in commands:
        argv = [sys.executable, "-m", "shoal", *command.split(), "--help"]
        assert subprocess.run(argv, cwd=ROOT, capture_output=True, timeout=60, check=False).returncode == 0, command
