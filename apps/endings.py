"""How a run ends: its model is published, and its figures become a file of results."""

import csv
import io

from apps.files import FileStore
from apps.runs import name_model
from serving.model_store import LATEST_ALIAS, ModelStore
from storage.layout import StorageLayout
from training import launch
from training.runs import RunFolder

# Our figures by the names that OpenAI's result files have for them; the rest keep their own.
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
    """Say that a run's model is published: move `latest` to it, and end the run well."""
    model_id = name_model(run.read_record())
    ModelStore(layout).point_alias(LATEST_ALIAS, model_id)
    run.add_event(f"Published as {model_id}, and {LATEST_ALIAS!r} points to it")
    run.update_record(result_file=write_results(layout, run))
    launch.succeed_run(run, model_id)


def write_results(layout: StorageLayout, run: RunFolder) -> str | None:
    """Write the figures of a run's steps as CSV among the files; returns its id, None without any.

    Whoever is cut short and begins again writes the same file.
    """
    metrics = run.read_metrics()
    if not metrics:
        return None
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS.values())
    writer.writerows([line.get(name, "") for name in _COLUMNS] for line in metrics)
    file_id = f"file-{run.path.name}"
    FileStore(layout).add(
        file_id, text.getvalue().encode(), "step_metrics.csv", "fine-tune-results"
    )
    return file_id
