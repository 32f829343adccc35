"""Where SHOAL_REQUIRE_ALL is set, a skipped test is a failed one: a suite that tests nothing must not pass."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conventions.sources import ROOT, plant

SKIPPING = {
    "by a mark": "import pytest\n@pytest.mark.skip(reason='no part')\ndef test_it(): pass\n",
    "in the test": "import pytest\ndef test_it():\n    pytest.skip('no part')\n",
    "in a fixture": (
        "import pytest\n@pytest.fixture\ndef part():\n    pytest.skip('no part')\ndef test_it(part):\n    pass\n"
    ),
    "as a file": "import pytest\npytest.importorskip('no_part')\ndef test_it():\n    pass\n",
}
EXPECTED = "import pytest\n@pytest.mark.xfail(strict=True)\ndef test_it():\n    assert False\ndef test_other(): pass\n"


def run(folder: Path, source: str, require_all: str, *options: str) -> tuple[int, str]:
    """Run one test file beside a copy of the real conftest.py; pytest's exit code and what it printed."""
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    plant(folder, {"pytest.ini": "[pytest]\n", "test_it.py": source})
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


@pytest.mark.parametrize("way", SKIPPING)
@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "1")], ids=["alone", "in a worker"])
def test_a_skip_fails_where_all_is_required(tmp_path: Path, way: str, options: tuple[str, ...]) -> None:
    code, said = run(tmp_path, SKIPPING[way], "1", *options)
    assert code != 0
    assert "counts as a failure" in said


@pytest.mark.parametrize(("way", "require_all"), [*zip(SKIPPING, ["", "0", "", "0"], strict=True)])
def test_a_skip_is_a_skip_elsewhere(tmp_path: Path, way: str, require_all: str) -> None:
    _, said = run(tmp_path, SKIPPING[way], require_all)
    assert "1 skipped" in said


def test_an_expected_failure_is_no_skip(tmp_path: Path) -> None:
    code, said = run(tmp_path, EXPECTED, "1")
    assert (code, "1 xfailed" in said) == (0, True)


def test_tests_see_none_of_shoals_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_COORDINATOR__PORT", "1")
    source = "import os\ndef test_it():\n    assert [n for n in os.environ if n.startswith('SHOAL')] == []\n"
    code, said = run(tmp_path, source, "1")
    assert code == 0, said
