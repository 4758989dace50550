"""Validation of training rows: those of uploads, and those of jobs that are being validated.

The queue reads small files itself (`apps.fine_tuning.validation.row_thread`); tasks read larger
ones (`apps.fine_tuning.cluster.tasks`).
"""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

from apps.errors import ApiError, InvalidInputError, invalid_input
from apps.file_store import FileStore
from apps.fine_tuning.default_settings import build_default_spec
from apps.fine_tuning.index.run_lookup import find_run
from serving.errors import ServingError
from serving.store.model_names import LATEST_ALIAS
from serving.store.model_store import ModelStore
from storage import durable
from storage.layout import StorageLayout
from system.byte_progress import OnBytes
from system.library_imports import import_transformers
from training.data.faults import DataError
from training.launch import disable_progress_bars
from training.monitoring.data_report import report_data
from training.run.continuation import MissingStateError, copy_state
from training.run.folder import RunFolder
from training.settings.task_settings import DEFAULT_TASK
from training.spec import SettingError, TrainingSpec

# Imported lazily: these modules take seconds, which would delay the start of the application.
if TYPE_CHECKING:
    from training.data.prepare import PreparedData
    from training.data.readers import KnownFile

logger = logging.getLogger(__name__)

MAX_QUICK_BYTES = 4 << 20
"""Files up to this size take a few seconds to read and tokenise, unless crafted to take long."""
MAX_QUICK_S = 20.0
"""Seconds after which the queue stops reading rows itself and leaves them to a task."""

_REFUSAL_NAME = "refusal.json"
_PROGRESS_NAME = "progress.json"
_PROGRESS_INTERVAL_S = 1.0


class RowCountsObject(TypedDict):
    """A summary of the rows of a file."""

    format: str
    max_length: int
    num_rows: int
    num_tokens: int
    num_learned_tokens: int
    num_truncated_rows: int
    num_dropped_rows: int
    num_split_rows: int
    learned_share: float
    ignored_keys: dict[str, int]
    task: NotRequired[str]
    label_counts: NotRequired[dict[str, int]]


class Refusal(TypedDict):
    """Why a job cannot use its files or settings, as stored in its folder."""

    code: str
    message: str
    param: str | None


class SlowRowsError(Exception):
    """Rows of small files could not be read within `MAX_QUICK_S`."""


class _CheckAbandonedError(Exception):
    """The job ended, or the file was deleted, while the rows were read."""


def are_quick(files: Sequence[Path]) -> bool:
    """Return whether the files have at most `MAX_QUICK_BYTES` together."""
    return sum(file.stat().st_size for file in files) <= MAX_QUICK_BYTES


def prepare_rows(layout: StorageLayout, spec: TrainingSpec) -> "PreparedData":
    """Read the rows of a job whose files are small.

    Raises `SlowRowsError` if reading them takes too long, `InvalidInputError` that names the file
    at fault, and `ApiError` 500 for a file whose bytes differ from those that were uploaded.
    """
    import_transformers()
    from training.data.prepare import prepare_data

    known = find_known_files(layout, spec)
    try:
        with invalid_input("training", only=SettingError):
            return prepare_data(spec, layout.token_cache, _limit_time(), known, None)
    except DataError as exc:
        FileStore(layout).check_unchanged(known)
        param = name_param(exc)
        raise InvalidInputError(str(exc), param=param, code=f"invalid_{param}") from exc


def _limit_time() -> OnBytes:
    """Return a callback that raises `SlowRowsError` after `MAX_QUICK_S`."""
    give_up_at = time.monotonic() + MAX_QUICK_S

    def check_time(*_: int) -> None:
        if time.monotonic() > give_up_at:
            raise SlowRowsError

    return check_time


def find_known_files(layout: StorageLayout, spec: TrainingSpec) -> dict[str, "KnownFile"]:
    """Return the upload records of a job's files, by path."""
    files = [spec.train_file, spec.validation_file, *(entry.file for entry in spec.train_files)]
    return FileStore(layout).find_known(file for file in files if file is not None)


def name_param(exc: DataError) -> str:
    """Return the field of a request that names the rows an error is about."""
    return "validation_file" if exc.role == "validation" else "training_file"


def check_job(layout: StorageLayout, run_id: str) -> None:
    """Read the rows of a job, and store them, or the reason to refuse them, in its folder.

    The rows of an extension are copied from the job that it extends, with its checkpoints.
    Only faults of the rows or the settings are reasons to refuse. Other exceptions, such as
    `OSError` on a full disk, are raised, and the check is repeated.
    """
    run = find_run(layout, run_id)
    if (source_id := run.read_record().extended_from) is not None:
        _copy_extended(layout, run, source_id)
        return
    import_transformers()
    from training.data.prepare import prepare_data
    from training.data.run_tables import link_data

    spec = run.read_spec()
    disable_progress_bars()
    reported_at = 0.0

    def report_progress(num_done: int, num_all: int) -> None:
        nonlocal reported_at
        if run.read_record().is_final:
            raise _CheckAbandonedError
        if time.monotonic() - reported_at > _PROGRESS_INTERVAL_S:
            reported_at = time.monotonic()
            durable.write_json(run.path / _PROGRESS_NAME, {"done": num_done, "all": num_all})

    known = find_known_files(layout, spec)
    try:
        # `apps.fine_tuning.retention` bounds the cache, by the operator's setting.
        prepared = prepare_data(spec, layout.token_cache, report_progress, known, None)
    except _CheckAbandonedError:
        logger.info("job %s has ended before its files were checked", run_id)
    except (DataError, SettingError) as exc:
        FileStore(layout).check_unchanged(known)
        logger.warning("the files of job %s cannot be used: %s", run_id, exc)
        message = str(exc).replace(str(layout.root), "<storage>")
        param = name_param(exc) if isinstance(exc, DataError) else None
        _refuse(run, message, f"invalid_{param}" if param else "invalid_settings", param)
    else:
        report_data(run, prepared.summary)
        link_data(prepared, run.data)
    finally:
        (run.path / _PROGRESS_NAME).unlink(missing_ok=True)


def _copy_extended(layout: StorageLayout, run: RunFolder, source_id: str) -> None:
    """Copy the state of a job into the folder of the one that extends it."""

    def check() -> None:
        if run.read_record().is_final:
            raise _CheckAbandonedError

    gone = "checkpoints_gone"
    try:
        source = find_run(layout, source_id)
        step = copy_state(source, run, check)
    except _CheckAbandonedError:
        logger.info("job %s has ended before its checkpoints were copied", run.path.name)
    except MissingStateError as exc:  # removed by hand, or by a restored backup
        _refuse(run, f"it extends job {source_id!r}: {exc}", gone)
    except ApiError as exc:
        if exc.status != 404:  # perhaps readable later
            raise
        _refuse(run, f"job {source_id!r}, which it extends, was deleted; create a new job", gone)
    else:
        run.events.add_once(f"It continues after step {step} of job {source_id}")


def _refuse(run: RunFolder, message: str, code: str, param: str | None = None) -> None:
    """Store why a job cannot use its files or settings."""
    refusal: Refusal = {"code": code, "message": message, "param": param}
    durable.write_json(run.path / _REFUSAL_NAME, refusal)


def read_refusal(run: RunFolder) -> Refusal | None:
    """Return why the check of a job's files refused them; None if it did not."""
    try:
        refusal: Refusal = durable.read_json(run.path / _REFUSAL_NAME)
    except FileNotFoundError:
        return None
    return refusal


def read_share(run: RunFolder) -> float | None:
    """Return the share of a job's files that its check has read, from 0 to 1; None if unknown."""
    try:
        progress = durable.read_json(run.path / _PROGRESS_NAME)
    except FileNotFoundError:
        return None
    return float(progress["done"] / max(1, progress["all"]))


def check_file(layout: StorageLayout, file_id: str, *, is_quick: bool = False) -> None:
    """Read an upload as a fine-tuning job for `latest` would, and store the result with the file.

    Rows with a text and a label are read as a job with the task 'sequence_classification' would,
    preferences as one with 'preference', and an archive of images as one with
    'image_classification'. Results are about the rows or the model. Other exceptions, such as
    `OSError` on a full disk, are raised, and the check is repeated. With `is_quick`, raises
    `SlowRowsError` if reading takes too long.
    """
    import_transformers()
    from apps.fine_tuning.validation.row_task import find_error_code, list_row_tasks
    from training.data.files.zip_files import is_zip

    files, models = FileStore(layout), ModelStore(layout)
    path = files.find_content(file_id)

    check_time = _limit_time() if is_quick else None

    def stop_early(num_done: int, num_all: int) -> None:
        if not path.exists():
            raise _CheckAbandonedError
        if check_time is not None:
            check_time(num_done, num_all)

    try:
        model = models.resolve(LATEST_ALIAS)
        model = models.get_base(model) if model.is_adapter else model
        with model.lock_shared():
            spec = build_default_spec(models, model, str(path))
            known = find_known_files(layout, spec)
            if is_zip(path):
                found = _count_images(path, stop_early, known.get(str(path)))
            else:
                found = _count_first(list_row_tasks(spec, known), layout, stop_early, known)
    except _CheckAbandonedError:
        logger.info("file %s was deleted before it was checked", file_id)
    except (DataError, SettingError, ServingError) as exc:
        message = str(exc).replace(str(layout.root), "<storage>")
        code = find_error_code(spec, known) if isinstance(exc, DataError) else None
        try:
            files.check_unchanged(files.find_known([str(path)]))
        except ApiError as damage:
            message, code = damage.message, "invalid_rows"
        files.record_check(file_id, "error", message, None, code)
    else:
        files.record_check(file_id, "processed", None, {"model": model.id, **found})


def _count_first(
    specs: Sequence[TrainingSpec],
    layout: StorageLayout,
    on_bytes: OnBytes,
    known: Mapping[str, "KnownFile"],
) -> RowCountsObject:
    """Count rows by the first spec that accepts them; raise the error of the first one if none."""
    from training.data.prepare import prepare_data

    first: DataError | None = None
    for spec in specs:
        try:
            prepared = prepare_data(spec, layout.token_cache, on_bytes, known, None)
            return count_rows(prepared, spec.task)
        except DataError as exc:
            first = first or exc
    assert first is not None, "there is at least one spec"
    raise first


def _count_images(path: Path, on_bytes: OnBytes, known: "KnownFile | None") -> RowCountsObject:
    """Check an archive of images; it has no tokens, and no model is needed."""
    from training.data.images.image_check import check_images

    found = check_images(path, known, on_bytes)
    return {
        "format": found.format,
        "max_length": 1,
        "num_rows": found.num_rows,
        "num_tokens": 0,
        "num_learned_tokens": 0,
        "num_truncated_rows": 0,
        "num_dropped_rows": 0,
        "num_split_rows": 0,
        "learned_share": 0.0,
        "ignored_keys": found.ignored_keys,
        "task": "image_classification",
        "label_counts": found.label_counts,
    }


def count_rows(prepared: "PreparedData", task: str) -> RowCountsObject:
    """Summarise rows: their number, their tokens, and the share of tokens that are learned.

    They have the name of the `task`, unless it is the default.
    """
    summary = prepared.summary
    is_labelled = "label_counts" in summary
    num_learned_tokens = 0 if is_labelled else summary["num_learned_tokens"]
    share = num_learned_tokens / max(1, summary["num_tokens"])
    counts: RowCountsObject = {
        "format": summary["format"],
        "max_length": summary["max_length"],
        "num_rows": summary["num_rows"],
        "num_tokens": summary["num_tokens"],
        "num_learned_tokens": num_learned_tokens,
        "num_truncated_rows": summary["num_truncated_rows"],
        "num_dropped_rows": summary["num_dropped_rows"],
        "num_split_rows": summary["num_split_rows"],
        "learned_share": round(share, 4),
        "ignored_keys": summary["ignored_keys"],
    }
    if task != DEFAULT_TASK:
        counts["task"] = task
    if is_labelled:
        counts["label_counts"] = summary["label_counts"]
    return counts
