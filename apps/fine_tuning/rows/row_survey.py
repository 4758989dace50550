"""The survey of all rows of a file for a model: lengths, equal rows, and rows with faults.

One pass over the rows, as a job would read them, except that it does not end at a fault. Its result
is an entry of the token cache, so that it is computed once for a model, its settings and a file.
"""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from apps.fine_tuning.rows.survey_objects import (
    FindingKind,
    FindingObject,
    Findings,
    LengthsObject,
    SurveyCounts,
)
from storage import durable
from system.utf8 import clean_text
from training.data.faults import DataError, RowFault, RowFaultLog
from training.data.files.kinds import Record
from training.data.prepare import hash_parts
from training.data.readers import KnownFile, RowSource
from training.data.row_stream import RowStream
from training.data.sources import open_train_sources
from training.data.token_cache import build_entry, use_entry
from training.settings.task_settings import PREFERENCE_TASK
from training.spec import TrainingSpec
from training.task import TaskData, find_task

MAX_LISTED = 10_000
"""Most faults, and most equal rows, that a survey lists; all are counted."""
MAX_COMPARED_ROWS = 1_000_000
"""Rows that are compared with each other; later ones of a larger file are not."""
MAX_BINS = 24
_VERSION = 1
_SUMMARY_FILE, _FINDINGS_FILE = "summary.json", "findings.json"
_IMAGE_TASK = "image_classification"
_EXCERPT_CHARACTERS = 500
_KEPT_EXCERPTS = 4096  # rows that may be read before the fault of an earlier one is found
_NO_LIMIT = 1 << 40
_SPEC_FIELDS = {
    *("format", "columns", "text_rows", "max_rows", "overlong", "task", "task_settings"),
    *("learned_turns", "reasoning", "template_arguments"),
}


@dataclass(frozen=True)
class Survey:
    """A survey of the rows of a file for one spec, which may not have been made yet."""

    spec: TrainingSpec
    source: RowSource
    data: TaskData
    cache: Path
    key: str

    def read_counts(self) -> SurveyCounts | None:
        """Return the counts; None if the survey has not been made.

        Raises `DataError` if it found that no row can be read.
        """
        if not use_entry(self.cache, self.key):
            return None
        counts = durable.read_json(self.cache / self.key / _SUMMARY_FILE)
        if "refusal" in counts:
            raise DataError(counts["refusal"])
        return cast(SurveyCounts, counts)

    def read_findings(self, kind: FindingKind) -> list[FindingObject]:
        """Return the rows of one kind that a survey lists, once it has been made."""
        found: Findings = durable.read_json(self.cache / self.key / _FINDINGS_FILE)
        return found[kind]

    def make(self, on_read: Callable[[], None] = lambda: None) -> None:
        """Read all rows, and store what is found; calls `on_read` for each row."""
        with build_entry(self.cache, self.key) as building:
            rows = _SurveyPass(self.source)
            try:
                counts: Mapping[str, object] = rows.run(self.spec, self.data, on_read)
            except DataError as exc:
                counts = {"refusal": str(exc)}
            durable.write_json(building / _SUMMARY_FILE, counts)
            durable.write_json(building / _FINDINGS_FILE, rows.findings)


def open_survey(spec: TrainingSpec, known: Mapping[str, KnownFile], cache: Path) -> Survey:
    """Open the survey of the file of a spec; raises `SettingError` for its base model."""
    source = open_train_sources(spec, known)[0].source
    data = _open_data(spec)
    parts = {
        "survey": _VERSION,
        "rows": source.compute_fingerprint(),
        "suffix": source.path.suffix if source.path else "",
        "max_length": data.max_length,
        "spec": spec.model_dump(mode="json", include=_SPEC_FIELDS),
        **data.describe_inputs(),
    }
    return Survey(spec, source, data, cache, hash_parts(parts))


def _open_data(spec: TrainingSpec) -> TaskData:
    if spec.task == PREFERENCE_TASK:
        from training.tasks.preference import PreferenceData

        return PreferenceData(spec, is_preview=True)
    return find_task(spec.task).open_data(spec)


@dataclass
class _NotedRows:
    """A source of rows whose records are compared and kept for a while as they are read."""

    source: RowSource
    on_duplicate: Callable[[int, int, str, int], None]
    num_rows: int = 0
    excerpts: dict[int, str] = field(default_factory=dict)
    _numbers: dict[bytes, int] = field(default_factory=dict)  # of the first row, by its hash

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def path(self) -> Path | None:
        return self.source.path

    @property
    def unit(self) -> str:
        return self.source.unit

    @property
    def position(self) -> int:
        return self.source.position

    def measure(self) -> int:
        return self.source.measure()

    def compute_fingerprint(self) -> str:
        return self.source.compute_fingerprint()

    def read(self) -> Iterator[Record]:
        for line, record in self.source.read():
            self.num_rows += 1
            self.excerpts.pop(self.num_rows - _KEPT_EXCERPTS, None)
            if not isinstance(record, RowFault):
                self._note(line, record)
            yield line, record

    def _note(self, line: int, record: object) -> None:
        number = self.num_rows
        try:
            text = json.dumps(record, ensure_ascii=False, default=str)
        except (ValueError, RecursionError):
            return
        excerpt = clean_text(text[:_EXCERPT_CHARACTERS])
        self.excerpts[number] = excerpt
        if number > MAX_COMPARED_ROWS:
            return
        digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=12).digest()
        first = self._numbers.setdefault(digest, number)
        if first != number:
            self.on_duplicate(line, number, excerpt, first)


class _SurveyPass:
    """One pass over the rows of a file."""

    def __init__(self, source: RowSource) -> None:
        self.findings: Findings = {"fault": [], "duplicate": []}
        self._rows = _NotedRows(source, self._add_duplicate)
        self._num_duplicates = self._num_faults = 0
        self._lengths = array("Q")

    def run(self, spec: TrainingSpec, data: TaskData, on_read: Callable[[], None]) -> SurveyCounts:
        """Read the rows; raises `DataError` if none can be read, as in an unknown format."""
        is_pair = spec.task == PREFERENCE_TASK
        reader: Any = data.open_reader(self._rows.source, None)
        stream: RowStream[Any, Any] = RowStream(self._rows, reader, _NO_LIMIT)
        stream.counts.faults = RowFaultLog(self._rows.name, self._rows.unit, self._add_fault)
        with closing(stream.encode_unchecked(spec.max_rows, on_read)) as samples:
            for sample in samples:
                cut = 0 if is_pair else getattr(sample, "truncated_tokens", 0)
                self._lengths.append(sample.length + cut)
                if spec.overlong == "refuse" and sample.length > data.max_length:
                    pattern = "{} tokens, more than max_length {}"
                    fault = RowFault(pattern, sample.length, data.max_length)
                    self._add_fault(sample.line, sample.number, fault)
        has_tokens = spec.task != _IMAGE_TASK and len(self._lengths) > 0
        return {
            "format": stream.format if not self._num_faults else reader.format or "",
            "task": spec.task,
            "unit": self._rows.unit,
            "max_length": data.max_length,
            "num_rows": stream.counts.num_rows,
            "num_faulty_rows": self._num_faults,
            "num_duplicate_rows": self._num_duplicates,
            "num_compared_rows": min(stream.counts.num_rows, MAX_COMPARED_ROWS),
            "lengths": summarise_lengths(self._lengths, data.max_length) if has_tokens else None,
        }

    def _add_fault(self, line: int, number: int, fault: RowFault) -> None:
        self._num_faults += 1
        self._list("fault", number, line, str(fault), self._rows.excerpts.get(number, ""))

    def _add_duplicate(self, line: int, number: int, excerpt: str, first: int) -> None:
        self._num_duplicates += 1
        self._list("duplicate", number, line, f"equal to row {first}", excerpt, first)

    def _list(
        self,
        kind: FindingKind,
        number: int,
        line: int,
        reason: str,
        excerpt: str,
        first: int | None = None,
    ) -> None:
        if len(self.findings[kind]) < MAX_LISTED:
            self.findings[kind].append(
                {
                    "id": str(number),
                    "object": f"file.{kind}",
                    "number": number,
                    "line": line,
                    "reason": clean_text(reason),
                    "content": excerpt,
                    "first_number": first,
                }
            )


def summarise_lengths(lengths: Sequence[int], max_length: int) -> LengthsObject:
    """Summarise lengths, of which there is at least one, in at most `MAX_BINS` bins."""
    found = np.asarray(lengths, dtype=np.int64)
    median, high, top = (int(value) for value in np.percentile(found, (50, 95, 99.5)))
    width = choose_bin_width(top)
    num_bins = top // width + 1
    counts = np.bincount(np.minimum(found // width, num_bins), minlength=num_bins + 1)
    return {
        "num_samples": len(found),
        "min": int(found.min()),
        "median": median,
        "mean": round(float(found.mean()), 1),
        "percentile_95": high,
        "max": int(found.max()),
        "num_over_limit": int(np.count_nonzero(found > max_length)),
        "bin_width": width,
        "counts": counts[:num_bins].tolist(),
        "num_longer": int(counts[num_bins]),
    }


def choose_bin_width(top: int) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, … with at most `MAX_BINS` bins up to `top`."""
    scale = 1
    while True:
        for factor in (1, 2, 5):
            if top // (factor * scale) < MAX_BINS:
                return factor * scale
        scale *= 10
