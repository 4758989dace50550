"""`python -m training SPEC.yaml --output DIR`: a whole fine-tune, with no Serve anywhere."""

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from training.runs import RunFolder, RunRecord, log_to_file
from training.spec import load_spec


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("spec", type=Path, help="the fine-tune as YAML or JSON")
    parser.add_argument(
        "--output", type=Path, required=True, help="new folder for the run; the model is in model/"
    )
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    try:
        model = _fine_tune(options.spec, options.output.resolve(), console)
    except ValueError as exc:
        console.print(f"error: {exc}", style="red", markup=False, highlight=False)
        return 2
    except RuntimeError as exc:
        console.print(f"failed: {exc}", style="red", markup=False, highlight=False)
        return 1
    print(model)  # noqa: T201 - the result, for a shell to take
    return 0


def _fine_tune(spec_file: Path, output: Path, console: Console) -> Path:
    from training import launch  # slow to import; --help is not

    if output.exists() and any(output.iterdir()):
        raise ValueError(f"{str(output)!r} is not empty: expected a new folder for the run")
    spec = load_spec(spec_file)
    launch.quiet_libraries()
    with console.status("Reading and tokenising the rows"):
        data = launch.encode_data(spec)
    run = RunFolder(output)
    run.create(spec, RunRecord(id=output.name, created_at=int(time.time()), writer="job"))
    launch.save_data(run, data)
    with log_to_file(run.log_file), _connect_to_ray(), _show_progress(run, console):
        model = launch.execute_run(run, spec)
        launch.succeed_run(run)
    return model


@contextmanager
def _connect_to_ray() -> Iterator[None]:
    """Use the cluster that `RAY_ADDRESS` names, or start one for this command alone."""
    import ray

    ray.init(
        address=os.environ.get("RAY_ADDRESS", "local"),
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _show_progress(run: RunFolder, console: Console) -> Iterator[None]:
    """Show the run's own files as a progress bar until the body ends."""
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
    num_events = 0
    while True:
        finished = done.wait(0.3)
        events = run.read_events()
        for event in events[num_events:]:
            bar.console.print(event["message"], markup=False, highlight=False)
        num_events = len(events)
        if metrics := run.read_metrics():
            last = metrics[-1]
            bar.update(
                task,
                description=f"loss {last['loss']:.4f}",
                total=last["num_steps"],
                completed=last["step"],
            )
        if finished:
            return


if __name__ == "__main__":
    sys.exit(main())
