"""Chains of fine-tuned models, with only the files that the model store and its lists read."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage import durable
from storage.layout import StorageLayout
from training.export.lineage import write_lineage
from training.run.folder import RunFolder
from training.run.run_record import RunRecord
from training.spec import TrainingSpec

LINEAGE_NAME = "lineage.json"
SUMMARY = {
    "name": "rows.jsonl",
    "num_rows": 1,
    "num_tokens": 2,
    "num_learned_tokens": 1,
    "sha256": "ab" * 32,
    "fingerprint": "cd" * 32,
}
METRICS = {"step": 7, "epoch": 1, "loss": 1.0}
AN_HOUR_S = 3600

_COUNTS: dict[str, list[Path]] = {}
_HOOKED: list[bool] = []


def write_chain(layout: StorageLayout, first: str, num_models: int) -> list[str]:
    """Write a chain of `num_models` fine-tuned models; return their ids from oldest to newest.

    Each is based on the previous one, the first on the model `first`. The folders contain a lineage
    and a manifest, but no weights.
    """
    run = RunFolder(layout.root.parent / "run")
    run.data.mkdir(parents=True)
    durable.write_json(run.data / "summary.json", SUMMARY)
    run.create(TrainingSpec(base_model=first, train_file="-"), RunRecord(id="run", created_at=1))
    spec = run.read_spec()
    names = []
    with _fast_writing():
        base = layout.model(first)
        for number in range(num_models):
            names.append(f"tuned-{number:05d}")
            alias = layout.root.parent / f"run-{number:05d}"
            alias.symlink_to(run.path)
            model = layout.model(names[-1])
            model.mkdir()
            write_lineage(
                model, RunFolder(alias), spec.model_copy(update={"base_model": str(base)}), METRICS
            )
            write_manifest(model)
            base = model
    return names


def write_nested_lineage(model: Path, depth: int, root: str) -> None:
    """Write the lineage format of release 0.1 after `depth` fine-tunes: each nests its parent's."""
    model.mkdir(exist_ok=True)
    head, tail = "", ""
    for level in range(depth):
        base = root if level == depth - 1 else f"nested-{depth - level - 1:05d}"
        indent = "  " * (level + 1)
        keys = f'"run_id": "run-{depth - level:05d}", "base_model": "{base}", "checkpoint_step": 7'
        end = "}" if level == 0 else "},"
        data = f'"data": {{"name": "rows.jsonl", "fingerprint": "{"cd" * 32}"}}'
        head += f'{{\n{indent}{keys},\n{indent}"parent": '
        tail = f"\n{indent}{data}\n{'  ' * level}{end}{tail}"
    (model / LINEAGE_NAME).write_text(f"{head}null,{tail}\n")
    write_manifest(model)


def write_manifest(model: Path) -> None:
    """Add a manifest to a model folder and set the modification times of its files to 1 h ago."""
    (model / durable.MANIFEST_NAME).write_text('{"files": {}}')
    for path in model.iterdir():
        found = path.stat()
        os.utime(path, (found.st_atime, found.st_mtime - AN_HOUR_S))


@contextmanager
def count_opened(name: str) -> Iterator[list[Path]]:
    """Yield a list of the files called `name` that this process opens while the body runs."""
    if not _HOOKED:
        _HOOKED.append(True)
        sys.addaudithook(_note_opened)  # an audit hook cannot be removed
    opened: list[Path] = []
    _COUNTS[name] = opened
    try:
        yield opened
    finally:
        del _COUNTS[name]


def _note_opened(event: str, arguments: tuple[object, ...]) -> None:
    if _COUNTS and event == "open" and isinstance(arguments[0], str | Path):
        path = Path(arguments[0])
        if (opened := _COUNTS.get(path.name)) is not None:
            opened.append(path)


@contextmanager
def _fast_writing() -> Iterator[None]:
    """Disable fsync."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
