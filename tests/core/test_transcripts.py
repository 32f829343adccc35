"""The machines' transitions, as transcripts."""

from pathlib import Path

import pytest

from tests.core.transcripts import FOLDER, differences, main

FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_transcript(path: Path) -> None:
    found = differences(path)
    assert not found, f"{found}\n\nif that is right: python -m tests.core.transcripts --rewrite"


def test_a_change_is_seen_and_can_be_taken_over(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("tests.core.transcripts.FOLDER", tmp_path)
    copy = tmp_path / "one.txt"
    right = FILES[0].read_text(encoding="utf-8")
    copy.write_text(right, encoding="utf-8")
    assert main([]) == 0
    copy.write_text(right.replace("counted=True", "counted=False"), encoding="utf-8")
    assert main([]) == 1
    assert "+-> a: Ack task=1.1 counted=True" in capsys.readouterr().out
    assert main(["--rewrite"]) == 0
    assert copy.read_text(encoding="utf-8") == right
