"""Compressed files: read like their content, within limits."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.training.data.text.test_formats import RECORDS, WRITERS, read_rows
from training.data.faults import DataError
from training.data.files import packed
from training.data.readers import RowFile


def compress_zstd(content: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(content, asbytes=True))


PACKERS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "zst": compress_zstd}


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("kind", WRITERS)
def test_compressed_text_of_each_kind_is_read(tmp_path: Path, kind: str, packer: str) -> None:
    expected, record = RECORDS["Alpaca"]
    content = ("\N{BYTE ORDER MARK}" + WRITERS[kind]([record] * 3)).encode()
    file = tmp_path / "upload"
    file.write_bytes(content)
    plain = read_rows(file)
    file.write_bytes(PACKERS[packer](content))
    assert read_rows(file) == plain
    assert plain[0] == expected
    file.write_bytes(PACKERS[packer](content[:40]) + PACKERS[packer](content[40:]))  # two members
    assert read_rows(file) == plain


@pytest.mark.parametrize("packer", PACKERS)
def test_format_follows_suffix_before_compression_suffix(tmp_path: Path, packer: str) -> None:
    file = tmp_path / f"notes.TXT.{packer}"
    file.write_bytes(PACKERS[packer](b"One.\n\nTwo, and three.\n"))
    assert list(RowFile(file).read()) == [(1, {"text": "One."}), (3, {"text": "Two, and three."})]
    table = tmp_path / f"rows.tsv.{packer}"
    table.write_bytes(PACKERS[packer](b"a\tb,c\n1\t2,3\n"))
    assert list(RowFile(table).read()) == [(2, {"a": "1", "b,c": "2,3"})]


@pytest.mark.parametrize("packer", PACKERS)
def test_truncated_file_is_rejected_after_its_rows(tmp_path: Path, packer: str) -> None:
    rows = [{"text": f"{index} {index * 7919 % 1009}"} for index in range(50_000)]
    content = PACKERS[packer]("".join(f"{json.dumps(row)}\n" for row in rows).encode())
    file = tmp_path / "rows.jsonl.x"
    file.write_bytes(content[:-100])
    records = RowFile(file).read()
    assert next(records) == (1, rows[0])
    with pytest.raises(
        DataError, match="^rows.jsonl.x cannot be unpacked .* compress the rows aga"
    ):
        list(records)


@pytest.mark.parametrize("packer", PACKERS)
def test_decompression_bomb_is_rejected_before_unpacking(
    tmp_path: Path, packer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "FREE_BYTES", 1 << 20)
    file = tmp_path / "bomb.jsonl"
    file.write_bytes(PACKERS[packer](b"\n" * (64 << 20)))
    assert file.stat().st_size < 100_000
    with pytest.raises(DataError, match="^bomb.jsonl unpacks to more than [0-9,]+ bytes, which no"):
        list(RowFile(file).read())
    source = RowFile(file)
    with pytest.raises(DataError):
        list(source.read())
    harmless = tmp_path / "rows.jsonl"
    harmless.write_bytes(PACKERS[packer](b'{"text": "a"}\n' * 60_000))  # 840,000 bytes
    assert len(list(RowFile(harmless).read())) == 60_000


def test_position_is_offset_in_compressed_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl.gz"
    content = "".join(f'{{"n": {index * 7919 % 100_003}}}\n' for index in range(200_000))
    file.write_bytes(gzip.compress(content.encode()))
    source = RowFile(file)
    positions = [source.position for _ in source.read()]
    assert positions == sorted(positions)
    assert positions[-1] == file.stat().st_size
    assert 0 < positions[100_000] < file.stat().st_size
