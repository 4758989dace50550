"""How many tokens a second we train, beside a bare loop, Ray's guide and transformers' Trainer.

    python -m benchmarks.train --data rows.json

Every contender trains the same random model of 21 million parameters on the same rows for one
epoch, with two workers, ZeRO-3 and one thread a worker, in processes of its own:

ours             `python -m training`, the product's own command: Ray Train, journal and all; read
                 from its metrics.jsonl. Micro batches of at most 2,048 padded tokens a worker.
raw              a bare torchrun loop over DeepSpeed's engine with exactly our batches
guide            the loop of Ray's guide to DeepSpeed with Ray Train, its batches included
trainer          transformers' Trainer with the same DeepSpeed configuration and its own defaults
trainer_grouped  the same, with rows of similar length put together

The clock runs from the end of the third optimizer step to the end of the last. Tokens are those of
prompts and answers without padding. The contenders run one after another in each round, in another
order each; a figure is the median of the rounds. Last line: one JSON object, in which ratio_X is
our speed divided by that of X.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.train_peers.report import NUM_WARMUP_STEPS, summarise_steps
from benchmarks.workbench import (
    CONTEXT_LENGTH,
    NUM_WORKERS,
    ROOT,
    SETTINGS,
    Workbench,
    build_workbench,
    describe_end,
    make_environment,
    make_parser,
    read_rows,
    run_product,
)

PEERS = ("raw", "guide", "trainer", "trainer_grouped")
_TIMEOUT_S = 3600.0


def main() -> int:
    """Measure and print the figures."""
    options = _parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends whoever is being measured too
    with tempfile.TemporaryDirectory(prefix="benchmark-train-") as folder:
        rows = read_rows(options.data, options.rows)
        bench = build_workbench(Path(folder) / "bench", rows, options.precision)
        reports = _measure(bench, options)
        summary = _describe_rows(bench)
    speeds = {
        name: [report["tokens_per_s"] for report in of_rounds]
        for name, of_rounds in reports.items()
    }
    medians = {name: median(of_rounds) for name, of_rounds in speeds.items()}
    peers = [name for name in PEERS if name in medians]
    result = {
        **{f"ratio_{peer}": round(medians["ours"] / medians[peer], 3) for peer in peers},
        "tokens_per_s": {
            name: {"median": medians[name], "rounds": speeds[name]} for name in medians
        },
        "last_round": {name: of_rounds[-1] for name, of_rounds in reports.items()},
        "settings": {
            "data": options.data.name,
            **summary,
            "precision": options.precision,
            "rounds": options.rounds,
            "warmup_steps": NUM_WARMUP_STEPS,
            "context_length": CONTEXT_LENGTH,
            **SETTINGS,
        },
        **describe_machine(),
    }
    print(json.dumps(result))
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--peers", nargs="+", choices=PEERS, default=PEERS, help="beside whom (default: all)"
    )
    return parser.parse_args()


def _measure(bench: Workbench, options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    contenders = ("ours", *options.peers)
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for number in range(options.rounds):
        first = number % len(contenders)
        for name in (*contenders[first:], *contenders[:first]):
            started = time.monotonic()
            report = _train(name, bench, options.precision)
            took_s = round(time.monotonic() - started, 1)
            reports[name].append({**report, "process_s": took_s})
            _tell(f"round {number + 1} of {options.rounds}: {name}: {json.dumps(report)}")
    return reports


def _train(name: str, bench: Workbench, precision: str) -> dict[str, Any]:
    if name == "ours":
        metrics = run_product(bench, bench.spec_file, bench.path / "ours")
        ends_s = [line["elapsed_s"] for line in metrics]
        report = summarise_steps(ends_s, [int(line["tokens"]) for line in metrics])
        return {**report, "last_loss": round(metrics[-1]["loss"], 4)}
    report = _call_peer(name, bench, precision)
    assert report["world_size"] == NUM_WORKERS, report
    assert report["is_bf16"] == (precision == "bf16"), report
    return report


def _call_peer(name: str, bench: Workbench, precision: str) -> dict[str, Any]:
    """Run a peer in processes of its own; returns the line that it prints."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={NUM_WORKERS}"]
    commands: dict[str, list[str | Path]] = {
        "raw": [*torchrun, "-m", "benchmarks.train_peers.raw", bench.path],
        "guide": ["-m", "benchmarks.train_peers.guide", bench.path, precision],
        "trainer": [*torchrun, "-m", "benchmarks.train_peers.trainer", bench.path, precision],
    }
    commands["trainer_grouped"] = [*commands["trainer"], "--grouped"]
    log = bench.path / f"{name}.log"
    with log.open("w") as file:
        done = subprocess.run(  # noqa: S603 - our own modules
            [sys.executable, *commands[name]],
            cwd=ROOT,
            env=make_environment(bench),
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"')]
    if done.returncode or not lines:
        raise RuntimeError(f"{name}: {describe_end(done.returncode, log)}")
    report: dict[str, Any] = json.loads(lines[-1])
    return report


def _describe_rows(bench: Workbench) -> dict[str, int]:
    rows = bench.open_tokens()
    return {
        "num_rows": len(rows),
        "num_tokens": int(rows.lengths.sum()),
        "num_learned_tokens": int(rows.num_learned.sum()),
        "num_truncated_rows": rows.count_truncated(),
    }


def _tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
