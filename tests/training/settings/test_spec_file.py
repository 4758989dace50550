from pathlib import Path

import pytest

from training.settings.spec_file import read_spec_file
from training.spec import TrainingSpec, load_spec


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("s.yaml", "base_model: m\nepochs: 1\nepochs: 2\n", "the key 'epochs' .* lines 2 and 3"),
        ("s.json", '{"epochs": 1,\n"epochs": 2}', "the key 'epochs' .* lines 1 and 2"),
        (
            "s.yaml",
            "deepspeed:\n  zero_optimization: {stage: 1, stage: 2}\n",
            "the key 'deepspeed.zero_optimization.stage' is there twice",
        ),
        ("s.yaml", "trackers: [{a: 1, a: 2}]\n", "the key 'trackers.0.a' is there twice"),
    ],
)
def test_duplicate_key_is_rejected_by_name(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    """Previously, the last one silently took precedence."""
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=f"^{name}: {message}"):
        load_spec(tmp_path / name)


def test_duplicate_key_of_deepspeed_file_is_rejected_by_name(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 1, "stage": 2}}')
    (tmp_path / "spec.yaml").write_text("base_model: m\ntrain_file: r\ndeepspeed: ds.json\n")
    with pytest.raises(ValueError, match="^ds.json: the key 'stage' is there twice, with 1 and 2"):
        load_spec(tmp_path / "spec.yaml")


def test_anchors_and_merged_keys_are_not_duplicates(tmp_path: Path) -> None:
    content = "a: &a {epochs: 1, seed: 2}\nb: {<<: *a, epochs: 3}\nc: *a\n"
    (tmp_path / "spec.yaml").write_text(content)
    assert read_spec_file(tmp_path / "spec.yaml")["b"] == {"epochs": 3, "seed": 2}


def test_folder_is_not_a_spec(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=f"^'{tmp_path}' is a folder: expected a YAML or JSON file$"
    ):
        load_spec(tmp_path)


@pytest.mark.parametrize("key", ["base_model", "train_file", "validation_file"])
@pytest.mark.parametrize("scheme", ["s3", "gs", "hf", "http", "https"])
def test_url_in_spec_is_rejected_by_name(tmp_path: Path, key: str, scheme: str) -> None:
    values = {"base_model": "m", "train_file": "r", key: f"{scheme}://bucket/name"}
    (tmp_path / "spec.yaml").write_text("".join(f"{k}: {v}\n" for k, v in values.items()))
    with pytest.raises(
        ValueError, match=f"^spec.yaml: {key} is '{scheme}://bucket/name', expected a "
    ):
        load_spec(tmp_path / "spec.yaml")


def test_hub_data_set_id_with_scheme_is_rejected() -> None:
    with pytest.raises(
        ValueError,
        match="^1 validation error for TrainingSpec\n  Value error, train_dataset.id is "
        "'hf://a/b', expected an id on",
    ):
        TrainingSpec.model_validate({"base_model": "m", "train_dataset": {"id": "hf://a/b"}})


def test_bucket_is_read_only_by_data_engine_ray(tmp_path: Path) -> None:
    values = {"base_model": "m", "train_file": "s3://bucket/rows.jsonl"}
    spec = TrainingSpec.model_validate({**values, "data_engine": "ray"})
    assert spec.pin_paths(tmp_path).train_file == "s3://bucket/rows.jsonl"
    assert "train_file" not in spec.describe(), "a URL may have credentials"
    with pytest.raises(ValueError, match="data_engine is 'local': set data_engine to 'ray'"):
        TrainingSpec.model_validate(values)
    with pytest.raises(ValueError, match="train_file is 'https://host/rows', expected a path"):
        TrainingSpec.model_validate(
            {**values, "train_file": "https://host/rows", "data_engine": "ray"}
        )
    with pytest.raises(ValueError, match="train_dataset is set, and data_engine is 'ray'"):
        TrainingSpec.model_validate(
            {"base_model": "m", "train_dataset": {"id": "a/b"}, "data_engine": "ray"}
        )
