"""Files in a bucket are read in parts, like files of the file system."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.data.ray_data.bucket_server import serve_bucket
from tests.training.data.ray_data.test_check import CHAT, make_spec, write
from tests.training.data.ray_data.test_spans import write_parquet, write_table
from training.data.faults import DataError
from training.data.prepare import prepare_data
from training.data.ray_data.bucket_files import BucketFile, find_bucket_files
from training.data.ray_data.row_index import IndexLayout
from training.data.ray_data.spans import Span, SpanSource
from training.data.row_table import RowTable
from training.data.text.token_layout import TOKEN_LAYOUT

BUCKET = "s3://key:secret@rows/"


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("bucket")
    with serve_bucket(folder) as query:
        yield folder, query


@pytest.mark.parametrize("write_file", [write_table, write_parquet])
def test_parts_are_those_of_the_file(bucket: tuple[Path, str], write_file: Any) -> None:
    folder, query = bucket
    local = write_file(folder)
    remote = BucketFile(local.path, local.names, url=f"{BUCKET}{local.path.name}{query}")
    assert remote.measure() == local.measure()
    assert list(remote.read()) == list(local.read())
    whole = SpanSource(local, [Span()])
    records = [record for _, record in whole.read()]
    span = Span(whole.places[20], whole.places[33] + 1)
    assert [record for _, record in SpanSource(remote, [span]).read()] == records[20:34]


@pytest.mark.usefixtures("without_cluster")
def test_rows_of_a_pattern_are_prepared(
    bucket: tuple[Path, str], tiny_model: Path, tmp_path: Path
) -> None:
    folder, query = bucket
    write(folder / "chat-1.jsonl", CHAT[:40])
    write(folder / "chat-2.jsonl", CHAT[40:])
    url = f"{BUCKET}chat-*.jsonl{query}"
    assert [found.split("?")[0] for found in find_bucket_files(url)] == [
        f"{BUCKET}chat-1.jsonl",
        f"{BUCKET}chat-2.jsonl",
    ]
    spec = make_spec(tiny_model, "ray", train_file=url)
    prepared = prepare_data(spec, tmp_path / "cache")
    expected = prepare_data(
        make_spec(tiny_model, "local", train_file=f"{folder}/chat-*.jsonl"), tmp_path / "local"
    )
    index = RowTable(prepared.train, IndexLayout(TOKEN_LAYOUT))
    assert np.array_equal(index.lengths, RowTable(expected.train, TOKEN_LAYOUT).lengths)
    assert prepared.summary["name"] == "chat-*.jsonl"
    assert "secret" not in str(prepared.summary)


def test_credentials_of_url_that_cannot_be_parsed_are_not_shown() -> None:
    with pytest.raises(DataError, match=r"^'a\.jsonl' cannot be reached: .*the URL") as caught:
        find_bucket_files("s3://key:sec ret@rows/a.jsonl")
    assert "ret" not in str(caught.value)


def test_missing_file_is_reported_by_its_name(
    bucket: tuple[Path, str], tiny_model: Path, tmp_path: Path
) -> None:
    spec = make_spec(tiny_model, "ray", train_file=f"{BUCKET}none.jsonl{bucket[1]}")
    with pytest.raises(DataError, match=r"^no file 'none\.jsonl' in the bucket 'rows'$"):
        prepare_data(spec, tmp_path / "cache")
