"""Rows of a data set, as the hub library stores them in a local folder."""

from pathlib import Path

import datasets

from training.data.readers import HubRows
from training.settings.row_sources import HubDataset


def test_classes_are_read_by_their_names(tmp_path: Path) -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["cold", "hot"])}
    )
    rows = {"text": ["Boil it", "Chill it", "Neither"], "label": [1, 0, -1]}
    datasets.Dataset.from_dict(rows, features).to_parquet(str(tmp_path / "train.parquet"))
    found = [record for _, record in HubRows(HubDataset(id=str(tmp_path))).read()]
    assert found == [
        {"text": "Boil it", "label": "hot"},
        {"text": "Chill it", "label": "cold"},
        {"text": "Neither", "label": None},
    ]
