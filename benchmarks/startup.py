"""The time from the request for a fine-tune to its first optimizer step, by phase.

    python -m benchmarks.startup

Starts the application as a user would, with the embedded default, and requests the same fine-tune
several times in sequence; each is cancelled after its first step. Its folder is polled every 5 ms.
There is no peer: the alternatives have no such request. Last line: one JSON object;
`job_to_first_step_s` is the median, the phases are medians too, in seconds:

    accepted       the request is answered: rows read and tokenised, the job in the queue
    process_up     the job's process has started and requests workers from Ray Train
    workers_up     the workers have started and load the model
    model_loaded   the workers have the model, sharded, with its optimizer
    first_step     the first step is complete
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

import httpx

from apps.bundled import DEMONSTRATION_MODEL, HANDBOOK_FILE_ID
from benchmarks.machine import describe_machine
from benchmarks.serve_peers.server import describe_application
from storage import durable

_POLL_S = 0.005
_TIMEOUT_S = 180.0
_MARKS = {
    "process_up": "Starting the workers",
    "workers_up": "workers are up",
    "model_loaded": "Loaded",
}


def main() -> int:
    """Measure some jobs and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5, help="fine-tunes to begin")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-startup-") as name:
        folder = Path(name)
        server = describe_application(folder)
        with server.start(), httpx.Client(base_url=server.url, timeout=_TIMEOUT_S) as client:
            runs = [_begin(client, folder / "storage" / "runs") for _ in range(options.jobs)]
    totals = [run["first_step"] for run in runs]
    result = {
        "job_to_first_step_s": round(median(totals), 2),
        "all_s": [round(total, 2) for total in totals],
        "phases_s": _find_phases(runs),
        **describe_machine(),
    }
    print(json.dumps(result))
    return 0


def _begin(client: httpx.Client, runs: Path) -> dict[str, float]:
    """Start one job; returns the time of each mark in seconds since the request."""
    started = time.monotonic()
    body = {"model": DEMONSTRATION_MODEL, "training_file": HANDBOOK_FILE_ID}
    job = client.post("/v1/fine_tuning/jobs", json=body).raise_for_status().json()
    seen = {"accepted": time.monotonic() - started}
    folder = runs / job["id"]
    events = durable.LineFollower(folder / "events.jsonl")
    told: list[str] = []

    def has_told(text: str) -> bool:
        told.extend(event["message"] for event in events.read_new())
        return any(text in message for message in told)

    for mark, text in _MARKS.items():
        seen[mark] = _wait(lambda text=text: has_told(text), started)  # type: ignore[misc]
    metrics = durable.LineFollower(folder / "metrics.jsonl")
    seen["first_step"] = _wait(lambda: bool(metrics.read_new()), started)
    print(json.dumps({name: round(value, 2) for name, value in seen.items()}), flush=True)
    client.post(f"/v1/fine_tuning/jobs/{job['id']}/cancel").raise_for_status()
    return seen


def _wait(has_come: Callable[[], bool], started: float) -> float:
    while not has_come():
        if time.monotonic() - started > _TIMEOUT_S:
            raise TimeoutError(f"the job did not get there within {_TIMEOUT_S:g} s")
        time.sleep(_POLL_S)
    return time.monotonic() - started


def _find_phases(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the median duration of each phase in seconds."""
    spans: dict[str, list[float]] = {}
    for run in runs:
        for (_, begin), (name, end) in pairwise([("", 0.0), *run.items()]):
            spans.setdefault(name, []).append(end - begin)
    return {name: round(median(took), 2) for name, took in spans.items()}


if __name__ == "__main__":
    sys.exit(main())
