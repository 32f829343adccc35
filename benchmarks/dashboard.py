"""The dashboard in a real Chromium: first paint, drawing many clients, page weight, and how soon a round is seen.

    python benchmarks/dashboard.py --clients 100 --rounds 1000

The pages are the built ones, served by a coordinator in a process of its own; the browser needs no display. Drawing is
the time from a canvas's first stroke of a picture to its last, with the making of paths and pixels ("script"), and what
the picture then costs until its pixels can be read ("raster"; without a graphics processor here). Seen is the time
from the coordinator's word on when a round was closed to the first frame after a chart's readout names it; the chart
itself is drawn in the same update. Comparing is the time from a page's start to the first frame that has all runs in
the table and both charts drawn. Weight is all JavaScript that a page has loaded, by gzip -9, whatever is sent.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import math
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from harness import Node, Served, Update, arguments, coordinator, show, write_model
from sqlalchemy import create_engine, insert

from shoal.core.protocol.message import Report
from shoal_coordinator.storage.tables import reports, versions

BIG, LIVE = "crowd", "live"
COMPARED, COMPARED_ROUNDS = 100, 60
MODEL_BYTES = 40_000
PATIENCE_MS = 60_000
ROUND_S, BETWEEN_S = 4.0, 0.6
OPTIONS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
# Put into the page before its own scripts: notes when pictures begin and end, and when a count of versions was seen.
WATCH = """
window.pictures = [];
window.seen = {};
{
    const open = new Map();
    const begin = (what) => { if (!open.has(what)) open.set(what, { what, start: performance.now(), end: 0 }); };
    const touch = (canvas) => {
        const heat = canvas.closest?.('[data-testid="heat"]'), lines = canvas.closest?.('[data-testid="client-lines"]');
        const now = open.get(heat ? "heat" : lines ? "lines" : "");
        if (now === undefined) return;
        now.end = performance.now();
        if (now.task) return;
        now.task = true;
        queueMicrotask(() => {
            const before = performance.now();
            canvas.getContext("2d").getImageData(0, 0, 1, 1);
            open.delete(now.what);
            const raster = performance.now() - before;
            window.pictures.push({ what: now.what, script: now.end - now.start, raster });
        });
    };
    const pen = CanvasRenderingContext2D.prototype;
    const clear = pen.clearRect;
    pen.clearRect = function (...where) {
        if (this.canvas.closest('[data-testid="client-lines"]')) begin("lines");
        return clear.apply(this, where);
    };
    for (const name of ["stroke", "fill", "drawImage", "fillText"]) {
        const plain = pen[name];
        pen[name] = function (...with_) {
            const result = plain.apply(this, with_);
            touch(this.canvas);
            return result;
        };
    }
    const Off = window.OffscreenCanvas;
    window.OffscreenCanvas = class extends Off {
        constructor(...size) { begin("heat"); super(...size); }
    };
    const look = () => {
        const count = document.querySelector('[data-testid="chart-bytes"] .readout-place')?.textContent;
        if (count !== undefined && !(count in window.seen)) {
            window.seen[count] = null;
            requestAnimationFrame(() => { window.seen[count] = performance.timeOrigin + performance.now(); });
        }
    };
    new MutationObserver(look).observe(document, { subtree: true, childList: true, characterData: true });
}
"""

# The same for the page of comparisons: when a frame has all rows of the table, and canvases with what was drawn.
COMPARE = """
new MutationObserver((_, observer) => {
    const rows = document.querySelectorAll('[data-testid="compare-table"] tbody tr').length;
    if (rows === 0 || document.querySelectorAll('[data-testid^="compare-"] canvas').length < 2) return;
    observer.disconnect();
    const seen = () => { window.compared = { runs: rows, at: performance.now() }; };
    requestAnimationFrame(() => requestAnimationFrame(seen));
}).observe(document, { subtree: true, childList: true });
"""


def main() -> int:
    """Measure everything once, and print."""
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1000, help="of the recorded run")
    parser.add_argument("--live", type=int, default=30, help="rounds that are watched as they close")
    parser.add_argument("--repeat", type=int, default=5, help="times that a page is loaded")
    options = parser.parse_args()
    chromium = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if chromium is None or importlib.util.find_spec("playwright") is None:
        print("this needs a Chromium on the PATH, and the Python package playwright", file=sys.stderr)
        return 1
    with coordinator(lease_s=86_400) as served, launched(chromium) as browser:
        prepare(served, options)
        loads = [loaded(browser, served, path, options.repeat) for path in ("/", f"/jobs/{BIG}", clients_path())]
        show("loading a page", loads, options.json)
        size = f"{options.clients} clients x {options.rounds} rounds"
        show(f"drawing {size} (ms)", drawn(browser, served, options.repeat), options.json)
        many = f"comparing {COMPARED} runs of {COMPARED_ROUNDS} rounds (ms)"
        show(many, [compared(browser, served, options.repeat)], options.json)
        show("from a closed round to the screen (ms)", [watched(browser, served, options)], options.json)
    return 0


@contextmanager
def launched(chromium: str) -> Iterator[Any]:
    """Start a browser."""
    api = importlib.import_module("playwright.sync_api")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=OPTIONS)
        yield browser
        browser.close()


def clients_path() -> str:
    return f"/jobs/{BIG}?view=clients"


@contextmanager
def opened(browser: Any, url: str) -> Iterator[Any]:
    """Open a page with an empty cache."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.add_init_script(WATCH)
    page.goto(url)
    yield page
    context.close()


# Pages


def prepare(served: Served, options: Any) -> None:
    """Write a run of many clients and rounds into the database, and create a job for two nodes."""
    model = served.folder / "model"
    write_model(model, MODEL_BYTES)
    served.begin({"name": BIG, "rounds": options.rounds, "schedule": {"name": "rounds", "min_nodes": 2}})
    schedule = {"name": "rounds", "min_nodes": 2, "deadline_s": 3600.0}
    served.begin({"name": LIVE, "rounds": options.live + 1, "schedule": schedule}, model)
    engine = create_engine(f"sqlite:///{served.folder / 'data' / 'shoal.db'}")
    numbers = range(options.rounds + 1)
    with engine.begin() as connection:
        connection.execute(insert(versions), [version_row(number, options.clients) for number in numbers])
    for number in numbers[1:]:
        with engine.begin() as connection:
            connection.execute(insert(reports), [report_row(client, number) for client in range(options.clients)])
    engine.dispose()


def prepare_compared(served: Served) -> list[str]:
    """Write as many runs as can be compared, each with its own speed and settings, and return their names."""
    names = [f"run-{number:03}" for number in range(COMPARED)]
    for number, name in enumerate(names):
        algorithm = {"name": "fedavg", "lr": 0.1 + number % 4 / 10}
        served.begin({"name": name, "rounds": COMPARED_ROUNDS, "algorithm": algorithm})
    engine = create_engine(f"sqlite:///{served.folder / 'data' / 'shoal.db'}")
    with engine.begin() as connection:
        rows = [compared_row(name, run, number) for run, name in enumerate(names) for number in range(COMPARED_ROUNDS)]
        connection.execute(insert(versions), rows)
    engine.dispose()
    return names


def compared_row(name: str, run: int, number: int) -> dict[str, Any]:
    accuracy = (0.6 + 0.3 * run / COMPARED) * (1 - math.exp(-(number + 1) / (5 + run % 10)))
    metrics = {"eval/loss": 2.3 * (1 - accuracy), "eval/accuracy": accuracy}
    return {**version_row(number, 1), "job": name, "metrics": metrics}


def loss(client: int, number: int) -> float:
    """Return a falling, noisy loss with a limit of the client's own."""
    return (1.0 + client % 7 / 10) * math.exp(-number / 400) + 0.05 * math.sin(client * 7.3 + number * 0.9)


def version_row(number: int, clients: int) -> dict[str, Any]:
    at = ROUND_S * number
    metrics = {"train/loss": loss(3, number), "eval/accuracy": 1 - 0.9 * math.exp(-number / 300)}
    names = {"job": BIG, "number": number, "seq": 10**7 + number, "digest": f"{number:064x}", "nbytes": MODEL_BYTES}
    times = {"opened_s": at - ROUND_S, "closed_s": at, "closed_at": 1.79e9 + at, "why": "all reports"}
    return {**names, **times, "weight": 1.0, "asked": clients, "reports": [], "metrics": metrics, "numbers": {}}


def report_row(client: int, number: int) -> dict[str, Any]:
    task, at = f"1.{number * 10_000 + client}", ROUND_S * number
    names = {"job": BIG, "seq": 10**9 + number * 10_000 + client, "node": f"client-{client}", "task": task}
    place = {"kind": "train", "version": number - 1, "round": number, "staleness": 0, "weight": 1.0, "norm": 1.0}
    phases = {"seconds": 2.0, "wait_s": 0.1, "download_s": 0.1, "train_s": 1.5, "upload_s": 0.2, "fold_s": 0.1}
    return {**names, **place, **phases, "metrics": {"train/loss": loss(client, number)}, "now": at, "at": 1.79e9 + at}


# Measurements


def loaded(browser: Any, served: Served, path: str, repeat: int) -> dict[str, Any]:
    """Return the first contentful paint in ms with an empty cache, and the weight of what was loaded."""
    paints, scripts = [], {}
    for _ in range(repeat):
        with opened(browser, "about:blank") as page:
            page.on("response", lambda found: scripts.setdefault(found.url, found) if ".js" in found.url else None)
            page.goto(served.url + path)
            page.get_by_test_id("connection-banner").and_(page.locator('[data-state="live"]')).wait_for()
            page.wait_for_load_state("load")
            if "clients" in path:
                page.get_by_test_id("client-lines").locator("canvas").wait_for()
            paints.append(painted(page))
            if len(paints) == 1:
                bodies = [found.body() for found in list(scripts.values())]  # more may come meanwhile
    weight = sum(len(gzip.compress(body, 9)) for body in bodies)
    spread = {"first paint, median ms": statistics.median(paints), "least": min(paints), "most": max(paints)}
    return {"page": path, **spread, "JavaScript kB": sum(map(len, bodies)) / 1000, "gzipped kB": weight / 1000}


def painted(page: Any) -> float:
    """Return the time of the page's first paint, in ms."""
    due = time.monotonic() + PATIENCE_MS / 1000
    while not (
        found := page.evaluate("performance.getEntriesByName('first-contentful-paint').map((it) => it.startTime)")
    ):
        if time.monotonic() > due:
            raise RuntimeError("the page never painted")
        page.wait_for_timeout(50)
    return float(found[0])


def drawn(browser: Any, served: Served, repeat: int) -> list[dict[str, Any]]:
    """Measure the drawing of the heat map and of all clients' lines."""
    pictures: list[dict[str, Any]] = []
    for _ in range(repeat):
        with opened(browser, served.url + clients_path()) as page:
            page.get_by_test_id("client-lines").locator("canvas").wait_for()
            due = time.monotonic() + PATIENCE_MS / 1000
            while {one["what"] for one in page.evaluate("window.pictures")} != {"heat", "lines"}:
                if time.monotonic() > due:
                    raise RuntimeError("the pictures were not drawn")
                page.wait_for_timeout(100)
            pictures += page.evaluate("window.pictures")
    return [_picture(what, [one for one in pictures if one["what"] == what]) for what in ("lines", "heat")]


def _picture(what: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    script, raster = ([one[part] for one in found] for part in ("script", "raster"))
    medians = {"script, median": statistics.median(script), "most": max(script)}
    return {"picture": what, **medians, "raster, median": statistics.median(raster), "pictures": len(found)}


def compared(browser: Any, served: Served, repeat: int) -> dict[str, Any]:
    """Measure from the start of loading, with an empty cache, to the frame that shows all runs."""
    path = f"/compare?runs={','.join(prepare_compared(served))}"
    took, answered = [], []
    for _ in range(repeat):
        with opened(browser, "about:blank") as page:
            page.add_init_script(COMPARE)
            page.goto(served.url + path)
            page.wait_for_function(f"() => window.compared?.runs === {COMPARED}")
            took.append(page.evaluate("window.compared.at"))
            (entry,) = page.evaluate(
                "performance.getEntriesByType('resource').filter((it) => it.name.includes('/api/v1/compare'))"
                ".map((it) => it.responseEnd - it.startTime)"
            )
            answered.append(entry)
    return {
        "shown, median": statistics.median(took),
        "least": min(took),
        "most": max(took),
        "of that the answer, median": statistics.median(answered),
    }


def watched(browser: Any, served: Served, options: Any) -> dict[str, Any]:
    """Measure the delay from a closed round to the page."""
    nodes = [Node(served.url, served.tokens(1), f"node-{number}") for number in range(2)]
    data = (served.folder / "model").read_bytes()
    hashed = hashlib.sha256(data[:-4])
    with opened(browser, f"{served.url}/jobs/{LIVE}") as page:
        page.get_by_test_id("connection-banner").and_(page.locator('[data-state="live"]')).wait_for()
        for number in range(options.live):
            for place, node in enumerate(nodes):
                task = node.task(LIVE)
                update = Update(data, 2 * number + place)
                ref = update.ref(hashed)
                node.client.blobs.upload(LIVE, ref, update)
                metrics = {"train/loss": 1 / (number + 1), "eval/accuracy": number / options.live}
                node.client.report(LIVE, Report(node.name, task.id, task.version, 1.0, ref, metrics))
            page.wait_for_timeout(BETWEEN_S * 1000)
        seen = page.evaluate("window.seen")
    with served.operator() as link:
        closed = link.json("GET", f"/api/v1/jobs/{LIVE}/versions")["versions"]
    return _delays(seen, {one["number"]: one["closed_at"] for one in closed if one["number"] > 0})


def _delays(seen: dict[str, float], closed: dict[int, str]) -> dict[str, Any]:
    took = sorted(seen[f"round {n}"] - datetime.fromisoformat(at).timestamp() * 1000 for n, at in closed.items())
    return {
        "median": statistics.median(took),
        "p90": took[math.ceil(0.9 * len(took)) - 1],
        "most": took[-1],
        "rounds": len(took),
    }


if __name__ == "__main__":
    sys.exit(main())
