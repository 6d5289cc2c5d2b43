"""A click in the explorer against asking one by one; JSON milliseconds, ratios and their targets.

    python -m benchmarks.explorer

Lines: ``click_200``, what a live page of 200 nodes waits for a view over HTTP (median and worst of all
observers tried) and its processor time, against asking the plan about every user one after the other;
``browser_200``, from the click to the filled table in Chromium, where there is one.
"""

from __future__ import annotations

import http.client
import json
import shutil
import statistics
import time
from typing import Any

import sottovoce as sv
from sottovoce.report.explorer.model import ExplorerModel, ExplorerSettings
from sottovoce.report.explorer.page import ExplorerServer

GRAPH, DELTA, TARGET = "er:200:1.5:seed=3", 1e-5, 200.0


def query(server: ExplorerServer, what: str, **more: Any) -> dict[str, Any]:
    """One question over HTTP, as the page asks it."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    body = json.dumps({"setting": {"graph": GRAPH}, **more})
    connection.request("POST", f"/{what}", body, {"X-Sottovoce-Token": server.token})
    answer: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def clicks(server: ExplorerServer) -> list[float]:
    """Milliseconds of a view for every tenth observer; the first, which loads, is not counted."""
    query(server, "view", observers=[0])
    taken = []
    for v in range(1, 200, 10):
        begin = time.perf_counter()
        query(server, "view", observers=[v])
        taken.append(1000 * (time.perf_counter() - begin))
    return taken


def computing() -> float:
    """Milliseconds of processor time of a view: what a click costs on a machine that is not shared."""
    model = ExplorerModel(ExplorerSettings(graph=GRAPH))
    model.view([0])
    taken = []
    for v in range(1, 200, 20):
        begin = time.process_time()
        model.view([v])
        taken.append(1000 * (time.process_time() - begin))
    return statistics.median(taken)


def one_by_one(plan: Any, observer: int) -> float:
    """The rival: the plan asked about each user by itself, in milliseconds."""
    begin = time.perf_counter()
    for u in range(plan.n):
        if u != observer:
            stated = plan.privacy("pairwise", observer=observer, user=u)
            _ = stated.epsilon(DELTA), stated.best_guess
    return 1000 * (time.perf_counter() - begin)


def in_browser(server: ExplorerServer) -> list[float] | None:
    """Milliseconds from a click on a row's button to the filled table; None without a browser."""
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(server.address)
        page.wait_for_selector("body[data-course]")
        taken = page.evaluate(
            """async () => {
              const all = [...document.querySelectorAll('#nodes button')], taken = [];
              for (let v = 1; v < all.length; v += 20) {
                const wanted = String(v), begin = performance.now();
                all[v].click();
                while (document.body.dataset.observers !== wanted) await new Promise(requestAnimationFrame);
                taken.push(performance.now() - begin);
                await new Promise(r => setTimeout(r, 1500));  // the curve over the rounds comes later
              }
              return taken;
            }"""
        )
        browser.close()
    return [float(x) for x in taken]


def main() -> None:
    """Print the lines."""
    with ExplorerServer(ExplorerModel(ExplorerSettings(graph=GRAPH))) as server:
        taken = clicks(server)
        seen = in_browser(server)
    network = sv.graphs.parse(GRAPH)
    rival = one_by_one(sv.PrivateAveraging("gossip", network=network, noise_std=1.0, radius=0.5), 1)
    median = statistics.median(taken)
    lines: dict[str, Any] = {
        "click_200": {
            "milliseconds": round(median, 1), "worst": round(max(taken), 1),
            "processor_milliseconds": round(computing(), 1), "one_by_one": round(rival, 1),
            "ratio": round(rival / median, 1), "target_milliseconds": TARGET,
            "met": median <= TARGET,
        }
    }  # fmt: skip
    if seen is not None:
        middle = statistics.median(seen)
        lines["browser_200"] = {
            "milliseconds": round(middle, 1), "worst": round(max(seen), 1), "target_milliseconds": TARGET,
            "met": middle <= TARGET,
        }  # fmt: skip
    print(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
