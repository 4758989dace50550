"""The sources of a spec's rows: files, folders and patterns, or a data set on the hub."""

import glob
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from storage.local_paths import is_bucket_url
from training.data.faults import DataError, show_names
from training.data.files.kinds import ROW_SUFFIXES, find_suffix
from training.data.readers import HubRows, KnownFile, RowFile, RowSource
from training.settings.row_sources import HubDataset
from training.spec import TrainingSpec, name_source
from training.task import find_task

logger = logging.getLogger(__name__)

_File = TypeVar("_File", Path, str)

MAX_FILES = 1000
"""The most files of one folder or pattern."""


@dataclass(frozen=True)
class WeightedSource:
    """One source of rows, how often each row is seen in an epoch, and the setting it is part of.

    `group` is the number of the setting, which is a file, folder or pattern named `group_name`.
    """

    source: RowSource
    weight: float = 1.0
    group: int = 0
    group_name: str = ""


def open_train_sources(
    spec: TrainingSpec, known: Mapping[str, KnownFile] | None = None
) -> list[WeightedSource]:
    """Open the sources of a spec's training rows, without reading them.

    `known` has the records of files, by their paths; errors use the names in these records. Raises
    `DataError` for a folder or a pattern without files of rows.
    """
    if spec.train_files:
        sources = [
            one
            for group, entry in enumerate(spec.train_files)
            for one in _open_files(entry.file, spec, known, entry.weight, group)
        ]
        _check_named_once(sources)
        return sources
    return _open_sources(spec.train_file, spec.train_dataset, spec, known)


def _check_named_once(sources: Sequence[WeightedSource]) -> None:
    """Raise `DataError` for a file in several settings: its rows could be learned and held out."""
    groups: dict[Path, str] = {}
    for one in sources:
        if one.source.path is None:
            continue
        path = one.source.path.resolve()
        if path in groups:
            raise DataError(
                f"{one.source.name} is named by {groups[path]!r} and by {one.group_name!r} of "
                "train_files, expected once; give it one weight"
            )
        groups[path] = one.group_name


def open_validation_sources(
    spec: TrainingSpec, known: Mapping[str, KnownFile] | None = None
) -> list[WeightedSource]:
    """Open the sources of a spec's validation rows, like `open_train_sources`; may be empty."""
    if spec.validation_file is None and spec.validation_dataset is None:
        return []
    return _open_sources(spec.validation_file, spec.validation_dataset, spec, known)


def name_sources(sources: Sequence[WeightedSource]) -> str:
    """Return the name of several sources in messages: the first, and the number of others."""
    names = [next(iter(group)).group_name for _, group in groupby(sources, lambda one: one.group)]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _open_sources(
    file: str | None,
    dataset: HubDataset | None,
    spec: TrainingSpec,
    known: Mapping[str, KnownFile] | None,
) -> list[WeightedSource]:
    if dataset is not None:
        rows = HubRows(dataset)
        return [WeightedSource(rows, group_name=rows.name)]
    assert file is not None  # the spec has one of the two
    return _open_files(file, spec, known)


def _open_files(
    file: str,
    spec: TrainingSpec,
    known: Mapping[str, KnownFile] | None,
    weight: float = 1.0,
    group: int = 0,
) -> list[WeightedSource]:
    task = find_task(spec.task)
    record = (known or {}).get(file)
    if is_bucket_url(file) and not record:
        return _open_bucket(file, spec, weight, group)
    if not record and Path(file).is_dir() and (found := task.open_source(Path(file), spec, None)):
        return [WeightedSource(found, weight, group, found.name)]
    # A file with a record was uploaded, so it is one file, even if its name looks like a pattern.
    paths = [Path(file)] if record else _find_files(file)
    group_name = record.name if record else Path(file).name
    names = (*task.column_names, *spec.columns.values())
    sources = [
        task.open_source(path, spec, record)
        or RowFile(path, names, known=record, text_rows=spec.text_rows)
        for path in paths
    ]
    return [WeightedSource(source, weight, group, group_name) for source in sources]


def _open_bucket(file: str, spec: TrainingSpec, weight: float, group: int) -> list[WeightedSource]:
    """Open files in a bucket, which only the data engine `ray` reads."""
    from training.data.ray_data.bucket_files import BucketFile, find_bucket_files

    task = find_task(spec.task)
    names = (*task.column_names, *spec.columns.values())
    urls = _check_number(name_source(file), "holds", find_bucket_files(file))
    group_name = name_source(file)
    sources = [
        BucketFile(Path(url.split("?")[0]), names, text_rows=spec.text_rows, url=url)
        for url in urls
    ]
    for source in sources:
        own = task.open_source(source.path, spec, None)
        source.reads_binary = isinstance(own, RowFile) and own.reads_binary
    return [WeightedSource(source, weight, group, group_name) for source in sources]


def _find_files(file: str) -> list[Path]:
    """Return the files that a setting refers to, by name; reading reports a missing file."""
    path = Path(file)
    if path.is_dir():
        return _list_folder(path)
    if path.is_file() or not glob.has_magic(file):
        return [path]
    found = sorted(Path(name) for name in glob.glob(file, recursive=True))
    return _check_number(file, "matches", [path for path in found if path.is_file()])


def _list_folder(folder: Path) -> list[Path]:
    files = sorted(
        path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")
    )
    rows = [path for path in files if find_suffix(path) in ROW_SUFFIXES]
    if skipped := [path.name for path in files if path not in set(rows)]:
        logger.warning(
            "of the folder %r, files without a suffix of rows are not read: %s",
            folder.name,
            show_names(skipped),
        )
    return _check_number(str(folder), "holds", rows)


def _check_number(file: str, verb: str, files: list[_File]) -> list[_File]:
    if not files:
        suffixes = ", ".join(ROW_SUFFIXES)
        raise DataError(f"{file!r} {verb} no file of rows; expected files with {suffixes}")
    if len(files) > MAX_FILES:
        raise DataError(
            f"{file!r} {verb} {len(files):,} files, expected at most {MAX_FILES:,}: join them"
        )
    return files


def describe_sources(
    sources: Sequence[WeightedSource], num_rows: Sequence[int], counts: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Describe each setting: its name, weight, number of files, and rows in an epoch.

    `num_rows[i]` and `counts[i]` belong to `sources[i]`.
    """
    described = []
    for _, group in groupby(range(len(sources)), lambda place: sources[place].group):
        places = list(group)
        described.append(
            {
                "name": sources[places[0]].group_name,
                "weight": sources[places[0]].weight,
                "num_files": len(places),
                "num_rows": sum(num_rows[place] for place in places),
                "num_dropped_rows": sum(counts[place]["num_dropped_rows"] for place in places),
            }
        )
    return described
