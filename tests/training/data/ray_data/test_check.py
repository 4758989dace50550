"""The check by tasks finds the same rows and faults as the engine `local`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from training.data.faults import DataError
from training.data.prepare import prepare_data
from training.data.ray_data.row_index import IndexLayout
from training.data.row_table import RowTable
from training.data.text.token_layout import TOKEN_LAYOUT
from training.spec import TrainingSpec

pytestmark = pytest.mark.usefixtures("without_cluster")

CHAT = [
    {
        "messages": [
            {"role": "user", "content": f"What follows {number}?"},
            {"role": "assistant", "content": f"{number + 1}{'.' * (number % 7)}"},
        ]
    }
    for number in range(60)
]


def write(path: Path, records: list[Any]) -> str:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return str(path)


def make_spec(tiny_model: Path, engine: str, **settings: Any) -> TrainingSpec:
    return TrainingSpec.model_validate(
        {"base_model": str(tiny_model), "data_engine": engine, **settings}
    )


def prepare(tiny_model: Path, folder: Path, **settings: Any) -> list[tuple[RowTable, Any]]:
    """Prepare rows with both engines; returns the training rows and the summaries."""
    found = []
    for engine, layout in (("local", TOKEN_LAYOUT), ("ray", IndexLayout(TOKEN_LAYOUT))):
        prepared = prepare_data(make_spec(tiny_model, engine, **settings), folder / engine)
        found.append((RowTable(prepared.train, layout), prepared.summary))
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"validation_fraction": 0.2, "seed": 3},
        {"max_rows": 17},
        {"max_length": 60, "overlong": "drop"},
        {"max_length": 60},
    ],
    ids=str,
)
def test_index_describes_the_rows_of_the_table(
    tiny_model: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    file = write(tmp_path / "rows.jsonl", CHAT)
    (local, expected), (index, summary) = prepare(tiny_model, tmp_path, train_file=file, **settings)
    assert summary == expected
    assert np.array_equal(index.lengths, local.lengths)
    assert np.array_equal(index.num_targets, local.num_targets)
    rows = range(len(local))
    assert index.find_lines(rows) == local.find_lines(rows)


def test_mix_of_files_has_the_same_rows(tiny_model: Path, tmp_path: Path) -> None:
    files = [
        {"file": write(tmp_path / "a.jsonl", CHAT[:30]), "weight": 2.5},
        {"file": write(tmp_path / "b.jsonl", CHAT[30:]), "weight": 0.5},
    ]
    (local, expected), (index, summary) = prepare(tiny_model, tmp_path, train_files=files)
    assert summary == expected
    assert np.array_equal(index.lengths, local.lengths)
    assert index.describe_rows(range(12)) == local.describe_rows(range(12))


@pytest.mark.parametrize(
    "settings", [{}, {"max_length": 60, "overlong": "refuse"}], ids=["faults", "refused"]
)
def test_faults_are_those_of_the_local_engine(
    tiny_model: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    records: list[Any] = list(CHAT)
    records[7] = {"messages": "none"}
    records[23] = {"messages": []}
    records[41] = {"messages": "none"}
    records[58] = {"text": "another format"}
    file = write(tmp_path / "rows.jsonl", records)
    messages = []
    for engine in ("local", "ray"):
        spec = make_spec(tiny_model, engine, train_file=file, **settings)
        with pytest.raises(DataError) as caught:
            prepare_data(spec, tmp_path / engine)
        messages.append(str(caught.value))
        assert caught.value.role == "training"
    assert messages[0] == messages[1]
    assert "rows.jsonl: " in messages[0]
    assert "3 rows: 'messages'" in messages[0]
    assert "lines 8, 24, 42" in messages[0]
    assert "(line 59)" in messages[0]


@pytest.mark.parametrize("content", ["", '{"other": 1}\n', "\n\n"], ids=repr)
def test_unusable_files_are_refused_like_by_the_local_engine(
    tiny_model: Path, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    messages = []
    for engine in ("local", "ray"):
        with pytest.raises(DataError) as caught:
            prepare_data(make_spec(tiny_model, engine, train_file=str(path)), tmp_path / engine)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
