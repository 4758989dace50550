"""Where the figures of a run go besides `metrics.jsonl`: TensorBoard, and others if asked for."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from training.spec import TrainingSpec

_NOT_CURVES = frozenset({"step", "num_steps"})
_PLACES = {"base_model", "train_file", "validation_file", "deepspeed"}  # paths of this machine


class Tracker(Protocol):
    """Takes the figures of one step."""

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Record figures under their names."""


class TrackerError(ValueError):
    """A tracker was asked for that is not installed."""


@contextmanager
def open_trackers(
    spec: TrainingSpec, run: Path, first_step: int, *, speaks: bool
) -> Iterator[list[Tracker]]:
    """Open TensorBoard's event file in `run/tensorboard`, and the trackers of the spec.

    What an interrupted run recorded after `first_step` is hidden by what comes now. A worker that
    does not speak for the run gets none.
    """
    if not speaks:
        yield []
        return
    with ExitStack() as stack:
        trackers: list[Tracker] = [
            stack.enter_context(_open_tensorboard(run / "tensorboard", first_step))
        ]
        for name in spec.trackers:
            open_one = _open_mlflow if name == "mlflow" else _open_wandb
            trackers.append(stack.enter_context(open_one(spec, run)))
        yield trackers


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
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            if name not in _NOT_CURVES:
                self._writer.add_scalar(name, value, step)


@contextmanager
def _open_tensorboard(folder: Path, first_step: int) -> Iterator[Tracker]:
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(folder), purge_step=first_step + 1) as writer:
        yield _TensorBoard(writer)


class _Mlflow:
    def log(self, figures: Mapping[str, float], step: int) -> None:
        import mlflow

        mlflow.log_metrics(dict(figures), step=step)


@contextmanager
def _open_mlflow(spec: TrainingSpec, run: Path) -> Iterator[Tracker]:
    import mlflow

    experiment = mlflow.set_experiment("tuneserve")
    known = mlflow.MlflowClient().search_runs(
        [experiment.experiment_id], f"tags.tuneserve_run = '{run.name}'"
    )
    run_id = known[0].info.run_id if known else None
    with mlflow.start_run(run_id=run_id, run_name=run.name, tags={"tuneserve_run": run.name}):
        if run_id is None:
            mlflow.log_params(spec.model_dump(mode="json", exclude=_PLACES))
        yield _Mlflow()


class _Wandb:
    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, figures: Mapping[str, float], step: int) -> None:
        self._run.log(dict(figures), step=step)


@contextmanager
def _open_wandb(spec: TrainingSpec, run: Path) -> Iterator[Tracker]:
    import wandb

    with wandb.init(
        project="tuneserve",
        id=run.name,
        name=run.name,
        resume="allow",
        dir=str(run),
        config=spec.model_dump(mode="json", exclude=_PLACES),
    ) as tracked:
        yield _Wandb(tracked)
