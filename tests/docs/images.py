"""Screenshots in the documentation: `python -m tests.docs.images [NAME]` makes them again, or the named one.

    dashboard.png    the page of the demo's job after its last round
    peer_page.png    the page of one of three peers, in the middle of their job

Both jobs are seeded and run on this machine, so only times and bytes differ. Needs Chromium and the built dashboard.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

from shoal.cli.demos.gossip import DemoPeers, create_peers
from tests.cli.conftest import process
from tests.dashboard.conftest import CHROMIUM, QUIET
from tests.dashboard.scenario import PATIENCE_MS
from tests.support.ports import free_port, free_ports
from tests.support.waiting import until

FOLDER = Path(__file__).parents[2] / "docs" / "images"
ROUNDS = 30
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
START_S = 300.0
"""Seconds in which all processes have started, on a busy machine too."""
PEER_ROUND = 8
"""The round of the peer from which its page is shown."""


def dashboard(browser: Browser, place: Path) -> None:
    """Run the demo, and show its job when it has ended."""
    port = free_port()
    demo = running(place, "demo", "--keep", "--rounds", ROUNDS, "--seed", 0, "--port", port)
    with demo, opened(browser, 1280, 1000) as page:
        url = f"http://127.0.0.1:{port}/jobs/digits"
        until(url, lambda: has_loaded(page, url), START_S, every_s=0.5)
        expect(page.get_by_test_id("job-state")).to_have_attribute("data-state", "done")
        expect(page.get_by_test_id("accuracy-latest")).to_contain_text("%")
        page.reload()  # the charts of a job that has ended, without the marks of new rounds
        expect(page.get_by_test_id("topology")).to_be_visible()
        page.wait_for_load_state("networkidle")
        page.screenshot(path=FOLDER / "dashboard.png", full_page=True)


def peer_page(browser: Browser, place: Path) -> None:
    """Run three peers, and show the page of the first in the middle of their job."""
    peers = DemoPeers(ROUNDS, "dirichlet:0.5", 0, "cpu", tuple(free_ports(3)))
    folder = create_peers(place, peers)
    with ExitStack() as stack:
        for part, (name, port) in enumerate(zip(peers.names, peers.ports, strict=True)):
            options = ["--listen", f"127.0.0.1:{port}", "--device", "cpu", "--option", f"part={part}"]
            stack.enter_context(running(place, "peer", "run", folder / name, *options))
        page = stack.enter_context(opened(browser, 900, 360))
        url = f"http://127.0.0.1:{peers.ports[0]}/"
        until(
            f"round {PEER_ROUND}", lambda: has_loaded(page, url) and round_of(page) >= PEER_ROUND, START_S, every_s=0.2
        )
        page.screenshot(path=FOLDER / "peer_page.png", full_page=True)


@contextmanager
def running(place: Path, *arguments: object) -> Iterator[None]:
    """Run a command of shoal, and interrupt it at the end."""
    started = process(*arguments, cwd=place, env={**ENVIRONMENT, "HOME": str(place), "XDG_STATE_HOME": str(place)})
    try:
        yield
    finally:
        started.send_signal(signal.SIGINT)
        started.communicate()


@contextmanager
def opened(browser: Browser, width: int, height: int) -> Iterator[Page]:
    """Open a page in the light theme."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
    page.set_default_timeout(PATIENCE_MS)
    yield page
    page.close()


def has_loaded(page: Page, url: str) -> bool:
    """Load a page; return False where nothing answers yet."""
    try:
        page.goto(url)
    except Error:
        return False
    return True


def round_of(page: Page) -> int:
    """Return the round that a peer's page shows; 0 before the first."""
    bar = page.locator("progress")
    return int(bar.get_attribute("value") or 0) if bar.count() else 0


IMAGES: dict[str, Callable[[Browser, Path], None]] = {"dashboard": dashboard, "peer_page": peer_page}


def make(names: list[str]) -> None:
    """Make the named images."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        for name in names:
            with tempfile.TemporaryDirectory() as place:
                IMAGES[name](browser, Path(place))
        browser.close()


if __name__ == "__main__":
    make(sys.argv[1:] or [*IMAGES])
