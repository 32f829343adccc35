"""Where SHOAL_REQUIRE_ALL is set, a skipped test is a failed one: a suite that tests nothing must not pass."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conventions.sources import ROOT, plant

SKIPPING = {
    "test_mark.py": "import pytest\n@pytest.mark.skip(reason='no part')\ndef test_it(): pass\n",
    "test_call.py": "import pytest\ndef test_it():\n    pytest.skip('no part')\n",
    "test_fixture.py": (
        "import pytest\n@pytest.fixture\ndef part():\n    pytest.skip('no part')\ndef test_it(part):\n    pass\n"
    ),
    "test_file.py": "import pytest\npytest.importorskip('no_part')\ndef test_it():\n    pass\n",
}
EXPECTED = "import pytest\n@pytest.mark.xfail(strict=True)\ndef test_it():\n    assert False\ndef test_other(): pass\n"


def run(folder: Path, sources: dict[str, str], require_all: str, *options: str) -> tuple[int, str]:
    """Run test files beside a copy of the real conftest.py; pytest's exit code and what it printed."""
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    plant(folder, {"pytest.ini": "[pytest]\n", **sources})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options, str(folder)],
        cwd=folder,
        env={
            **os.environ,
            "SHOAL_REQUIRE_ALL": require_all,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "1")], ids=["alone", "in a worker"])
def test_a_skip_fails_where_all_is_required(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Whether a mark, a test, a fixture or a file skips."""
    code, said = run(tmp_path, SKIPPING, "1", "--continue-on-collection-errors", "-rN", *options)
    assert code != 0
    assert said.count("counts as a failure") == len(SKIPPING), said


@pytest.mark.parametrize("require_all", ["", "0"])
def test_a_skip_is_a_skip_elsewhere(tmp_path: Path, require_all: str) -> None:
    _, said = run(tmp_path, SKIPPING, require_all)
    assert "4 skipped" in said


def test_an_expected_failure_is_no_skip(tmp_path: Path) -> None:
    code, said = run(tmp_path, {"test_it.py": EXPECTED}, "1")
    assert (code, "1 xfailed" in said) == (0, True)


def test_tests_see_none_of_shoals_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_COORDINATOR__PORT", "1")
    source = "import os\ndef test_it():\n    assert [n for n in os.environ if n.startswith('SHOAL')] == []\n"
    code, said = run(tmp_path, {"test_it.py": source}, "1")
    assert code == 0, said
