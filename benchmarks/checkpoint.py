"""The cost of checkpoints in an undisturbed run, and the recovery time after a worker is killed.

    python -m benchmarks.checkpoint

Both use `python -m training`, two workers, ZeRO-3 and a random model of 21 million parameters.

save_share   The share of the wall time that saving takes with a checkpoint every 50 steps. The peer
             is the same run without checkpoints, in the same round. Measured from the end of step
             25 to the end of a step a multiple of 50 later, so that there is exactly one checkpoint
             per 50 steps and its background upload has finished at the end. The speed of a machine
             may change between two runs: the peer's time is scaled by the median ratio of the steps
             that are neither part of a save nor among the ten steps after one, in which uploads end
             (this is checked). `unscaled_share` is the share without this correction.
recovery_s   Seconds from SIGKILL of one worker process in the middle of a run to the end of the
             first optimizer step after the last checkpoint: failure detection, starting processes,
             loading the model and the checkpoint, and the step.

Figures are medians of the rounds. Last line: one JSON object.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.machine import describe_machine
from benchmarks.workbench import (
    CONTEXT_LENGTH,
    NUM_WORKERS,
    SETTINGS,
    Run,
    Workbench,
    build_workbench,
    make_parser,
    read_rows,
    start_run,
    write_spec,
)
from training.checkpoint.format import list_checkpoints
from training.run.run_events import RunEvent

SAVE_EVERY_STEPS = 50
_FIRST_STEP = 25  # the end of this step starts the clock; halfway to the first checkpoint
# The run for recovery saves often; its worker is killed a few steps after the second save.
_KILL_SAVE_EVERY_STEPS = 5
_KILL_STEP = 12
# Message parts of the run's events between the kill and the next step, in chronological order.
_STAGES = {
    "noticed_s": "was lost",
    "workers_up_s": "workers are up",
    "loaded_s": "Resuming after step",
}
# Number of steps after a save that may be slower because of it.
_SETTLING_STEPS = 10
_POLL_S = 0.1
_TIMEOUT_S = 900.0


def main() -> int:
    """Measure and print the figures."""
    options = _parse_arguments()
    num_steps = _FIRST_STEP + SAVE_EVERY_STEPS * options.saves
    settings = {"precision": options.precision, "micro_batch_tokens": options.micro_batch_tokens}
    with tempfile.TemporaryDirectory(prefix="benchmark-checkpoint-") as folder:
        rows = read_rows(options.data, options.rows)
        rows_of_run = _repeat_rows(Path(folder), rows, num_steps, settings)
        bench = build_workbench(Path(folder) / "bench", rows_of_run, **settings)
        shares, recoveries = [], []
        for number in range(options.rounds):
            shares.append(_measure_saving(bench, num_steps, settings, number))
            _tell(f"round {number + 1} of {options.rounds}: saving: {json.dumps(shares[-1])}")
            recoveries.append(_measure_recovery(bench, settings))
            _tell(f"round {number + 1} of {options.rounds}: recovery: {json.dumps(recoveries[-1])}")
        num_rows = len(bench.open_tokens())
    print(
        json.dumps(
            {
                **_summarise(shares, recoveries),
                "settings": {
                    "data": options.data.name,
                    "num_rows": num_rows,
                    "rounds": options.rounds,
                    "save_every_steps": SAVE_EVERY_STEPS,
                    "timed_steps": num_steps - _FIRST_STEP,
                    "context_length": CONTEXT_LENGTH,
                    **SETTINGS,
                    **settings,
                },
                **describe_machine(),
            }
        )
    )
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--saves", type=int, default=2, help="checkpoints in the timed part of a run (default: 2)"
    )
    parser.add_argument(
        "--micro-batch-tokens",
        type=int,
        default=SETTINGS["micro_batch_tokens"],
        help="size of a step: smaller ones are over sooner, and saving weighs more (default: "
        "%(default)s)",
    )
    return parser.parse_args()


def _repeat_rows(
    folder: Path, rows: list[Any], num_steps: int, settings: dict[str, Any]
) -> list[Any]:
    """Repeat the rows until one epoch has more than `num_steps` steps.

    The end of an epoch would add a checkpoint.
    """
    once = build_workbench(folder / "once", rows, **settings)
    steps_per_pass = max(1, len(once.plan_epoch()))
    num_passes = -(-(num_steps + 1) // steps_per_pass) + 1
    return rows * num_passes


def _measure_saving(
    bench: Workbench, num_steps: int, settings: dict[str, Any], number: int
) -> dict[str, Any]:
    """Run once with checkpoints and once without; the order alternates between rounds."""
    intervals: dict[str, list[float]] = {}
    for name in ("with", "without") if number % 2 == 0 else ("without", "with"):
        saving = {"save_every_steps": SAVE_EVERY_STEPS} if name == "with" else {}
        spec = write_spec(bench, bench.path / f"{name}.yaml", **settings, **saving)
        intervals[name] = _time_steps(bench, spec, bench.path / name, num_steps)
    return compare_intervals(intervals["with"], intervals["without"])


def compare_intervals(saving: Sequence[float], plain: Sequence[float]) -> dict[str, Any]:
    """Compare the seconds of the same steps in a run that saves and in one that does not.

    Both have the shape `[num_steps]` and start with the step after `_FIRST_STEP`. The step that
    follows a checkpoint includes the time of the save.
    """
    ratios = [with_save / without for with_save, without in zip(saving, plain, strict=True)]
    after_save = range(SAVE_EVERY_STEPS - _FIRST_STEP, len(ratios), SAVE_EVERY_STEPS)
    touched = {step + later for step in after_save for later in range(_SETTLING_STEPS)}
    drift = median(ratio for step, ratio in enumerate(ratios) if step not in touched)
    blocked_s = [saving[step] - plain[step] * drift for step in after_save]
    return {
        "save_share": round(1 - sum(plain) * drift / sum(saving), 4),
        "unscaled_share": round(1 - sum(plain) / sum(saving), 4),
        "drift": round(drift, 4),
        "with_s": round(sum(saving), 3),
        "without_s": round(sum(plain), 3),
        "median_step_s": round(median(plain), 3),
        "blocked_s_per_save": [round(seconds, 3) for seconds in blocked_s],
        "blocked_share": round(sum(blocked_s) / sum(saving), 4),
    }


def _time_steps(bench: Workbench, spec_file: Path, output: Path, num_steps: int) -> list[float]:
    """Run until step `num_steps`, then pause the run; returns the seconds of each timed step.

    The duration of a step counts from the end of the previous step, so a save in between is
    included.
    """
    with start_run(bench, spec_file, output) as run:
        _wait(run, lambda: _read_step(run) >= num_steps)
        ends_s = [line["elapsed_s"] for line in run.folder.metrics.read()[:num_steps]]
        upload_s = [
            _measure_upload(found.path) for found in list_checkpoints(run.folder.checkpoints)
        ]
        _stop(run)
    timed = [after - before for before, after in pairwise(ends_s[_FIRST_STEP - 1 :])]
    if max(upload_s, default=0.0) > _SETTLING_STEPS * median(timed):
        raise RuntimeError(
            f"uploads took {upload_s} s, longer than {_SETTLING_STEPS} steps of "
            f"{median(timed):.3f} s: take larger steps"
        )
    return timed


def _measure_upload(checkpoint: Path) -> float:
    """Return the seconds between the first and the last file written to a checkpoint on storage."""
    written = [path.stat().st_mtime for path in checkpoint.rglob("*") if path.is_file()]
    return round(max(written) - min(written), 3)


def _measure_recovery(bench: Workbench, settings: dict[str, Any]) -> dict[str, Any]:
    """Kill a worker in the middle of a run, and measure when training resumes."""
    spec = write_spec(
        bench,
        bench.path / "recovery.yaml",
        **settings,
        save_every_steps=_KILL_SAVE_EVERY_STEPS,
    )
    with start_run(bench, spec, bench.path / "recovery") as run:
        _wait(run, lambda: _read_step(run) >= _KILL_STEP and _find_checkpoint(run) > 0)
        worker = _find_workers(run)[-1]
        num_events = len(run.folder.events.read())
        worker.kill()
        killed_at = time.monotonic()
        killed_after, stages = _read_step(run), {}
        for name, words in _STAGES.items():
            event = _wait_for_event(run, words, num_events)
            stages[name] = round(time.monotonic() - killed_at, 2)
        resumed_from = int(event["data"]["step"])  # metrics of later steps are already removed
        _wait(run, lambda: _read_step(run) > resumed_from)
        recovery_s = round(time.monotonic() - killed_at, 2)
        _stop(run)
    return {
        "recovery_s": recovery_s,
        **stages,
        "killed_after_step": killed_after,
        "resumed_from_step": resumed_from,
    }


def _find_workers(run: Run) -> list[psutil.Process]:
    """Return the Ray Train workers of this run's own cluster; raises `RuntimeError` if not all."""
    family = psutil.Process(run.process.pid).children(recursive=True)
    workers = [process for process in family if "RayTrainWorker" in _read_name(process)]
    if len(workers) != NUM_WORKERS:
        raise RuntimeError(f"found {len(workers)} worker processes, expected {NUM_WORKERS}")
    return workers


def _read_name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _find_checkpoint(run: Run) -> int:
    """Return the step of the newest complete checkpoint; 0 before the first."""
    return max((found.step for found in list_checkpoints(run.folder.checkpoints)), default=0)


def _wait_for_event(run: Run, words: str, num_before: int) -> RunEvent:
    """Wait for an event after the first `num_before` whose message contains `words`."""
    found: list[RunEvent] = []

    def is_there() -> bool:
        later = run.folder.events.read()[num_before:]
        found.extend(event for event in later if words in event["message"])
        return bool(found)

    _wait(run, is_there)
    return found[0]


def _read_step(run: Run) -> int:
    last = run.folder.metrics.read_last()
    return int(last["step"]) if last else 0


def _stop(run: Run) -> None:
    """Pause the run and wait until its process has ended."""
    from training.__main__ import PAUSED_STATUS

    run.folder.request_pause()
    run.wait(expected_status=PAUSED_STATUS)


def _wait(run: Run, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        run.check_alive()
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing in {_TIMEOUT_S:g} s: see what {run.log} says")
        time.sleep(_POLL_S)


def _summarise(shares: list[dict[str, Any]], recoveries: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "save_share": median(share["save_share"] for share in shares),
        "unscaled_share": median(share["unscaled_share"] for share in shares),
        "blocked_share": median(share["blocked_share"] for share in shares),
        "recovery_s": median(recovery["recovery_s"] for recovery in recoveries),
        "saving": shares,
        "recovery": recoveries,
    }


def _tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
