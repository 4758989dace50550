"""The end of a run, successful or not."""

import csv
import io
import logging

from apps.file_store import FileStore
from apps.fine_tuning.index.run_lookup import name_model
from serving.errors import ServingError
from serving.store.model_names import LATEST_ALIAS
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from training import launch
from training.run import run_state
from training.run.continuation import discard_copy
from training.run.folder import RunFolder
from training.run.run_record import RunError

logger = logging.getLogger(__name__)

# Metrics and their columns: OpenAI's names where its result files have the metric, else ours.
_COLUMNS = {
    "step": "step",
    "loss": "train_loss",
    "eval_loss": "valid_loss",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "epoch": "epoch",
    "trained_tokens": "trained_tokens",
    "tokens_per_s": "tokens_per_s",
    "elapsed_s": "elapsed_s",
}


def finish_published(layout: StorageLayout, run: RunFolder) -> None:
    """Mark a run whose model is published as succeeded, and point the alias of its kind to it.

    Can be repeated after an interruption.
    """
    record = run.read_record()
    model_id = name_model(record)
    suffix = record.request.get("suffix")
    moved = _move_alias(ModelStore(layout), model_id, suffix if isinstance(suffix, str) else None)
    run.events.add_once(f"Published as {model_id}{moved}")
    run.update_record(result_file=write_results(layout, run))
    launch.succeed_run(run, model_id)


def finish_unpublished(layout: StorageLayout, run: RunFolder) -> None:
    """Mark a run as succeeded that has left no model, as a loop of the operator's may."""
    run.update_record(result_file=write_results(layout, run))
    launch.succeed_run(run)


def _move_alias(store: ModelStore, model_id: str, suffix: str | None) -> str:
    """Point an alias to a new model, and return what an event says of it; empty if none may move.

    A language model moves `latest`. Clients of `latest` expect text, so a classifier moves only the
    alias with the name of its job's suffix, and only if no other kind of model has that alias.
    """
    model = store.get(model_id)
    if model.served_task.answers == "text":
        store.point_alias(LATEST_ALIAS, model_id)
        return f", and {LATEST_ALIAS!r} points to it"
    if suffix is None or suffix == LATEST_ALIAS:
        return ""
    try:
        current = store.read_aliases().get(suffix)
        if current is not None and (task := store.get(current.model_id).task) != model.task:
            return f"; the alias {suffix!r} stays with a model of the task {task!r}"
        store.point_alias(suffix, model_id)
    except ServingError as exc:  # the model can still be used by its id
        logger.warning("the alias %r does not move to %s: %s", suffix, model_id, exc)
        return f"; no alias points to it: {exc}"
    return f", and {suffix!r} points to it"


def end_run(
    layout: StorageLayout, run: RunFolder, message: str, error: RunError | None = None
) -> None:
    """End a run as failed with `error`, or as cancelled if it is None.

    The event is written before the record, since an event stream ends once the record is final. An
    extension that has not copied all checkpoints keeps none of them.
    """
    result_file = write_results(layout, run)
    run.events.add_once(message, level="error" if error else "info")
    record = run_state.end_in_queue(run, error, result_file)
    if record.extended_from is not None and not run.has_data:
        discard_copy(run)


def write_results(layout: StorageLayout, run: RunFolder) -> str | None:
    """Store the metrics of a run's steps as a CSV file; return its id, None without metrics.

    Repeating the call after an interruption writes the same file. Returns None too if the disk has
    no room for the file, which does not prevent the run from ending.
    """
    metrics = run.metrics.read()
    if not metrics:
        return None
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS.values())
    writer.writerows([line.get(name, "") for name in _COLUMNS] for line in metrics)
    file_id = f"file-{run.path.name}"
    try:
        FileStore(layout).add(
            file_id, text.getvalue().encode(), "step_metrics.csv", "fine-tune-results"
        )
    except OSError:
        logger.exception("the results of run %s cannot be written", run.path.name)
        return None
    return file_id
