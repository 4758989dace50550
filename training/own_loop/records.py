"""The rows of a spec for a loop: as they are, in Parquet files that Ray Data reads.

The rows are read twice: first to find columns that fit all rows, then to write them. So memory does
not grow with their number.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage import durable
from system.byte_progress import ByteMeter, OnBytes
from training.data.faults import DataError, RowFault, RowFaultLog, show_value
from training.data.images.encoded_image import read_image_file
from training.data.images.image_folder import IMAGE_COLUMN, ImageFolder
from training.data.images.image_rows import IMAGE_COLUMNS
from training.data.images.image_zip import ImageZip
from training.data.mixing import hold_out_rows
from training.data.prepare import SUMMARY_FILE, PreparedData, hash_parts, set_role
from training.data.readers import KnownFile, RowFile, RowSource
from training.data.sources import (
    WeightedSource,
    name_sources,
    open_train_sources,
    open_validation_sources,
)
from training.data.token_cache import MAX_CACHE_BYTES, build_entry, prune_cache, use_entry
from training.spec import TrainingSpec

TRAIN_ROWS, VALIDATION_ROWS = "train.parquet", "validation.parquet"
# Part of every cache key: increment it when the same rows must become other files.
_VERSION = 2
# Both limit a batch; a row with more bytes than the second is a batch of one row.
_BATCH_ROWS = 256
_BATCH_BYTES = 4 << 20
_GROUP_BYTES = 16 << 20


def prepare_records(
    spec: TrainingSpec,
    cache: Path,
    on_progress: OnBytes | None = None,
    known: Mapping[str, KnownFile] | None = None,
    max_cache_bytes: int | None = MAX_CACHE_BYTES,
) -> PreparedData:
    """Copy the rows of a spec into Parquet files, or find those of an earlier run with the same.

    The arguments are those of `prepare_data`. The file of a loop that reads its own rows is empty.
    Raises `DataError` for rows that cannot be read, or
    whose columns have values of several types.
    """
    sources = open_train_sources(spec, known) if spec.has_rows else []
    train = _prepare(sources)
    validation = _prepare(open_validation_sources(spec, known))
    fraction = 0.0 if validation or not train else spec.validation_fraction
    key = hash_parts(
        {
            "records": _VERSION,
            "train": [_describe(source) for source in train],
            "validation": [_describe(source) for source in validation],
            "text_rows": spec.text_rows,
            "max_rows": spec.max_rows,
            "fraction": fraction,
            "seed": spec.seed if fraction else None,
        }
    )
    is_hit = use_entry(cache, key)
    if not is_hit:
        num_passes = 3 if fraction else 2
        total_bytes = num_passes * sum(source.measure() for source in (*train, *validation))
        meter = ByteMeter(total_bytes, on_progress)
        with build_entry(cache, key) as building:
            counts = _write_train(train, meter, spec, fraction, building)
            if validation:
                with set_role("validation"):
                    held_out = _Records(validation, None, meter)
                    counts["validation"] = held_out.write(building / VALIDATION_ROWS)
            durable.write_json(building / SUMMARY_FILE, counts)
        if max_cache_bytes is not None:
            prune_cache(cache, [key], max_cache_bytes)
    fingerprints = [source.compute_fingerprint() for source in train]
    fingerprint = fingerprints[0] if len(train) == 1 else hash_parts({"rows": fingerprints})
    summary = {
        **durable.read_json(cache / key / SUMMARY_FILE),
        "fingerprint": fingerprint,
        "name": name_sources(sources) if sources else "rows of its own",
        "sha256": fingerprint if spec.train_dataset is None else None,
        "cache": "hit" if is_hit else "miss",
    }
    held_out_rows = cache / key / VALIDATION_ROWS
    return PreparedData(
        cache / key / TRAIN_ROWS, held_out_rows if held_out_rows.exists() else None, summary
    )


def _write_train(
    sources: Sequence[RowSource],
    meter: ByteMeter,
    spec: TrainingSpec,
    fraction: float,
    folder: Path,
) -> dict[str, Any]:
    """Write the rows to learn from, and a fraction of them to evaluate on; returns the counts."""
    with set_role("training"):
        rows = _Records(sources, spec.max_rows, meter)
        if sources and rows.num_rows < (least := 2 if fraction else 1):
            raise DataError(
                f"{sources[0].name}: found {rows.num_rows} rows, expected at least {least}"
            )
        if not fraction:
            return {**rows.write(folder / TRAIN_ROWS), "validation": None}
        is_held_out = hold_out_rows(np.arange(rows.num_rows), fraction, spec.seed)
        return {
            **rows.write(folder / TRAIN_ROWS, ~is_held_out),
            "validation": rows.write(folder / VALIDATION_ROWS, is_held_out),
        }


class _Records:
    """The rows of several sources, in sequence, with columns that fit all of them.

    Raises `DataError` for rows that cannot be read.
    """

    def __init__(
        self, sources: Sequence[RowSource], max_rows: int | None, meter: ByteMeter
    ) -> None:
        self._sources = sources
        self._max_rows = max_rows
        self._meter = meter
        self.num_rows, self._schema = self._survey()

    def write(self, path: Path, chosen: Any = None) -> dict[str, Any]:
        """Write all rows or the chosen ones; returns their counts.

        `chosen` is a mask of shape `[num_rows]`.
        """
        if chosen is None:
            chosen = np.ones(self.num_rows, dtype=np.bool_)
        self._write_rows(path, chosen)
        return _count(path, self._schema)

    def _survey(self) -> tuple[int, pa.Schema]:
        """Return the number of rows, and the columns that fit all of them."""
        num_rows, schema = 0, pa.schema([])
        for source in self._sources:
            for first, batch in self._read_batches(source):
                schema = _widen(schema, batch, f"{source.name}: {source.unit}s from {first}")
                num_rows += len(batch)
            self._finish(source)
        return num_rows, schema

    def _write_rows(self, path: Path, chosen: Any) -> None:
        number, schema = 0, self._schema
        with pq.ParquetWriter(path, schema) as writer:
            group: list[pa.RecordBatch] = []
            for source in self._sources:
                for first, batch in self._read_batches(source):
                    mask = chosen[number : number + len(batch)]
                    number += len(batch)
                    kept = [row for row, is_kept in zip(batch, mask, strict=True) if is_kept]
                    where = f"{source.name}: {source.unit}s from {first}"
                    group.append(_convert(kept, schema, where))
                    if sum(one.nbytes for one in group) >= _GROUP_BYTES:
                        writer.write_table(pa.Table.from_batches(group))
                        group = []
                self._finish(source)
            writer.write_table(pa.Table.from_batches(group, schema=schema))
        durable.fsync_file(path)

    def _finish(self, source: RowSource) -> None:
        self._meter.finish_source(source.measure())
        if isinstance(source, ImageZip):
            source.close()

    def _read_batches(self, source: RowSource) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yield batches of rows, each with the line of its first row; reports all faulty rows."""
        faults = RowFaultLog(source.name, source.unit)
        first, num_rows, num_bytes = 0, 0, 0
        batch: list[dict[str, Any]] = []
        for line, record in source.read():
            if num_rows == self._max_rows:
                break
            num_rows += 1
            try:
                row = _make_row(record, source)
            except RowFault as fault:
                faults.add(line, fault)
                continue
            size_bytes = _measure(row)
            if batch and (len(batch) == _BATCH_ROWS or num_bytes + size_bytes > _BATCH_BYTES):
                self._meter.report(source.position)
                yield first, batch
                batch, num_bytes = [], 0
            first = first if batch else line
            batch.append(row)
            num_bytes += size_bytes
        faults.raise_if_any(num_rows)
        if batch:
            yield first, batch


def _prepare(sources: Sequence[WeightedSource]) -> list[RowSource]:
    for one in sources:
        if isinstance(one.source, RowFile):
            one.source.reads_binary = True
    return [one.source for one in sources]


def _describe(source: RowSource) -> tuple[str, str]:
    """Return what determines the rows of a source; the suffix distinguishes CSV from text."""
    suffix = source.suffix if isinstance(source, RowFile) else type(source).__name__
    return source.compute_fingerprint(), suffix


def _make_row(record: Any, source: RowSource) -> dict[str, Any]:
    """Return a record as a row, with bytes for binary values; raises `RowFault`."""
    if isinstance(record, RowFault):
        raise record
    if not isinstance(record, Mapping):
        raise RowFault("expected an object with the columns of a row, found {}", show_value(record))
    row = {str(name): _decode(value) for name, value in record.items()}
    if isinstance(source, ImageFolder):
        name = row[IMAGE_COLUMN]
        row[IMAGE_COLUMN] = read_image_file(source.path / name, name)
    if isinstance(source, ImageZip):
        column = next((one for one in IMAGE_COLUMNS if isinstance(row.get(one), str)), None)
        if column is None:
            raise RowFault(
                "no column has the path of an image in the archive: expected one of {}",
                ", ".join(map(repr, IMAGE_COLUMNS)),
            )
        row[column] = source.read_image(row[column])
    return row


def _measure(value: Any) -> int:
    """Return about how many bytes a value has, without the overhead of Python's objects."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(name) + _measure(item) for name, item in value.items())
    if isinstance(value, Sequence):
        return sum(map(_measure, value))
    return 8


def _decode(value: Any) -> Any:
    """Return the bytes of a binary value of a Parquet or Arrow file; other values unchanged."""
    if isinstance(value, Mapping):
        if value.keys() == {"base64"} and isinstance(value["base64"], str):
            try:
                return base64.b64decode(value["base64"], validate=True)
            except ValueError:  # an object of the user's own
                return dict(value)
        return {name: _decode(item) for name, item in value.items()}
    return value


def _widen(schema: pa.Schema, batch: Sequence[Mapping[str, Any]], where: str) -> pa.Schema:
    """Return columns that fit more rows too; raises `DataError` that names a column and `where`."""
    for name in dict.fromkeys(name for row in batch for name in row):
        try:
            found = pa.array([row.get(name) for row in batch]).type
            field = pa.schema([(name, found)])
            schema = pa.unify_schemas([schema, field], promote_options="permissive")
        except (pa.ArrowException, OverflowError, UnicodeEncodeError) as exc:
            reason = str(exc).splitlines()[0]
            raise DataError(
                f"{where} on: the column {show_value(name)} has values of several types, expected "
                f"one type in all rows ({reason})"
            ) from exc
    return schema


def _convert(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, where: str) -> pa.RecordBatch:
    """Return rows with these columns; raises `DataError` that names a column and `where`.

    A value may not fit the type of its column, as an integer above 2^53 in a column of fractions.
    """
    columns = []
    for field in schema:
        try:
            columns.append(pa.array([row.get(field.name) for row in rows], field.type))
        except (pa.ArrowException, OverflowError) as exc:
            reason = str(exc).splitlines()[0]
            raise DataError(
                f"{where} on: the column {show_value(field.name)} has a value that does not fit "
                f"{field.type}, the type of all its rows ({reason}); convert the column to text, "
                "or to one type of numbers"
            ) from exc
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _count(path: Path, schema: pa.Schema) -> dict[str, Any]:
    """Describe a file of rows, with the keys that a table of tokens has."""
    columns = ", ".join(map(repr, schema.names))
    return {
        "format": "records",
        "unit": "bytes",
        "description": f"columns {columns}" if columns else "which the loop reads itself",
        "max_length": 0,
        "num_rows": pq.read_metadata(path).num_rows,
        "num_tokens": path.stat().st_size,
        "num_learned_tokens": 0,
        "num_truncated_rows": 0,
        "num_dropped_rows": 0,
        "dropped_lines": [],
        "num_split_rows": 0,
        "ignored_keys": {},
    }
