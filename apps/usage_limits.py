"""Limits on what clients store and request, and the refusals of requests beyond them."""

from threading import Lock

from apps.errors import ApiError
from apps.file_index import StoredBytes
from apps.fine_tuning.index.run_index import RunIndex
from apps.settings import UsageLimits
from training.spec import TrainingSpec


def check_job_counts(runs: RunIndex, limits: UsageLimits, *, is_new: bool = True) -> None:
    """Raise `ApiError` if no further job, or no further unfinished one, is allowed.

    409: delete jobs that have ended. 429: wait until a job has ended.
    """
    num_jobs, num_unfinished = runs.count()
    if num_unfinished >= limits.max_unfinished_jobs:
        raise ApiError(
            429,
            f"{num_unfinished} jobs are queued, paused or running, and max_unfinished_jobs is "
            f"{limits.max_unfinished_jobs}; wait until one has ended, or cancel one",
            code="too_many_unfinished_jobs",
        )
    if is_new and num_jobs >= limits.max_jobs:
        raise ApiError(
            409,
            f"{num_jobs} jobs are on record, and max_jobs is {limits.max_jobs}; delete jobs that "
            "have ended",
            code="too_many_jobs",
        )


def check_job_size(spec: TrainingSpec, limits: UsageLimits) -> None:
    """Raise `ApiError` 400 for a job that requests more than one job may have."""
    for name, limit in (
        ("num_workers", limits.max_workers_per_job),
        ("threads_per_worker", limits.max_threads_per_worker),
        ("keep_checkpoints", limits.max_kept_checkpoints),
    ):
        asked: int = getattr(spec, name)
        if asked > limit:
            raise ApiError(
                400,
                f"{name} is {asked}; this server accepts at most {limit}",
                param=f"training.{name}",
                code="limit_exceeded",
            )


def check_model_space(stored_bytes: int, limits: UsageLimits, new_bytes: int) -> None:
    """Raise `ApiError` 507 if there is no room for a model of `new_bytes`.

    `stored_bytes` is the size of all models and checkpoints.
    """
    if stored_bytes + new_bytes > limits.max_model_store_bytes:
        raise ApiError(
            507,
            f"models and checkpoints have {stored_bytes:,} bytes, and {new_bytes:,} more would "
            f"exceed max_model_store_bytes, {limits.max_model_store_bytes:,}; delete models, or "
            "jobs with their checkpoints, that are no longer needed",
            code="model_store_full",
        )


class IncomingBytes:
    """Counts the bytes of all unfinished uploads of this process."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._num_bytes = 0

    def add(self, num_bytes: int) -> int:
        """Add a number of bytes, which may be negative; return the new total."""
        with self._guard:
            self._num_bytes += num_bytes
            return self._num_bytes


def check_stored_files(stored: StoredBytes, limits: UsageLimits, new_bytes: int = 0) -> None:
    """Raise `ApiError` if there is no room for one more file of `new_bytes`.

    409: too many files. 507: too many bytes.
    """
    if stored.num_files >= limits.max_files:
        raise ApiError(
            409,
            f"{stored.num_files} files are stored, and max_files is {limits.max_files}; delete "
            "files that are no longer needed",
            code="too_many_files",
        )
    if stored.size_bytes + new_bytes > limits.max_stored_bytes:
        raise ApiError(
            507,
            f"the stored files have {stored.size_bytes:,} bytes, and {new_bytes:,} more would "
            f"exceed max_stored_bytes, {limits.max_stored_bytes:,}; delete files that are no "
            "longer needed",
            code="storage_full",
        )
