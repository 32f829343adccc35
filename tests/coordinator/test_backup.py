"""The documented backup of a coordinator that runs: its copy is whole, private, and can be started."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

from tests.support.coordinator import inside
from tests.support.scenario import set_up
from tests.support.waiting import until

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "operation.md"


def commands() -> str:
    """The commands that the paragraph on backups names."""
    paragraph = DOCUMENT.read_text().partition("**Backup.**")[2]
    found = re.search(r"```sh\n(.*?)```", paragraph, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_documented_backup_is_whole_and_private(tmp_path: Path) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    here = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with inside(folder) as running:
        stage = set_up(running)
        for node in ("n0", "n1"):
            assert stage.report(node=node).status_code == 200
        until("the round to close", lambda: running.job("main")["version"] == 1)
        subprocess.run(["sh", "-euc", commands()], cwd=folder, env=here, check=True, timeout=60)
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("shoal.db*"))
        model = running.request("GET", "/api/v1/jobs/main/models/1").content
        stage.close()
    assert stat.S_IMODE((folder / "copy.db").stat().st_mode) == 0o600
    (copy / "copy.db").rename(copy / "shoal.db")
    with inside(copy) as again:
        assert (again.job("main")["version"], again.job("main")["state"]) == (1, "running")
        assert again.request("GET", "/api/v1/jobs/main/models/1").content == model
