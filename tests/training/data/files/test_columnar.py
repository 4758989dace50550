"""Parquet and Arrow files, harmless and hostile."""

import datetime
import gzip
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.data.text.test_formats import ANSWER, QUESTION, parse
from training.data.faults import DataError, RowFault
from training.data.files import columnar
from training.data.files.columnar import read_columnar
from training.data.files.measuring import measure_unpacked
from training.data.readers import RowFile
from training.data.row_limits import MAX_ROW_BYTES


def write_parquet(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path)


def write_arrow_file(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=40)


def write_arrow_stream(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=40)


KINDS: dict[str, Callable[[Path, pa.Table], None]] = {
    "parquet": write_parquet,
    "arrow file": write_arrow_file,
    "arrow stream": write_arrow_stream,
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def read(path: Path) -> list[tuple[int, Any]]:
    return list(RowFile(path).read())


@every_kind
def test_columnar_rows_equal_written_rows(tmp_path: Path, kind: str) -> None:
    records = [{"text": f"Twelve {index} 🦊", "id": index} for index in range(100)]
    file = tmp_path / "upload"  # no suffix reveals the format
    KINDS[kind](file, pa.Table.from_pylist(records))
    source = RowFile(file)
    assert list(source.read()) == list(enumerate(records, 1))
    assert source.unit == "row"
    assert 0 < source.position <= file.stat().st_size


@every_kind
def test_nulls_that_pad_objects_are_ignored(tmp_path: Path, kind: str) -> None:
    silent = {**ANSWER, "weight": 0}
    tools = [{"type": "function", "function": {"name": "count_loaves", "strict": True}}]
    record = {"messages": [QUESTION, silent, QUESTION, ANSWER], "tools": tools}
    file = tmp_path / "rows"
    KINDS[kind](file, pa.Table.from_pylist([record, {"messages": [QUESTION, ANSWER]}]))
    rows = [parse(found) for _, found in read(file)]
    assert rows[0].messages == (QUESTION, ANSWER, QUESTION, ANSWER)
    assert rows[0].learned == (False, False, False, True)
    assert rows[0].tools == tuple(tools)
    assert rows[1].tools == ()
    assert rows[1].ignored == ()


def test_non_json_values_are_described(tmp_path: Path) -> None:
    row = {"text": b"Zw\xc3\xb6lf", "image": b"\xff\xd8", "day": datetime.date(2026, 11, 24)}
    write_parquet(tmp_path / "rows", pa.Table.from_pylist([row]))
    ((_, found),) = read(tmp_path / "rows")
    assert found == {"text": "Zwölf", "image": {"bytes": 2}, "day": {"date": "2026-11-24"}}


@every_kind
def test_damaged_file_is_rejected(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "rows.bin"
    KINDS[kind](file, pa.Table.from_pylist([{"text": str(index)} for index in range(1000)]))
    whole = file.read_bytes()
    for damaged in (whole[:12], whole[: len(whole) // 2], whole[:100] + b"\x7f" * 200):
        file.write_bytes(damaged)
        with pytest.raises(
            DataError, match="^rows.bin cannot be read as (Parquet|Arrow)"
        ) as caught:
            read(file)
        assert str(tmp_path) not in str(caught.value)


def test_compressed_columnar_file_is_rejected(tmp_path: Path) -> None:
    write_parquet(tmp_path / "rows", pa.table({"text": ["a"]}))
    (tmp_path / "rows.gz").write_bytes(gzip.compress((tmp_path / "rows").read_bytes()))
    with pytest.raises(
        DataError, match=r"^rows.gz is a Parquet or Arrow file compressed as a whol"
    ):
        read(tmp_path / "rows.gz")


def test_too_long_row_does_not_affect_other_rows(tmp_path: Path) -> None:
    write_parquet(tmp_path / "rows", pa.table({"text": ["a", "b" * (5 << 20), "c"]}))
    (first, (number, fault), last) = read(tmp_path / "rows")
    assert (first, last) == ((1, {"text": "a"}), (3, {"text": "c"}))
    assert number == 2
    assert isinstance(fault, RowFault)
    assert "longer than 4,194,304 bytes" in str(fault)


def test_row_group_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row group of 190 MB is read within 64 MiB."""
    monkeypatch.setattr(columnar, "MAX_MEMORY_BYTES", 64 << 20)
    texts = [f"{index:06d}" * 1_600 for index in range(20_000)]
    with pq.ParquetWriter(tmp_path / "rows", pa.schema([("text", pa.string())])) as writer:
        writer.write_table(pa.table({"text": texts}), row_group_size=20_000)
    meta = pq.read_metadata(tmp_path / "rows")
    assert (meta.num_row_groups, meta.row_group(0).total_byte_size > 150 << 20) == (1, True)
    del texts
    assert sum(1 for _ in RowFile(tmp_path / "rows").read()) == 20_000


def write_large_text(path: Path) -> None:
    """Write a file of 200 KB with a page that unpacks to 200 MB."""
    write_parquet_page = pa.table({"text": ["x" * (200 << 20)]})
    pq.write_table(write_parquet_page, path, compression="zstd", use_dictionary=False)


def write_large_batch(path: Path) -> None:
    table = pa.table({"text": ["x" * (200 << 20)]})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema, options=options) as writer,
    ):
        writer.write_table(table)


def write_repeated_text(path: Path) -> None:
    """Write a dictionary with one text of 3 MB for 200 rows, 600 MB in total."""
    pq.write_table(pa.table({"text": ["x" * (3 << 20)] * 200}), path, compression="zstd")


@pytest.mark.parametrize("write", [write_large_text, write_large_batch])
def test_file_that_exceeds_memory_limit_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(columnar, "MAX_MEMORY_BYTES", 128 << 20)
    file = tmp_path / "bomb"
    write(file)
    assert file.stat().st_size < 1 << 20
    expected = "^bomb: reading it as (Parquet|Arrow) takes more than 134,217,728 bytes of memory"
    with pytest.raises(DataError, match=expected):
        read(file)


def test_rows_with_shared_large_text_are_read_in_small_batches(tmp_path: Path) -> None:
    write_repeated_text(tmp_path / "rows")
    assert (tmp_path / "rows").stat().st_size < 1 << 20
    assert sum(1 for _ in RowFile(tmp_path / "rows").read()) == 200


def test_path_is_not_shown_among_the_arguments_of_the_process(tmp_path: Path) -> None:
    write_parquet(tmp_path / "rows", pa.Table.from_pylist([{"text": "x" * 100_000}] * 2_000))
    before = {child.pid for child in psutil.Process().children()}
    records = RowFile(tmp_path / "rows").read()
    next(records)
    (process,) = [child for child in psutil.Process().children() if child.pid not in before]
    arguments = process.cmdline()
    records.close()  # type: ignore[attr-defined]
    assert "parquet" in arguments
    assert str(tmp_path) not in " ".join(arguments)


def test_closed_reader_ends_its_process(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{"text": "x" * 100_000}] * 2_000)
    write_parquet(tmp_path / "rows", table)
    before = {child.pid for child in psutil.Process().children()}
    records = RowFile(tmp_path / "rows").read()
    next(records)
    assert {child.pid for child in psutil.Process().children()} - before
    records.close()  # type: ignore[attr-defined]
    assert not {child.pid for child in psutil.Process().children()} - before


def test_reading_ends_at_the_deadline(tmp_path: Path) -> None:
    """Skipping the rows of a small file may take minutes: it can have millions of equal ones."""
    path = tmp_path / "rows.parquet"
    write_parquet(path, pa.Table.from_pylist([{"n": 1}] * 100))
    deadline = time.monotonic() + 0.01  # before the process can have started
    with pytest.raises(TimeoutError, match=r"rows\.parquet"):
        list(read_columnar(path, "rows.parquet", "parquet", deadline=deadline))
    assert len(list(read_columnar(path, "rows.parquet", "parquet"))) == 100


def test_too_long_rows_count_with_unpacked_size(tmp_path: Path) -> None:
    """With a dictionary of one text, a small file can contain any number of rows."""
    path = tmp_path / "rows.parquet"
    texts = pa.array(["x" * (MAX_ROW_BYTES + 1)] * 4).dictionary_encode()
    write_parquet(path, pa.table({"text": texts}))
    assert path.stat().st_size < MAX_ROW_BYTES / 10
    assert measure_unpacked(path, "rows.parquet", 1 << 40) == 4 * MAX_ROW_BYTES


def test_file_that_exceeds_unpack_time_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    write_parquet(path, pa.table({"text": ["fox"] * 10}))
    with pytest.raises(DataError, match="^rows.parquet takes more than 0 s to unpack; split it"):
        measure_unpacked(path, "rows.parquet", 1 << 40, max_s=0)
