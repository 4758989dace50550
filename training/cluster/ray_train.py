"""Training of a prepared run under Ray Train, and the errors of that."""

from collections.abc import Mapping
from concurrent.futures import Future
from threading import Thread
from typing import Any

from training.run.folder import RunFolder
from training.spec import TrainingSpec

# Ray Train runs the loop in a thread, where glibc returns the memory of activations to the system
# after each use, and the system zeroes it again at the next: 110,000 page faults per step for a
# model of 21 million parameters, 6 % of its time. A single arena that keeps up to 1 GiB causes a
# tenth of these page faults.
_KEPT_BYTES = str(1 << 30)
CPU_WORKER_ENV = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": _KEPT_BYTES,
    "MALLOC_TRIM_THRESHOLD_": _KEPT_BYTES,
}


_NO_CODE = "TrainingFailedError"


class TrainingFailedError(RuntimeError):
    """The workers failed; the message describes the original failure, the code names its type."""

    def __init__(self, message: str, code: str = _NO_CODE) -> None:
        super().__init__(message)
        self.code = code


class ClusterLostError(RuntimeError):
    """The Ray cluster, or the Ray Train controller of a run, has ended or does not answer.

    The run is not at fault, and resumes.
    """


def train(run: RunFolder, spec: TrainingSpec, *, use_gpu: bool) -> str:
    """Train a prepared run under Ray Train; returns how it ended, an `Ending` of `training.loop`.

    Raises `TrainingFailedError`, or `ClusterLostError` if Ray Train itself was killed.
    """
    import ray.exceptions
    import ray.train

    from training.cluster.failure_messages import summarise_exception
    from training.cluster.retry import ReportFailures
    from training.cluster.trainer import LeanTorchTrainer
    from training.loop import run_worker
    from training.own_loop.datasets import open_datasets

    # Ray's annotations are outdated for a range of workers, for settings of Train V2, and for the
    # return value of the workers.
    num_workers: Any = spec.num_workers
    if spec.min_workers is not None:
        num_workers = (spec.min_workers, spec.num_workers)
    worker: Any = run_worker
    run_config: Any = ray.train.RunConfig
    streams: dict[str, Any] = {}
    if spec.data_engine == "ray":
        from training.data.ray_data.datasets import make_data_config, make_datasets

        streams = {"datasets": make_datasets(run, spec), "dataset_config": make_data_config(spec)}
    trainer = LeanTorchTrainer(
        worker,
        train_loop_config={"spec": spec.model_dump(mode="json"), "run": str(run.path)},
        scaling_config=ray.train.ScalingConfig(
            num_workers=num_workers,
            use_gpu=use_gpu,
            resources_per_worker={"CPU": spec.cpus_per_worker, **({"GPU": 1} if use_gpu else {})},
        ),
        run_config=run_config(
            name=run.ray.name,
            storage_path=str(run.ray.parent),
            failure_config=ray.train.FailureConfig(max_failures=spec.max_failures),
            callbacks=[ReportFailures(str(run.path))],
            worker_runtime_env={} if use_gpu else {"env_vars": CPU_WORKER_ENV},
        ),
        **(streams or open_datasets(run, spec)),
    )
    run.events.add("Starting the workers", data={"num_workers": spec.num_workers})
    try:
        result = fit_with_restarts(trainer, run, spec.max_failures)
    except ray.train.TrainingFailedError as exc:
        raise TrainingFailedError(*_describe_failure(exc)) from exc
    except ray.exceptions.RayActorError as exc:  # a worker's death raises the error above
        raise ClusterLostError(
            f"Ray Train's controller was lost: {summarise_exception(exc)}"
        ) from exc
    outcome: dict[str, str] = result.return_value
    if "error" in outcome:
        raise TrainingFailedError(outcome["error"], outcome["code"])
    return outcome["ending"]


def fit_with_restarts(trainer: Any, run: RunFolder, max_failures: int) -> Any:
    """Call `trainer.fit()`, and again if a worker ended while it received the training function.

    Ray Train replaces a worker that ends before or after that, but gives up if one ends during it.
    Raises what `fit` raises.
    """
    import ray.exceptions
    import ray.train

    from training.cluster.failure_messages import summarise_exception

    for _ in range(max_failures):
        try:
            return _fit(trainer)
        except ray.train.ControllerError as exc:
            if not isinstance(exc.controller_failure, ray.exceptions.RayActorError):
                raise
            reason = summarise_exception(exc.controller_failure)
            run.events.add(f"A worker was lost as it started: {reason}", level="warn")
    return _fit(trainer)


def _fit(trainer: Any) -> Any:
    """Call `trainer.fit()` on a separate thread: on the main thread it would handle Ctrl-C."""
    outcome: Future[Any] = Future()

    def fit() -> None:
        try:
            outcome.set_result(trainer.fit())
        except BaseException as exc:  # noqa: BLE001 - passed to the waiting thread
            outcome.set_exception(exc)

    Thread(target=fit, name="ray-train", daemon=True).start()
    return outcome.result()


def _describe_failure(exc: Any) -> tuple[str, str]:
    """Return why Ray Train gave up: a message, and a code, the type of a worker's exception."""
    from training.cluster.failure_messages import choose_failure, summarise_exception
    from training.cluster.unwrapping import unwrap_user_exception

    failures: Mapping[int, Any] | None = getattr(exc, "worker_failures", None)
    if not failures:
        return summarise_exception(getattr(exc, "controller_failure", exc)), _NO_CODE
    rank, failure = choose_failure(failures)
    cause = unwrap_user_exception(failure)
    code = _NO_CODE if cause is failure else type(cause).__name__
    return f"worker {rank} failed: {summarise_exception(failure)}", code
