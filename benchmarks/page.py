"""The time in which each view of the page opens in a browser, with much to show.

    python -m benchmarks.page --output page.json

Starts the application with the embedded default and fine-tunes a model once. Then copies the run
and the model until there are as many as requested, gives one run many metrics and a large log, and
opens each view in Chromium: in a new context, where nothing is cached, and again in the same one.
It does so on an idle machine, and beside a second fine-tune with two workers, which keeps both
cores busy. There is no peer. Last line: one JSON object, in which `idle` and `training` have, by
view, the median and the longest time in ms from the start of the navigation until the frame in
which the content of the view is visible: `first` without a cache, and `again` with it. The page
itself takes the time before each frame, because questions of the test driver wait for its scripts.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import httpx

from apps.bundled import DEMONSTRATION_MODEL, HANDBOOK_FILE_ID
from benchmarks.browser import open_browser
from benchmarks.machine import describe_machine
from benchmarks.serve_peers.server import describe_application
from benchmarks.stored_copies import copy_entry
from storage import durable
from storage.layout import StorageLayout, new_id

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

_TIMEOUT_S = 240.0
_VIEW_TIMEOUT_S = 60.0
_SETTLE_S = 35.0  # the queue re-reads ended runs every 30 s
_NUM_EPOCHS_OF_LOAD = 500
_VIEWS = {
    "fine-tune": ("/ui/", "#preview mark.ts-learned", "#setting-learning-rate input"),
    "runs": ("/ui/runs", "#run-list tbody tr"),
    "run": ("/ui/runs?run={run}", "[data-chart=loss] canvas"),
    "chat": ("/ui/chat", "#chat-model input"),
    "compare": ("/ui/compare", "#compare-send", "#compare-models .token"),
    "evaluate": ("/ui/evaluate", "#field-models"),
    "models": ("/ui/models", "#models-view h2"),
    "model": ("/ui/models?model={model}", ".ts-lineage"),
    "cluster": ("/ui/cluster", "#cluster-view h2"),
    "api": ("/ui/api", "details.ts-call"),
}
"""By name: the path, and selectors of what is visible when the view is complete."""
_MENUS = {"chat": "#chat-model input", "evaluate": "#field-models"}
"""By the names of views, a menu of models, which shows one when the view is complete."""
_WATCH_JS = """(([parts, menu]) => {
  const options = { visibilityProperty: true };
  const isShown = (part) => Boolean(document.querySelector(part)?.checkVisibility(options));
  const isFilled = () => !menu || Boolean(document.querySelector(menu)?.value);
  const look = () => {
    if (parts.every(isShown) && isFilled()) window.completeAfterMs = performance.now();
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})"""


def main() -> int:
    """Measure all views and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="number of runs")
    parser.add_argument("--models", type=int, default=100, help="number of models")
    parser.add_argument("--points", type=int, default=100_000, help="metrics of one run")
    parser.add_argument("--log-bytes", type=int, default=50_000_000, help="size of its log")
    parser.add_argument("--times", type=int, default=5, help="how often each view is opened")
    parser.add_argument("--output", type=Path, help="a file for the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-page-") as name:
        folder = Path(name)
        server = describe_application(folder)
        layout = StorageLayout(folder / "storage")
        with server.start(), httpx.Client(base_url=server.url, timeout=_TIMEOUT_S) as client:
            job = _fine_tune(client)
            _fill(layout, job, options)
            names = {"run": job["id"], "model": job["fine_tuned_model"]}
            time.sleep(_SETTLE_S)
            with open_browser() as browser:
                idle = _open_views(browser, server.url, names, options.times)
                print(f"idle: {idle}", file=sys.stderr)
                with _train_beside(client):
                    training = _open_views(browser, server.url, names, options.times)
    result = {
        "idle": idle,
        "training": training,
        "runs": options.runs,
        "models": options.models,
        "points": options.points,
        "log_bytes": options.log_bytes,
        **describe_machine(),
    }
    if options.output:
        options.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    return 0


def _fine_tune(client: httpx.Client) -> dict[str, Any]:
    """Fine-tune the embedded default for one epoch; returns the succeeded job."""
    job = _create_job(client, 1)
    _wait_for(lambda: _read_job(client, job)["status"] in ("succeeded", "failed"))
    job = _read_job(client, job)
    if job["status"] != "succeeded":
        raise RuntimeError(f"the fine-tune has {job['status']}: {job['error']}")
    return job


def _create_job(client: httpx.Client, num_epochs: int) -> dict[str, Any]:
    body = {
        "model": DEMONSTRATION_MODEL,
        "training_file": HANDBOOK_FILE_ID,
        "hyperparameters": {"n_epochs": num_epochs},
    }
    answer = client.post("/v1/fine_tuning/jobs", json=body)
    if answer.is_error:
        raise RuntimeError(f"the fine-tune was refused: {answer.text}")
    created: dict[str, Any] = answer.json()
    return created


def _read_job(client: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/v1/fine_tuning/jobs/{job['id']}").json()
    return found


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {_TIMEOUT_S:g} s")
        time.sleep(0.5)


def _fill(layout: StorageLayout, job: dict[str, Any], options: argparse.Namespace) -> None:
    """Copy the run and its model, and lengthen the metrics and the log of the run itself."""
    run = layout.run(job["id"])
    _wait_for(lambda: not (run / "heartbeat").exists())  # its process has ended
    for _ in range(options.runs - 1):
        copy_entry(run, new_id("ftjob"), "run.json")
    model = layout.models / job["fine_tuned_model"]
    for number in range(options.models - 2):  # beside it and the embedded default
        copy_entry(model, f"{model.name}-{number}")
    lines = durable.read_json_lines(run / "metrics.jsonl")
    with (run / "metrics.jsonl").open("w") as metrics:
        for step in range(1, options.points + 1):
            metrics.write(json.dumps({**lines[step % len(lines)], "step": step}) + "\n")
    line = (run / "log.txt").read_text().splitlines()[-1] + "\n"
    (run / "log.txt").write_text(line * (options.log_bytes // len(line)))


@contextmanager
def _train_beside(client: httpx.Client) -> Iterator[None]:
    """Keep both cores busy by a fine-tune that takes steps until the body has ended."""
    job = _create_job(client, _NUM_EPOCHS_OF_LOAD)
    _wait_for(lambda: (_read_job(client, job)["progress"] or {}).get("step", 0) > 2)
    yield
    ended = _read_job(client, job)
    if ended["status"] != "running":
        raise RuntimeError(f"the fine-tune beside the page was {ended['status']}, expected running")
    client.post(f"/v1/fine_tuning/jobs/{job['id']}/cancel").raise_for_status()


def _open_views(
    browser: "Browser", url: str, names: dict[str, str], num_times: int
) -> dict[str, dict[str, float]]:
    """Return the figures of each view; the views are opened in turn, `num_times` each."""
    times_ms: dict[str, dict[str, list[float]]] = {
        view: {"first": [], "again": []} for view in _VIEWS
    }
    for _ in range(num_times):
        for view, (path, *parts) in _VIEWS.items():
            context = browser.new_context(viewport={"width": 1280, "height": 800})
            context.set_default_timeout(_VIEW_TIMEOUT_S * 1000)
            for kind in ("first", "again"):
                address = f"{url}{path.format(**names)}"
                took_ms = _open_view(context, address, parts, _MENUS.get(view))
                times_ms[view][kind].append(took_ms)
            context.close()
    return {
        view: {
            f"{kind}_{name}": round(find(times))
            for kind, times in kinds.items()
            for name, find in (("median", median), ("max", max))
        }
        for view, kinds in times_ms.items()
    }


def _open_view(
    context: "BrowserContext", url: str, parts: Sequence[str], menu: str | None
) -> float:
    page = context.new_page()
    page.add_init_script(f"{_WATCH_JS}({json.dumps([parts, menu])})")
    page.goto(url, wait_until="commit")
    took_ms = page.wait_for_function("window.completeAfterMs").json_value()
    page.close()
    return float(took_ms)


if __name__ == "__main__":
    sys.exit(main())
