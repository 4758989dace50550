"""The training throughput, compared with a bare loop, Ray's guide and transformers' Trainer.

    python -m benchmarks.train --data rows.json

Every contender trains the same random model of 21 million parameters on the same rows for one
epoch, with two workers, ZeRO-3 and one thread per worker, in separate processes:

ours             `python -m training`, the product's own command, including Ray Train and journal;
                 figures from its metrics.jsonl. Micro batches of at most 2,048 tokens per worker,
                 including padding; `settings.layout` tells whether rows are padded or packed.
raw              a bare torchrun loop over DeepSpeed's engine, with batches padded within our limit
guide            the loop of Ray's guide to DeepSpeed with Ray Train, with the guide's batches
trainer          transformers' Trainer with the same DeepSpeed configuration and its own defaults
trainer_grouped  the same, with rows grouped by length
trainer_sized    trainer_grouped with as many rows per batch as ours have on average, so with about
                 as many steps
trainer_limited  trainer_grouped with as many rows per batch as padded rows within our limit have

The clock runs from the end of the third optimizer step to the end of the last. Tokens are those of
prompts and answers without padding. The contenders run one after another, in a different order in
each round; a figure is the median of the rounds. `--blocks` divides the rows into that many blocks,
and all contenders train one block before any trains the next, so that drift of the machine's speed
within minutes affects all of them alike. The figure of a round is then all tokens divided by all
seconds. With `--adapter`, ours and Trainer train LoRA of the same layers and rank, Trainer by PEFT,
and both write a checkpoint after the last step. `peak_memory_mb` is that of the worker that needs
the most, until then. Last line: one JSON object, in which ratio_X is our speed divided by that of
X.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.train_peers.report import NUM_WARMUP_STEPS, summarise_steps
from benchmarks.workbench import (
    CONTEXT_LENGTH,
    NUM_WORKERS,
    SETTINGS,
    Workbench,
    build_workbench,
    call_contender,
    make_environment,
    make_parser,
    read_rows,
    run_product,
)
from system.priority import lower_process_priority
from training.data.row_table import count_truncated

TRAINERS = ("trainer", "trainer_grouped", "trainer_sized", "trainer_limited")
PEERS = ("raw", "guide", *TRAINERS)
_TIMEOUT_S = 3600.0


def main() -> int:
    """Measure and print the figures."""
    options = _parse_arguments()
    lower_process_priority()  # as our command does; all contenders inherit the niceness
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also ends the contender that runs
    with tempfile.TemporaryDirectory(prefix="benchmark-train-") as folder:
        rows = read_rows(options.data, options.rows)
        benches = [
            build_workbench(
                Path(folder) / f"block-{number}",
                rows[number :: options.blocks],
                options.precision,
                adapter={"rank": options.adapter} if options.adapter else None,
            )
            for number in range(options.blocks)
        ]
        reports = _measure(benches, options)
        summary = {**_describe_rows(benches), "layout": benches[0].choose_layout()}
    speeds = {
        name: [_sum_up(of_blocks) for of_blocks in of_rounds] for name, of_rounds in reports.items()
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
            "adapter_rank": options.adapter,
            "rounds": options.rounds,
            "blocks": options.blocks,
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
    parser.add_argument("--peers", nargs="+", choices=PEERS, help="beside whom (default: all)")
    parser.add_argument(
        "--adapter", type=int, metavar="RANK", help="train LoRA of this rank, beside Trainer"
    )
    parser.add_argument(
        "--blocks", type=int, default=1, help="parts of the rows to take turns on (default: 1)"
    )
    options = parser.parse_args()
    possible = TRAINERS if options.adapter else PEERS
    options.peers = options.peers or possible
    if others := sorted(set(options.peers) - set(possible)):
        parser.error(f"--adapter is compared with {', '.join(TRAINERS)}, not with {others}")
    return options


def _measure(
    benches: Sequence[Workbench], options: argparse.Namespace
) -> dict[str, list[list[dict[str, Any]]]]:
    """Train every block with every contender in each round; returns reports by round and block."""
    contenders = ("ours", *options.peers)
    reports: dict[str, list[list[dict[str, Any]]]] = {
        name: [[] for _ in range(options.rounds)] for name in contenders
    }
    turns = product(range(options.rounds), enumerate(benches))
    for turn, (number, (block, bench)) in enumerate(turns):
        first = turn % len(contenders)
        for name in (*contenders[first:], *contenders[:first]):
            started = time.monotonic()
            report = _train(name, bench, options.precision)
            took_s = round(time.monotonic() - started, 1)
            reports[name][number].append({**report, "process_s": took_s})
            where = f"round {number + 1} of {options.rounds}, block {block + 1} of {len(benches)}"
            _tell(f"{where}: {name}: {json.dumps(report)}")
    return reports


def _sum_up(reports: Sequence[dict[str, Any]]) -> float:
    """Return the tokens per second over all blocks of a round."""
    timed_tokens = sum(int(report["timed_tokens"]) for report in reports)
    return round(timed_tokens / sum(float(report["timed_s"]) for report in reports), 1)


def _train(name: str, bench: Workbench, precision: str) -> dict[str, Any]:
    if name == "ours":
        metrics, checkpoint_bytes = run_product(bench, bench.spec_file, bench.path / "ours")
        ends_s = [line["elapsed_s"] for line in metrics]
        report = summarise_steps(ends_s, [int(line["tokens"]) for line in metrics])
        return {
            **report,
            "last_loss": round(metrics[-1]["loss"], 4),
            "peak_memory_mb": int(max(line["peak_memory_bytes"] for line in metrics)) >> 20,
            "checkpoint_mb": round(checkpoint_bytes / 2**20, 2),
        }
    report = _call_peer(name, bench, precision)
    assert report["world_size"] == NUM_WORKERS, report
    assert report["is_bf16"] == (precision == "bf16"), report
    assert not report.get("is_autocast"), "DeepSpeed computes in bf16 by itself"
    return report


def _call_peer(name: str, bench: Workbench, precision: str) -> dict[str, Any]:
    """Run a peer in separate processes; returns the JSON line that it prints."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={NUM_WORKERS}"]
    commands: dict[str, list[str | Path]] = {
        "raw": [*torchrun, "-m", "benchmarks.train_peers.raw", bench.path],
        "guide": ["-m", "benchmarks.train_peers.guide", bench.path, precision],
        "trainer": [*torchrun, "-m", "benchmarks.train_peers.trainer", bench.path, precision],
    }
    commands["trainer_grouped"] = [*commands["trainer"], "--grouped"]
    num_rows = {
        "trainer_sized": bench.count_rows_per_batch(),
        "trainer_limited": bench.count_rows_per_batch("padded"),
    }
    for peer, num in num_rows.items():
        commands[peer] = [*commands["trainer_grouped"], "--rows", str(num)]
    log = bench.path / f"{name}.log"
    return call_contender(name, commands[name], make_environment(bench), log, _TIMEOUT_S)


def _describe_rows(benches: Sequence[Workbench]) -> dict[str, int]:
    tables = [bench.open_tokens() for bench in benches]
    return {
        "num_rows": sum(len(rows) for rows in tables),
        "num_tokens": sum(int(rows.lengths.sum()) for rows in tables),
        "num_learned_tokens": sum(int(rows.num_targets.sum()) for rows in tables),
        "num_truncated_rows": sum(count_truncated(rows) for rows in tables),
    }


def _tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
