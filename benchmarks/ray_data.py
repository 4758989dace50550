"""The data engine `ray` on rows larger than the object store, and compared with `local`.

    python -m benchmarks.ray_data --megabytes 2048

A folder of JSONL files is generated. Part one checks and streams texts on a cluster of its own
whose object store has `--store-megabytes`: `worker_rss_mb` and `task_rss_mb` are the largest
resident memory of a worker and of a task's process, shared memory included, and `spilled_mb` is
what Ray wrote to disk because the store was full. Part two trains `--compared-megabytes` of the
chats with both engines in turn, in the same order: `ratio` is the tokens per second of `ray`
through those of `local`, over all steps after the first tenth, and `loss_difference` the largest
difference of the loss of a step, relative. Seconds of preparation are those before the first step.
Last line: one JSON object.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any

import psutil
import yaml

from benchmarks.machine import describe_machine
from benchmarks.workbench import DEMO_MODEL, DEMO_ROWS, SETTINGS
from storage import durable
from training.data.ray_data.pipelines import TASK_CPUS

_FILE_BYTES = 64 << 20
_CHATS_IN_TEXT = 8
_POLL_S = 0.5
_SPILLED = re.compile(r"Spilled ([\d.]+) MiB")


def main() -> int:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=2048, help="size of the rows of part one")
    parser.add_argument("--store-megabytes", type=int, default=500, help="object store of part one")
    parser.add_argument("--steps", type=int, default=200, help="steps of part one")
    parser.add_argument("--compared-megabytes", type=int, default=8, help="rows of part two")
    parser.add_argument("--compared-steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3, help="times that each engine is measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-ray-data-") as name:
        folder = Path(name)
        streamed: dict[str, Any] = {}
        if options.megabytes:
            _write_rows(folder / "rows", options.megabytes << 20, _make_text)
            streamed = _stream(folder, options.store_megabytes, options.steps)
            print(json.dumps(streamed), file=sys.stderr)
        compared: dict[str, Any] = {}
        if options.rounds:
            _write_rows(folder / "few", options.compared_megabytes << 20, _make_chat)
            compared = _compare(folder, options.compared_steps, options.rounds)
    print(json.dumps({**vars(options), **streamed, **compared, **describe_machine()}))
    return 0


def _write_rows(folder: Path, num_bytes: int, make_row: Callable[[random.Random], Any]) -> None:
    """Write files of rows, all different."""
    folder.mkdir()
    random_rows = random.Random(0)  # noqa: S311 - data, no secret
    number = written = 0
    while written < num_bytes:
        with (folder / f"rows-{number:04d}.jsonl").open("w") as file:
            end = min(num_bytes, written + _FILE_BYTES)
            while written < end:
                written += file.write(json.dumps(make_row(random_rows)) + "\n")
        number += 1


@cache
def _read_chats() -> list[list[dict[str, str]]]:
    """Read the chats of the handbook."""
    return [json.loads(line)["messages"] for line in DEMO_ROWS.read_text().splitlines()]


def _make_chat(random_rows: random.Random) -> Any:
    """Make a chat of the handbook, with numbers that make it differ from others."""
    messages = random_rows.choice(_read_chats())
    return {
        "messages": [
            {**message, "content": f"{message['content']} {random_rows.randrange(10**9)}"}
            for message in messages
        ]
    }


def _make_text(random_rows: random.Random) -> Any:
    """Make a text of several chats, which is read much faster than a chat is rendered."""
    chats = (_make_chat(random_rows)["messages"] for _ in range(_CHATS_IN_TEXT))
    return {"text": " ".join(message["content"] for chat in chats for message in chat)}


def _stream(folder: Path, store_mb: int, num_steps: int) -> dict[str, Any]:
    """Check and stream rows that are larger than the object store."""
    with _start_cluster(store_mb) as memory:
        run = _train(folder, "streamed", folder / "rows", "ray", num_steps)
        spilled = _measure_spilled()
    return {
        "worker_rss_mb": round(memory.worker_bytes / 2**20),
        "worker_private_mb": round(memory.worker_private_bytes / 2**20),
        "task_rss_mb": round(memory.task_bytes / 2**20),
        "spilled_mb": spilled,
        "streamed_rows": run["num_rows"],
        "streamed_prepare_s": run["prepare_s"],
        "streamed_tokens_per_s": run["tokens_per_s"],
    }


def _compare(folder: Path, num_steps: int, rounds: int) -> dict[str, Any]:
    """Train the same rows in the same order with both engines, in turn."""
    found: dict[str, list[dict[str, Any]]] = {"local": [], "ray": []}
    for number in range(rounds):
        engines = ("local", "ray") if number % 2 == 0 else ("ray", "local")
        for engine in engines:
            with _start_cluster(500):
                name = f"{engine}-{number}"
                found[engine].append(_train(folder, name, folder / "few", engine, num_steps))
            shown = {key: value for key, value in found[engine][-1].items() if key != "losses"}
            print(json.dumps({"engine": engine, **shown}), file=sys.stderr)
    speeds = {name: median(run["tokens_per_s"] for run in runs) for name, runs in found.items()}
    pairs = zip(found["local"][0]["losses"], found["ray"][0]["losses"], strict=True)
    return {
        "ratio": round(speeds["ray"] / speeds["local"], 3),
        "tokens_per_s": speeds,
        "prepare_s": {
            name: median(run["prepare_s"] for run in runs) for name, runs in found.items()
        },
        "loss_difference": max(abs(ours - theirs) / theirs for theirs, ours in pairs),
    }


def _train(folder: Path, name: str, rows: Path, engine: str, num_steps: int) -> dict[str, Any]:
    """Run `python -m training` on the cluster that `RAY_ADDRESS` names."""
    spec = {
        **SETTINGS,
        "base_model": str(DEMO_MODEL),
        "train_file": str(rows),
        "precision": "fp32",
        "max_steps": num_steps,
        "data_engine": engine,
        "shuffle_window": 1 << 18,
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(spec))
    began = time.time()
    command = [sys.executable, "-m", "training", str(folder / f"{name}.yaml")]
    command += ["--output", str(folder / name), "--cache", str(folder / f"{name}-cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stderr[-4000:]}")
    lines = durable.read_json_lines(folder / name / "metrics.jsonl")
    first = lines[len(lines) // 10]
    num_tokens = lines[-1]["trained_tokens"] - first["trained_tokens"]
    return {
        "num_rows": durable.read_json(folder / name / "data" / "summary.json")["num_rows"],
        "tokens_per_s": round(num_tokens / (lines[-1]["elapsed_s"] - first["elapsed_s"]), 1),
        "prepare_s": round(lines[0]["created_at"] - began, 1),
        "losses": [line["loss"] for line in lines],
    }


@dataclass
class _Memory:
    """The largest resident memory of the workers and of other processes of Ray, in bytes."""

    worker_bytes: int = 0
    worker_private_bytes: int = 0
    task_bytes: int = 0
    is_over: Event = field(default_factory=Event)

    def watch(self) -> None:
        while not self.is_over.wait(_POLL_S):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    self._add(" ".join(process.cmdline()), process.memory_info())

    def _add(self, command: str, memory: Any) -> None:
        if "RayTrainWorker" in command:
            self.worker_bytes = max(self.worker_bytes, memory.rss)
            private = memory.rss - memory.shared
            self.worker_private_bytes = max(self.worker_private_bytes, private)
        elif command.startswith("ray::") and "IDLE" not in command:
            self.task_bytes = max(self.task_bytes, memory.rss)


@contextmanager
def _start_cluster(store_mb: int) -> Iterator[_Memory]:
    """Start a cluster of the machine's cores for the body, and watch its memory."""
    import ray

    num_cpus = max(os.cpu_count() or 1, 2 * SETTINGS["cpus_per_worker"] + TASK_CPUS)
    context: Any = ray.init(
        address="local",
        num_cpus=int(num_cpus),
        include_dashboard=False,
        object_store_memory=store_mb << 20,
        log_to_driver=False,
    )
    os.environ["RAY_ADDRESS"] = context.address_info["address"]
    memory = _Memory()
    watcher = Thread(target=memory.watch, daemon=True)
    watcher.start()
    try:
        yield memory
    finally:
        memory.is_over.set()
        watcher.join()
        ray.shutdown()
        del os.environ["RAY_ADDRESS"]


def _measure_spilled() -> float:
    """Return the megabytes that Ray has spilled to disk, as `ray memory` reports them."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "memory", "--stats-only"]
    command += ["--address", os.environ["RAY_ADDRESS"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - Ray's
    if done.returncode:
        raise RuntimeError(f"ray memory failed: {done.stderr[-2000:]}")
    return sum(float(megabytes) for megabytes in _SPILLED.findall(done.stdout))


if __name__ == "__main__":
    sys.exit(main())
