"""The tables of a run, in its own folder."""

from pathlib import Path

from storage import durable
from training.data.prepare import SUMMARY_FILE, TRAIN_TABLE, VALIDATION_TABLE, PreparedData


def link_data(prepared: PreparedData, run_data: Path) -> None:
    """Add the tables to a run's folder, as hard links if the file system allows it, else as copies.

    So the run keeps its tables when the cache is emptied. Figures of earlier rows are removed.
    """
    run_data.mkdir(parents=True, exist_ok=True)
    for figures in run_data.glob(name_references("*")):
        figures.unlink()
    for table, name in ((prepared.train, TRAIN_TABLE), (prepared.validation, VALIDATION_TABLE)):
        target = (run_data / name).with_suffix(prepared.train.suffix)
        target.unlink(missing_ok=True)
        if table is not None:
            durable.link_or_copy(table, target)
    summary = {key: value for key, value in prepared.summary.items() if key != "cache"}
    durable.write_json(run_data / SUMMARY_FILE, summary)


def name_references(role: str) -> str:
    """Return the name of the file with the figures of the reference for the rows of a role."""
    return f"references-{role}.safetensors"
