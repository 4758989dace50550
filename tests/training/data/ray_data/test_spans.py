"""Parts of files have the same records, with the same lines, as the whole files."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.data.faults import DataError, RowFault
from training.data.ray_data import spans
from training.data.ray_data.spans import (
    Span,
    SpanSource,
    check_divisible,
    count_lines,
    divide_source,
    is_within_line,
)
from training.data.readers import RowFile, RowSource

RECORDS = [{"text": f"Row {number} {'äöü' * (number % 4)}"} for number in range(60)]


def write_lines(folder: Path, first: bytes = b"") -> RowFile:
    lines = [json.dumps(record, ensure_ascii=False).encode() for record in RECORDS]
    lines[20:20] = [b"", b"no JSON", b""]
    path = folder / "rows.jsonl"
    path.write_bytes(first + b"\n".join(lines))
    return RowFile(path, ["text"])


def write_table(folder: Path, first: bytes = b"") -> RowFile:
    path = folder / "rows.csv"
    rows = "".join(f'"{one["text"]}\n{number}",{number}\n' for number, one in enumerate(RECORDS))
    path.write_bytes(first + f"text,id\n{rows}".encode())
    return RowFile(path, ["text"])


def write_parquet(folder: Path, first: bytes = b"") -> RowFile:
    path = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(RECORDS), path, row_group_size=7)
    return RowFile(path, ["text"])


def write_arrow(folder: Path, first: bytes = b"") -> RowFile:
    path = folder / "rows.arrow"
    table = pa.Table.from_pylist(RECORDS)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=9)
    return RowFile(path, ["text"])


def show(record: Any) -> Any:
    return str(record) if isinstance(record, RowFault) else record


def read(source: RowSource) -> list[tuple[int, Any]]:
    return [(line, show(record)) for line, record in source.read()]


@pytest.mark.parametrize("span_bytes", [1, 17, 50, 333, 1 << 20])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_spans_of_lines_have_each_line_once(
    tmp_path: Path, span_bytes: int, mark: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path, mark)
    monkeypatch.setattr(spans, "SPAN_BYTES", span_bytes)
    found, num_lines = [], 0
    for span in divide_source(source):
        before = num_lines + is_within_line(source, span)
        found += read(SpanSource(source, [span._replace(num_lines=before)]))
        num_lines += count_lines(source, span)
    assert found == read(source)
    assert len(found) == len(RECORDS) + 1


@pytest.mark.parametrize("write", [write_lines, write_table, write_parquet, write_arrow])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_rows_are_read_from_their_places(tmp_path: Path, write: Any, mark: bytes) -> None:
    source = write(tmp_path, mark)
    whole = SpanSource(source, [Span()])
    records = [record for _, record in read(whole)]
    assert records == [record for _, record in read(source)]
    assert whole.places == sorted(set(whole.places))
    for first, last in ((0, 0), (3, 9), (30, len(records) - 1)):
        span = Span(whole.places[first], whole.places[last] + 1)
        assert [record for _, record in read(SpanSource(source, [span]))] == records[
            first : last + 1
        ]
    wanted = {whole.places[place] for place in (2, 5, 41)}
    both = [
        Span(whole.places[1], whole.places[6] + 1),
        Span(whole.places[40], whole.places[43] + 1),
    ]
    chosen = SpanSource(source, both, wanted)
    assert [record for _, record in read(chosen)] == [records[2], records[5], records[41]]
    assert chosen.places == sorted(wanted)


def test_large_file_without_places_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(RECORDS))
    check_divisible(RowFile(path))
    monkeypatch.setattr(spans, "MAX_UNDIVIDED_BYTES", 100)
    with pytest.raises(DataError, match=r"rows\.json has .* of the kind 'array', so data_engine"):
        check_divisible(RowFile(path))
    check_divisible(write_lines(tmp_path))
    check_divisible(write_parquet(tmp_path))
