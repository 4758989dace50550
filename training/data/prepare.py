"""The rows of a fine-tune, from wherever they are to token tables on disk, or found in the cache.

Rows stream through, so memory does not grow with them. Every row is looked at before anything is
published.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from storage import durable
from training.base_model import choose_max_length, load_tokenizer
from training.byte_progress import OnBytes
from training.data.faults import DataError
from training.data.formats import KNOWN_KEYS
from training.data.readers import HubRows, RowFile, RowSource
from training.data.row_stream import RowStream
from training.data.token_cache import build_entry, prune_cache, use_entry
from training.data.token_table import TokenTable, TokenWriter, split_table
from training.spec import DataFormat, HubDataset, TrainingSpec

TRAIN_TABLE, VALIDATION_TABLE, SUMMARY_FILE = "train.arrow", "validation.arrow", "summary.json"
# Part of every cache key: count it up when the same rows are to become other tokens.
_ENCODING_VERSION = 1
_PROGRESS_INTERVAL_S = 0.25


@dataclass(frozen=True)
class PreparedData:
    """The token tables of a spec: a complete folder, and what a user wants to know about them.

    The folder holds `train.arrow`, `validation.arrow` where there are rows to evaluate on, and
    `summary.json`. The summary says besides whether the folder was found: `cache`, 'hit' or 'miss'.
    """

    folder: Path
    summary: Mapping[str, Any]


def prepare_data(
    spec: TrainingSpec, cache: Path, on_progress: OnBytes | None = None
) -> PreparedData:
    """Check and tokenise the rows of a spec, or find what an earlier run made of the same.

    Raises `DataError` for rows that cannot be used, `UnknownModelError`, or `ValueError` for a
    length that the model has no positions for.
    """
    max_length = choose_max_length(spec)
    tokenizer = load_tokenizer(spec.base_model)
    train, validation = open_train_source(spec), _open_validation_source(spec)
    key, fingerprint = _compute_key(spec, tokenizer, max_length, train, validation)
    is_hit = use_entry(cache, key)
    if not is_hit:
        with build_entry(cache, key) as building:
            build = _Build(spec, tokenizer, max_length, building, on_progress)
            counts = build.write_tables(train, validation)
            durable.write_json(building / SUMMARY_FILE, {**counts, "fingerprint": fingerprint})
        prune_cache(cache, key)
    stored = durable.read_json(cache / key / SUMMARY_FILE)
    # Of a data set on the hub there is only its own fingerprint.
    sha256 = fingerprint if spec.train_dataset is None else None
    summary = {**stored, "name": train.name, "sha256": sha256, "cache": "hit" if is_hit else "miss"}
    return PreparedData(cache / key, summary)


def link_data(prepared: PreparedData, run_data: Path) -> None:
    """Put the tables into a run's folder, by hard link where the file system allows it.

    So the run stays whole when the cache is emptied.
    """
    run_data.mkdir(parents=True, exist_ok=True)
    for name in (TRAIN_TABLE, VALIDATION_TABLE):
        (run_data / name).unlink(missing_ok=True)
        if name == TRAIN_TABLE or prepared.summary["validation"]:
            _link_file(prepared.folder / name, run_data / name)
    summary = {key: value for key, value in prepared.summary.items() if key != "cache"}
    durable.write_json(run_data / SUMMARY_FILE, summary)


def _link_file(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
        durable.fsync_file(target)


def open_train_source(spec: TrainingSpec) -> RowSource:
    """The rows that a spec learns from; nothing is read yet."""
    return _open_source(spec.train_file, spec.train_dataset, spec)


def _open_validation_source(spec: TrainingSpec) -> RowSource | None:
    if spec.validation_file is None and spec.validation_dataset is None:
        return None
    return _open_source(spec.validation_file, spec.validation_dataset, spec)


def _open_source(file: str | None, dataset: HubDataset | None, spec: TrainingSpec) -> RowSource:
    if dataset is not None:
        return HubRows(dataset)
    assert file is not None  # the spec has one of the two
    return RowFile(Path(file), (*KNOWN_KEYS, *spec.columns.values()))


def _compute_key(
    spec: TrainingSpec,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    train: RowSource,
    validation: RowSource | None,
) -> tuple[str, str]:
    """Hash all that decides about the tables; returns the key, and the training rows' own hash."""
    fingerprint = train.compute_fingerprint()
    split = [spec.validation_fraction, spec.seed] if spec.validation_fraction else None
    parts = {
        "encoding": _ENCODING_VERSION,
        "packages": {name: version(name) for name in ("transformers", "tokenizers")},
        "train": fingerprint,
        "validation": validation.compute_fingerprint() if validation else None,
        "split": split,
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "special_tokens": tokenizer.special_tokens_map,
        "chat_template": tokenizer.chat_template,
        "format": spec.format,
        "columns": spec.columns,
        # What tells a CSV file from a TSV one.
        "suffixes": [Path(file or "").suffix for file in (spec.train_file, spec.validation_file)],
        "max_length": max_length,
        "overlong": spec.overlong,
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest(), fingerprint


class _Build:
    """One pass over all rows of a spec into the tables of `folder`."""

    def __init__(
        self,
        spec: TrainingSpec,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        folder: Path,
        on_progress: OnBytes | None,
    ) -> None:
        self._spec = spec
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._folder = folder
        self._on_progress = on_progress
        self._done_bytes = self._total_bytes = 0
        self._told_at = 0.0

    def write_tables(self, train: RowSource, validation: RowSource | None) -> dict[str, Any]:
        """Write the tables; returns what is to know about them."""
        self._total_bytes = train.measure() + (validation.measure() if validation else 0)
        table = self._folder / TRAIN_TABLE
        stream = self._write(train, table)
        held_out = None
        if validation is not None:
            held_out_stream = self._write(
                validation, self._folder / VALIDATION_TABLE, stream.format
            )
            held_out = _count(self._folder / VALIDATION_TABLE, held_out_stream)
        elif self._spec.validation_fraction:
            self._hold_out(train.name)
            held_out = _count(self._folder / VALIDATION_TABLE)
        return {
            "format": stream.format,
            "max_length": self._max_length,
            **_count(table, stream),
            "validation": held_out,
        }

    def _write(
        self, source: RowSource, path: Path, fallback: DataFormat | None = None
    ) -> RowStream:
        stream = RowStream(source, self._spec, self._tokenizer, self._max_length, fallback)
        with TokenWriter(path) as writer:
            for row in stream.encode():
                writer.write(row)
                self._tell_progress(source.position)
        self._done_bytes += source.measure()
        self._told_at = 0.0
        self._tell_progress(0)
        return stream

    def _hold_out(self, name: str) -> None:
        """Move a share of the rows into the validation table.

        Which ones, a permutation seeded with the spec's seed says; at least one row is on each
        side, and both keep their order.
        """
        whole = self._folder / "whole.arrow"
        (self._folder / TRAIN_TABLE).rename(whole)
        num_rows = len(TokenTable(whole))
        if num_rows < 2:
            raise DataError(
                f"{name}: {num_rows} row is too few to hold out a validation_fraction of "
                f"{self._spec.validation_fraction:g}; expected at least 2, or a validation_file"
            )
        num_held_out = max(1, round(num_rows * self._spec.validation_fraction))
        order = np.random.default_rng(self._spec.seed).permutation(num_rows)
        held_out = np.zeros(num_rows, dtype=np.bool_)
        held_out[order[:num_held_out]] = True
        split_table(whole, held_out, self._folder / VALIDATION_TABLE, self._folder / TRAIN_TABLE)
        whole.unlink()

    def _tell_progress(self, position: int) -> None:
        now = time.monotonic()
        if self._on_progress is not None and now - self._told_at >= _PROGRESS_INTERVAL_S:
            self._told_at = now
            self._on_progress(self._done_bytes + position, self._total_bytes)


def _count(path: Path, stream: RowStream | None = None) -> dict[str, Any]:
    """Count what is in a table, and what its stream left out."""
    table = TokenTable(path)
    return {
        "num_rows": len(table),
        "num_tokens": int(table.lengths.sum(dtype=np.int64)),
        "num_learned_tokens": int(table.num_learned.sum(dtype=np.int64)),
        "num_truncated_rows": table.count_truncated(),
        "num_dropped_rows": stream.num_dropped if stream else 0,
        "dropped_lines": stream.dropped_lines if stream else [],
    }
