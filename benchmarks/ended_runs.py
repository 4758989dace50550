"""The cost of ended runs: CPU time of the queue, and the time to list jobs.

    python -m benchmarks.ended_runs

Starts the application with the embedded default, creates one fine-tune and cancels it. Then copies
its run and its file until there are as many as requested, and measures the same application before
and after. There is no peer. Last line: one JSON object:

    queue_cpu_share   CPU-seconds per second of the queue's process, with the copies
    queue_cpu_extra   the same, minus the share of that process with one ended run
    list_jobs_ms      the median time of `GET /v1/fine_tuning/jobs`
    list_jobs_max_ms  the longest one
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import httpx
import psutil

from apps.bundled import DEMONSTRATION_MODEL, HANDBOOK_FILE_ID
from benchmarks.machine import describe_machine
from benchmarks.serve_peers.server import describe_application
from benchmarks.stored_copies import copy_entry
from storage.layout import StorageLayout, new_id

_QUEUE = "ray::ServeReplica:tuneserve:FineTuningQueue"
_TIMEOUT_S = 120.0
_SETTLE_S = 35.0  # the queue re-reads ended runs every 30 s
_NUM_REQUESTS = 50


def main() -> int:
    """Measure with one ended run and with many, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="number of ended runs")
    parser.add_argument("--files", type=int, default=4000, help="number of uploaded files")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of a measurement")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-ended-runs-") as name:
        folder = Path(name)
        server = describe_application(folder)
        layout = StorageLayout(folder / "storage")
        with (
            server.start() as process,
            httpx.Client(base_url=server.url, timeout=_TIMEOUT_S) as client,
        ):
            queue = _find_queue(process.pid)
            run_id = _end_a_run(client)
            time.sleep(_SETTLE_S)
            alone = _measure_cpu_share(queue, options.seconds)
            for _ in range(options.runs - 1):
                copy_entry(layout.run(run_id), new_id("ftjob"), "run.json")
            for _ in range(options.files - 1):
                copy_entry(layout.file(HANDBOOK_FILE_ID), new_id("file"), "file.json")
            time.sleep(_SETTLE_S)
            among_many = _measure_cpu_share(queue, options.seconds)
            times_ms = _time_lists(client, options.runs)
    result = {
        "queue_cpu_share": round(among_many, 4),
        "queue_cpu_extra": round(among_many - alone, 4),
        "list_jobs_ms": round(median(times_ms), 1),
        "list_jobs_max_ms": round(max(times_ms), 1),
        "runs": options.runs,
        "files": options.files,
        **describe_machine(),
    }
    print(json.dumps(result))
    return 0


def _find_queue(server_pid: int) -> psutil.Process:
    """Return the process of the queue; raises `RuntimeError` if there is not exactly one."""
    found = [
        process
        for process in psutil.Process(server_pid).children(recursive=True)
        if " ".join(process.cmdline()).startswith(_QUEUE)
    ]
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} processes are called {_QUEUE}, expected one")
    return found[0]


def _end_a_run(client: httpx.Client) -> str:
    """Create a fine-tune and cancel it; returns its id."""
    body = {"model": DEMONSTRATION_MODEL, "training_file": HANDBOOK_FILE_ID}
    job_id: str = client.post("/v1/fine_tuning/jobs", json=body).raise_for_status().json()["id"]
    client.post(f"/v1/fine_tuning/jobs/{job_id}/cancel").raise_for_status()
    return job_id


def _measure_cpu_share(process: psutil.Process, duration_s: float) -> float:
    """Return the CPU-seconds per second that a process uses."""
    started, before = time.monotonic(), process.cpu_times()
    time.sleep(duration_s)
    after = process.cpu_times()
    used_s = after.user + after.system - before.user - before.system
    return used_s / (time.monotonic() - started)


def _time_lists(client: httpx.Client, num_runs: int) -> list[float]:
    """Return the duration of each list request in ms, including the first, which reads all runs."""
    times_ms = []
    for _ in range(_NUM_REQUESTS):
        started = time.monotonic()
        listed = client.get("/v1/fine_tuning/jobs").raise_for_status().json()
        times_ms.append((time.monotonic() - started) * 1000)
        if not listed["has_more"]:
            raise RuntimeError(f"one page has all jobs, expected {num_runs}")
    return times_ms


if __name__ == "__main__":
    sys.exit(main())
