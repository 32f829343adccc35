"""Counter-examples for import cycles."""

from pathlib import Path

from tests.conventions.cycles import import_cycles
from tests.conventions.sources import plant


def test_a_circle_of_packages_is_found_in_late_imports_too(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "shoal/__init__.py": "",
            "shoal/jobs/run.py": "from shoal.nodes.presence import Presence\n",
            "shoal/nodes/presence.py": "def f():\n    from shoal import store\n",
            "shoal/store.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import shoal.jobs.run\n",
            "shoal/leaf.py": "from shoal.store import X\n",
        },
    )
    (found,) = import_cycles(tmp_path)
    assert found.text == "jobs -> nodes; nodes -> store; store -> jobs"
    assert found.size == 3


def test_a_circle_of_modules_is_found_in_its_package(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "peer/shoal_peer/host/a.py": "from shoal_peer.host.b import B\n",
            "peer/shoal_peer/host/b.py": "import shoal_peer.host.a\n",
        },
    )
    (found,) = import_cycles(tmp_path)
    assert (found.path, found.text) == ("shoal_peer/host", "a -> b; b -> a")


def test_imports_that_only_go_down_are_none(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "shoal/a.py": "from shoal.b import B\nfrom shoal.c.d import D\n",
            "shoal/b.py": "from shoal.c import d\nimport json\n",
            "shoal/c/d.py": "",
        },
    )
    assert import_cycles(tmp_path) == []
