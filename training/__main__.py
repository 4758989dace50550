"""`python -m training SPEC.yaml --output DIR`: a complete fine-tune, without Ray Serve."""

import argparse
import logging
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import psutil
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from storage import durable
from storage.durable import DamagedFileError
from storage.local_paths import check_local_path
from storage.privacy import keep_files_private
from system.byte_progress import show_bytes
from system.priority import lower_process_priority
from system.process_ends import wait_for_ends
from training.cluster.agent_port import choose_free_agent_port
from training.command.full_output import drop_output_on_full_disk
from training.command.interruption import PauseOnInterrupt, PauseTimeoutError, interrupt_on_sigterm
from training.data.token_cache import default_cache
from training.monitoring.trackers import check_trackers
from training.run import run_state
from training.run.folder import RunFolder
from training.run.lease import acquire_lease
from training.run.reopen import RerunError, is_untrained, reopen_run
from training.run.run_log import log_to_file
from training.run.run_record import RunRecord
from training.spec import TrainingSpec, load_spec

if TYPE_CHECKING:
    from training.data.prepare import PreparedData

PAUSED_STATUS = 75  # EX_TEMPFAIL of sysexits.h: try again
# Files of a run that may exist before its record; files being written have temporary names.
_PARTIAL_RUN_FILES = {
    "data",
    "events.jsonl",
    "spec.json",
    ".driver.lock",
    "heartbeat",
    ".heartbeat",
}
_TEMPORARY_PREFIXES = (".spec.json.", ".run.json.")
_UNMONITORED = {
    "enable_metrics_collection": False,
    "event_stats": False,
    "metrics_report_interval_ms": 60_000,
    "task_events_report_interval_ms": 0,
}
INTERRUPTED_STATUS = 130  # as shells report for a process that SIGINT ended
_PROCESS_END_TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("spec", type=Path, help="the fine-tune as YAML or JSON")
    parser.add_argument(
        "--output",
        required=True,
        help="folder for the run; the model is in model/. The folder of an interrupted run resumes "
        "it; that of a finished run extends it if the spec has more epochs",
    )
    parser.add_argument(
        "--loop",
        metavar="PACKAGE.MODULE:FUNCTION",
        help="a training function for Ray Train to run in place of the built-in loop",
    )
    parser.add_argument(
        "--cache", type=Path, default=default_cache(), help="where rows are kept as tokens"
    )
    parser.add_argument(
        "--pause-timeout",
        type=_parse_seconds,
        metavar="SECONDS",
        help="how long Ctrl-C or SIGTERM may take to pause the run; then it stops at once, and "
        "resumes from its last checkpoint (default: as long as the step and its checkpoint take)",
    )
    options = parser.parse_args(arguments)
    keep_files_private()
    with drop_output_on_full_disk(), interrupt_on_sigterm():
        return _run_command(options, Console(stderr=True))


def _parse_seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{value!r}, expected a number of seconds above 0")
    return seconds


def _run_command(options: argparse.Namespace, console: Console) -> int:
    try:
        check_local_path("--output", options.output)  # before `Path` turns 's3://' into 's3:/'
        check_local_path("--cache", options.cache)
        model = _fine_tune(options, console)
    except ValueError as exc:
        console.print(f"error: {exc}", style="red", markup=False, highlight=False)
        return 2
    except KeyboardInterrupt:
        console.print("stopped: the same command resumes it", highlight=False)
        return INTERRUPTED_STATUS
    except DamagedFileError as exc:
        advice = "restore it from a backup, or choose a new folder for the run"
        console.print(f"failed: {exc}; {advice}", style="red", markup=False, highlight=False)
        return 1
    except (RuntimeError, OSError) as exc:
        console.print(f"failed: {exc}", style="red", markup=False, highlight=False)
        return 1
    if model is None:
        console.print("paused: the same command resumes it", highlight=False)
        return PAUSED_STATUS
    if model.is_dir():
        print(model)  # noqa: T201 - the result, for a shell to take
    return 0


def _fine_tune(options: argparse.Namespace, console: Console) -> Path | None:
    # These are slow to import; --help is not.
    from training.data.prepare import prepare_data
    from training.launch import disable_progress_bars
    from training.preflight.preflight import check_settings

    run = RunFolder(Path(options.output).resolve())
    _check_output(run)
    spec = load_spec(options.spec, {"loop": options.loop} if options.loop else None)
    check_trackers(spec)
    disable_progress_bars()
    check_settings(spec)  # before the rows are read, which may take long
    with _connect_to_ray() if spec.data_engine == "ray" else nullcontext():
        with (
            interrupt_on_sigterm(),  # ray.init handles SIGTERM itself
            show_bytes(console, "Reading and tokenising the rows") as on_progress,
        ):
            data = prepare_data(spec, options.cache, on_progress)
        return _train_prepared(run, spec, data, options, console)


def _train_prepared(
    run: RunFolder,
    spec: TrainingSpec,
    data: "PreparedData",
    options: argparse.Namespace,
    console: Console,
) -> Path | None:
    from training.data.run_tables import link_data
    from training.monitoring.data_report import report_data

    run.path.mkdir(parents=True, exist_ok=True)
    with acquire_lease(run):
        if (reopened := _reopen(run, spec, data)) is None:
            run.events.path.unlink(missing_ok=True)
            for request in (run.cancel_file, run.pause_file):
                request.unlink(missing_ok=True)
            link_data(data, run.data)
            report_data(run, data.summary)
            run.create(spec, RunRecord(id=run.path.name, created_at=int(time.time()), writer="job"))
        return _execute(run, reopened or spec, console, options.pause_timeout)


def _reopen(run: RunFolder, spec: TrainingSpec, data: "PreparedData") -> TrainingSpec | None:
    """Reopen an existing run; returns None for a new one.

    A run that was refused before its first step also counts as new if its settings or rows have
    changed, so that a corrected spec needs no other folder. Raises as `reopen_run` does.
    """
    if not run.record_file.is_file():
        return None
    try:
        return reopen_run(run, spec, data.summary["fingerprint"])
    except RerunError:
        if not is_untrained(run):
            raise
        return None


def _check_output(run: RunFolder) -> None:
    """Refuse a folder with other files in it; files of a killed command are allowed."""
    found = {path.name for path in run.path.iterdir()} if run.path.exists() else set()
    foreign = {
        name for name in found - _PARTIAL_RUN_FILES if not name.startswith(_TEMPORARY_PREFIXES)
    }
    if not run.record_file.is_file() and foreign:
        raise ValueError(
            f"{str(run.path)!r} is not empty and contains no run: expected a new folder, "
            "or the folder of a run to resume"
        )


def _execute(
    run: RunFolder, spec: TrainingSpec, console: Console, pause_timeout_s: float | None
) -> Path | None:
    def pause() -> None:
        run.request_pause()
        console.print("Pausing after this step; press Ctrl-C again to stop now", highlight=False)

    from training import launch

    with (
        log_to_file(run.log_file),
        PauseOnInterrupt(pause, pause_timeout_s) as pausing,
        _connect_to_ray(),
        _show_progress(run, console),
    ):
        pausing.install()  # ray.init handles SIGTERM itself
        try:
            with pausing.limit():
                model = launch.execute_run(run, spec)
                if model is not None:
                    launch.succeed_run(run)
                return model
        except PauseTimeoutError:
            return _end_pause(run, pause_timeout_s)


def _end_pause(run: RunFolder, timeout_s: float | None) -> Path | None:
    """Record a run as paused whose pause timed out; it may have ended just before the timeout.

    Raises `RuntimeError` if it has failed.
    """
    record = run.read_record()
    if record.status == "succeeded":
        return run.model
    if record.status == "failed":
        raise RuntimeError(record.error.message if record.error else "the run has failed")
    if record.status != "paused":
        run.events.add(
            f"The run did not pause within {timeout_s:g} s and was stopped; it resumes from its "
            "last checkpoint",
            level="warn",
            code="pause_timed_out",
        )
        run_state.pause(run)
    return None


@contextmanager
def _connect_to_ray() -> Iterator[None]:
    """Connect to the cluster that `RAY_ADDRESS` names, or start one for this command only."""
    import ray

    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS") or "local"
    alone: dict[str, Any] = {}
    if address == "local":
        # Monitoring a cluster takes CPU time of every core, and its data would not be read here.
        alone = {"include_dashboard": False, "_system_config": _UNMONITORED}
    others = set(psutil.Process().children())
    with choose_free_agent_port() if alone else nullcontext():
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **alone)
    started = set(psutil.Process().children()) - others if alone else set()
    try:
        yield
    finally:
        ours = _list_families(started)
        ray.shutdown()
        kill_leftover_processes(ours)


def _list_families(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return processes with their descendants, except for those that have ended."""
    found: list[psutil.Process] = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found += [*process.children(recursive=True), process]
    return found


def kill_leftover_processes(
    processes: list[psutil.Process], timeout_s: float = _PROCESS_END_TIMEOUT_S
) -> None:
    """Kill the processes that are still running `timeout_s` after their cluster has shut down.

    Ray no longer tracks a worker that has begun to exit, and a few in a hundred of these never end.
    """
    remaining = wait_for_ends(processes, timeout_s)
    for process in remaining:
        logger.warning("killing process %d, which runs although its cluster has ended", process.pid)
        with suppress(psutil.NoSuchProcess):
            process.kill()
    wait_for_ends(remaining, timeout_s)


@contextmanager
def _show_progress(run: RunFolder, console: Console) -> Iterator[None]:
    """Show a progress bar from the run's metrics and events while the body runs."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    done = Event()
    with bar:
        watcher = Thread(target=_follow_run, args=(run, bar, done), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def _follow_run(run: RunFolder, bar: Progress, done: Event) -> None:
    task = bar.add_task("Starting", total=None)
    events = durable.LineFollower(run.events.path)
    while True:
        finished = done.wait(0.3)
        for event in events.read_new():
            bar.console.print(event["message"], markup=False, highlight=False)
        if last := run.metrics.read_last():
            bar.update(
                task,
                description=f"training loss {last['loss']:.4f}" if "loss" in last else "Training",
                total=last.get("num_steps"),
                completed=last["step"],
            )
        if finished:
            return


if __name__ == "__main__":
    lower_process_priority()
    sys.exit(main())
