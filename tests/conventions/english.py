"""Sentences are plain English: no free relative clause as subject, no inverted order, no pronoun for a machine's user.

Checked are docstrings and comments of all Python files, strings of several words in the packages and tools (errors,
hints, help, log lines), paragraphs of Markdown, comments of shell scripts, TOML and YAML, comments and texts of the
dashboard, and comments and notes of the Helm chart. Text in quotation marks or backticks counts as a quotation.

Not found are: a relative clause that is the subject after a colon, a comma or "and"; an object before its verb ("The
body it drops"); a metaphor that `words.toml` does not list; a comment that restates its code.
"""

import bisect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.conventions.sources import PYTHON_PACKAGES, Finding, texts

TOOLS = ("dashboard/shoal_dashboard", "dev.py", "hatch_build.py", "benchmarks", "deploy", "examples")
PLACES = tuple(place if place.endswith(".py") else f"{place}/" for place in (*PYTHON_PACKAGES, *TOOLS))
"""Paths whose docstrings follow every rule, and whose strings are checked."""
SCRIPTS = (".sh", ".toml", ".yaml", ".yml", ".conf", "Dockerfile", "Makefile")
EXEMPT = ("tests/conventions/",)
"""Paths with the counter-examples themselves."""

START = r"(?:^|(?<=[.;!?] ))"
"""The beginning of a sentence, or of the part after a semicolon."""


class Pattern(NamedTuple):
    """A rule of style. `bad`: a sentence that the expression must find; `good`: the same in plain English."""

    name: str
    expression: str
    bad: str
    good: str


PATTERNS = (
    Pattern(
        "a relative clause as subject",
        START + r"(?:[Ww]hat(?! to\b)|[Ww]ho(?:se|m)?|[Ww]h(?:at|o|om|ich)ever|[Ww]hether|[Tt]hat which|[Tt]hose who)\b"
        r"(?![^.]*\?)",
        "Store it. What is too large is refused.",
        "Store it. What if it is too large? A body that is too large is refused.",
    ),
    Pattern(
        "a relative clause after a preposition",
        START + r"(?:[Oo]f|[Tt]o|[Ff]rom|[Bb]y|[Ff]or|[Ww]ith|[Ii]n|[Aa]t|[Oo]n) (?:what|whom|whatever|whoever)\b",
        "Count it. From what is left the next sum begins.",
        "Count it. The next sum begins from the rest.",
    ),
    Pattern(
        "a pronoun without a thing",
        r"(?i:\b(?:nobody|somebody|everybody|anybody|whoever|whomever)\b)",
        "Refused, because nobody asked for it.",
        "Refused, because no node asked for it.",
    ),
    Pattern(
        "a person's pronoun",
        r"(?i:\b(?:he|him|his|himself|she|her|hers)\b)",
        "The node gets his share.",
        "The node gets its share.",
    ),
    Pattern(
        "a quantity without a noun",
        r"(?i:\bso (?:many|few|long|often|much)\b)(?! as\b)(?!(?:,? \w+){0,5},? that\b)",
        "Wait for so many seconds.",
        "Wait for `seconds`, or so long that a poll ends.",
    ),
    Pattern(
        "an inverted order",
        r"(?:^Of|(?<=[.;!?] )[Oo]f) (?!course|these,|those,)",
        "Of a feature with few values it is exact.",
        "It is exact for a feature with few values.",
    ),
    Pattern(
        "an inverted verb",
        r"(?i:\bonly (?:then|there|thus|now) (?:is|are|was|does|do|has|have|can|may|must|will)\b)",
        "Only then is the blob stored.",
        "The blob is stored only then.",
    ),
    Pattern(
        "a verb with 'to be'",
        r"\b(?:is|are|was|were) (?:not )?to be\b",
        "The level that is to be split.",
        "The level to split.",
    ),
    Pattern(
        "a noun that is none",
        r"\b(?:that|which|who) (?:is|are) none\b(?! of the)",
        "Refuse a name that is none.",
        "Refuse an invalid name, also where there is none.",
    ),
    Pattern(
        "'is no' before a noun",
        r"(?<![Tt]here )\b(?:is|are|was|were) no (?!(?:longer|more|less|wider|larger|faster|further|better|worse|"
        r"other|one|need|reason|disk)\b)\w",
        "Raise `Refused` if the answer is no JSON.",
        "Raise `Refused` if the answer is not JSON, is no longer needed, or there is no answer.",
    ),
    Pattern(
        "'for' as a conjunction",
        r", for (?:it|they|there|he|we) (?:is|are|was|were|has|have|does|do|must|can|may|will)\b",
        "Skip it, for it is empty.",
        "Skip it, because it is empty; wait, for a node that is late.",
    ),
    Pattern(
        "an old word",
        r"(?i:\b(?:anew|afresh|lest|thereof|therein|thereby|whereby|wherein|whereupon|thereupon|whence|thence|nought|"
        r"naught|hitherto|henceforth|unto|betimes|albeit)\b)",
        "The task begins anew.",
        "The task begins again.",
    ),
    Pattern(
        "a British spelling",  # PyTorch, Flower and Kubernetes are documented in American English
        r"(?i:\b(?:synchronis|serialis|initialis|normalis|organis|summaris|minimis|quantis|recognis|standardis|"
        r"optimis(?!t)|neighbour|behaviour|colour|favour|honour|centre|unlabelled|labelled)\w*)",
        "Synchronise with a peer.",
        "Synchronize with a neighbor, and be optimistic.",
    ),
)

_ANY = re.compile("|".join(f"(?P<p{number}>{one.expression})" for number, one in enumerate(PATTERNS)))
_QUOTED = re.compile(r"``.+?``|`[^`]*`|(?<!\w)\"[^\"]*\"|“[^”]*”")
_PYTHON = re.compile(
    r"\"\"\"(?P<block>.*?)\"\"\"|\"(?P<text>(?:[^\"\\\n]|\\.)*)\"|'(?:[^'\\\n]|\\.)*'|#(?P<note>[^\n]*)", re.DOTALL
)
_PAGE = re.compile(
    r"/\*\*?(?P<block>.*?)\*/|(?:^|(?<=\s))//(?P<note>[^\n]*)|\"(?P<text>(?:[^\"\\\n]|\\.)*)\"|`(?P<template>[^`]*)`"
    r"|>(?P<shown>[^<>{}()=;]+)<(?=[/{\w])",
    re.DOTALL | re.MULTILINE,
)
"""Comments, strings, templates and texts between tags of TypeScript and CSS."""
_CHART = re.compile(r"\{\{-? ?/\*(?P<block>.*?)\*/", re.DOTALL)
_SCRIPT = re.compile(r"(?:^|(?<=\s))#(?P<note>[^\n]*)")
_STAR = re.compile(r"\n[ ]*\* ")
"""The beginning of a further line of a comment of TypeScript."""
_RULER = re.compile(r"^[-=# ]+|[-=# ]+$")
_BULLET = re.compile(r"^\s*(?:[-*+]|\d+\.|#+|>|\|)\s+")


class Passage(NamedTuple):
    """A text of one place: its line, whether it is prose (a docstring, a comment, Markdown) or a string, and it."""

    line: int
    is_prose: bool
    text: str


def sentences(root: Path) -> list[Finding]:
    """Return each sentence that breaks a rule of `PATTERNS`."""
    return [
        Finding(path, passage.line, fault)
        for path, text in texts(root)
        if not path.startswith(EXEMPT)
        for passage in passages(path, text)
        for fault in faults(passage.text, is_prose=passage.is_prose)
    ]


def faults(text: str, *, is_prose: bool = True) -> Iterator[str]:
    """Yield each rule that a text breaks, with its words; quotations in prose are left out."""
    plain = " ".join((_QUOTED.sub("X", text) if is_prose else text).split())
    for found in _ANY.finditer(plain):
        name = PATTERNS[int((found.lastgroup or "p0")[1:])].name
        yield f"{name}: {plain[max(0, found.start() - 30) : found.end() + 50]}"


def passages(path: str, text: str) -> Iterator[Passage]:
    """Yield the passages of a file that are checked."""
    if path.endswith(".py"):
        has_messages = path.startswith(PLACES)
        yield from (one for one in joined(text, _PYTHON) if one.is_prose or has_messages)
    elif path.endswith(".md"):
        yield from markdown_passages(text)
    elif path.endswith(SCRIPTS):
        yield from joined(text, _SCRIPT)
    elif path.startswith("dashboard/src/") and path.endswith((".ts", ".tsx", ".css")) and ".test." not in path:
        yield from joined(_STAR.sub("\n", text), _PAGE)
    elif path.endswith(".tpl"):
        yield from joined(text, _CHART)
    elif path.endswith("NOTES.txt"):
        yield from markdown_passages(text)


def joined(text: str, expression: re.Pattern[str]) -> Iterator[Passage]:
    """Yield the docstrings (`block`), strings (`text`), comments (`note`) and other texts that an expression finds.

    Strings with only spaces between them are one, and so are comments on lines of their own.
    """
    ends = [found.start() for found in re.finditer("\n", text)]
    kind, start, end, pieces = "", 0, 0, list[str]()
    for found in expression.finditer(text):
        new = found.lastgroup or ""
        piece = _RULER.sub("", found[new]) if new == "note" else found[new or 0]
        before = text[max(end, text.rfind("\n", 0, found.start()) + 1) : found.start()].strip()
        continues = new == "text" or (new == "note" and not before)
        if kind == new and continues and text[end : found.start()].strip() in {"", "f"}:
            pieces.append(piece)
        else:
            yield from made(kind, bisect.bisect(ends, start) + 1, pieces)
            kind, start, pieces = new, found.start(), [piece]
        end = found.end()
    yield from made(kind, bisect.bisect(ends, start) + 1, pieces)


def made(kind: str, line: int, pieces: list[str]) -> Iterator[Passage]:
    """Yield the passage of some pieces, if it has several words."""
    text = ("" if kind == "text" else "\n").join(pieces) if kind else ""
    if kind == "text":
        text = re.sub(r"\{[^{}]*\}", "X", text.replace("\\n", " ").replace('\\"', '"'))
    if " " in text.strip():
        yield Passage(line, kind != "text", text)


def markdown_passages(text: str) -> Iterator[Passage]:
    """Yield paragraphs, list items and cells of tables, without code."""
    fenced, start, lines = False, 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        is_fence = line.lstrip().startswith("```")
        fenced ^= is_fence
        if lines and (is_fence or not line.strip() or _BULLET.match(line)):
            yield from (Passage(start, True, cell) for cell in "\n".join(lines).split(" |"))
            lines = []
        is_code = fenced or is_fence or (line.startswith("    ") and not lines)
        if line.strip() and not is_code:
            start = start if lines else number
            lines.append(_BULLET.sub("", line))
