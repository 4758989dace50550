"""Trackers of a run's metrics besides `metrics.jsonl`: TensorBoard, and those of the spec."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from training.monitoring.tracker_thread import CLOSE_TIMEOUT_S, Tracker, TrackerThread
from training.run.folder import RunFolder
from training.spec import TrainingSpec

logger = logging.getLogger(__name__)

_NOT_CURVES = frozenset({"step", "num_steps"})


class TrackerError(ValueError):
    """A requested tracker is not installed."""


@contextmanager
def open_trackers(
    spec: TrainingSpec, run: RunFolder, first_step: int, *, is_reporting: bool
) -> Iterator[list[Tracker]]:
    """Open TensorBoard's event file in the run's folder, and the trackers of the spec.

    TensorBoard hides figures that an interrupted run recorded after `first_step`. Each tracker of
    the spec has its own thread (`training.monitoring.tracker_thread`): only the end of the
    training waits for it, for a limited time. A worker with `is_reporting` false gets no trackers.
    """
    if not is_reporting:
        yield []
        return
    threads = [TrackerThread(name, partial(OPENERS[name], spec, run)) for name in spec.trackers]
    outcome: tuple[Any, Any, Any] = (None, None, None)
    with ExitStack() as stack:
        tensorboard = _enter(stack, _open_tensorboard(run.path / "tensorboard", first_step))
        try:
            yield [tensorboard, *threads]
        except BaseException as exc:
            outcome = (type(exc), exc, exc.__traceback__)
            raise
        finally:
            _close(threads, outcome, run)


def _close(threads: Sequence[TrackerThread], outcome: tuple[Any, Any, Any], run: RunFolder) -> None:
    """Close all trackers within one time limit, and report those that may lack figures."""
    deadline = time.monotonic() + CLOSE_TIMEOUT_S
    for thread in threads:
        thread.request_close(outcome)
    for thread in threads:
        if reason := thread.join(max(0.0, deadline - time.monotonic())):
            logger.warning("tracker %s may lack figures: %s", thread.name, reason)
            try:
                run.events.add(
                    f"Metrics may be missing in {thread.name}: {reason}",
                    level="warn",
                    code="tracker_off",
                    data={"tracker": thread.name},
                )
            except OSError:  # a full disk must not hide how the training ended
                logger.exception("the event cannot be written")


def _enter(stack: ExitStack, opened: AbstractContextManager[Tracker]) -> Tracker:
    """Enter a tracker so that an error when it is closed cannot fail the run."""
    tracker = opened.__enter__()

    def leave(*outcome: Any) -> None:
        try:
            opened.__exit__(*outcome)
        except Exception:
            logger.exception("tracker %s cannot be closed", type(tracker).__name__)

    stack.push(leave)
    return tracker


def check_trackers(spec: TrainingSpec) -> None:
    """Raise `TrackerError` for a tracker that is not installed, before anything starts."""
    from importlib.util import find_spec

    for name in spec.trackers:
        if find_spec(name) is None:
            raise TrackerError(
                f"trackers has {name!r}, which is not installed here: "
                f"pip install 'tuneserve[{name}]'"
            )


class _TensorBoard:
    """Writes the event file in the calling thread.

    tensorboardX's `SummaryWriter` writes in a thread. On a full disk that thread ends, and the
    training then waits for ever to put a figure into its queue.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, figures: Mapping[str, float], step: int) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        for name, value in figures.items():
            if name not in _NOT_CURVES:
                summary = scalar(name, value)
                self._writer.write_event(Event(step=step, wall_time=time.time(), summary=summary))
        self._writer.flush()


@contextmanager
def _open_tensorboard(folder: Path, first_step: int) -> Iterator[Tracker]:
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    folder.mkdir(parents=True, exist_ok=True)
    writer = EventsWriter(str(folder / "events"))
    with closing(writer):
        # This hides figures that an interrupted run recorded from this step on.
        start = SessionLog(status=SessionLog.START)
        writer.write_event(Event(step=first_step + 1, wall_time=time.time(), session_log=start))
        yield _TensorBoard(writer)


class _Mlflow:
    def log(self, figures: Mapping[str, float], step: int) -> None:
        import mlflow

        mlflow.log_metrics(dict(figures), step=step)


@contextmanager
def _open_mlflow(spec: TrainingSpec, run: RunFolder) -> Iterator[Tracker]:
    import mlflow

    key = identify_run(run)
    experiment = mlflow.set_experiment("tuneserve")
    known = mlflow.MlflowClient().search_runs(
        [experiment.experiment_id], f"tags.tuneserve_run = '{key}'"
    )
    run_id = known[0].info.run_id if known else None
    with mlflow.start_run(run_id=run_id, run_name=run.path.name, tags={"tuneserve_run": key}):
        if run_id is None:
            mlflow.log_params(spec.describe())
        yield _Mlflow()


class _Wandb:
    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, figures: Mapping[str, float], step: int) -> None:
        self._run.log(dict(figures), step=step)


@contextmanager
def _open_wandb(spec: TrainingSpec, run: RunFolder) -> Iterator[Tracker]:
    import wandb

    with wandb.init(
        project="tuneserve",
        id=identify_run(run),
        name=run.path.name,
        resume="allow",
        dir=str(run.path),
        config=spec.describe(),
    ) as tracked:
        yield _Wandb(tracked)


OPENERS: dict[str, Callable[[TrainingSpec, RunFolder], AbstractContextManager[Tracker]]] = {
    "mlflow": _open_mlflow,
    "wandb": _open_wandb,
}


def identify_run(run: RunFolder) -> str:
    """Return a key that a run keeps when it resumes, but a later run of the same name lacks."""
    record = run.read_record()
    return hashlib.sha256(f"{record.id}/{record.created_at}".encode()).hexdigest()[:16]
