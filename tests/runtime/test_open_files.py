"""The limit of open files."""

from __future__ import annotations

import subprocess
import sys

from shoal.runtime.open_files import SPARE, connections_within

RAISE = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 500))
from shoal.runtime.open_files import raise_limit
print(raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE), raise_limit())
"""


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    done = subprocess.run([sys.executable, "-c", RAISE], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["500", "500", "500", "500"]


def test_files_are_left_for_more_than_connections() -> None:
    assert connections_within(10_000) == 10_000 - SPARE
    assert connections_within(100) == 50
    assert connections_within(1) == 1
