import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from training.spec import TrainingSpec, describe_validation_error, load_spec

MINIMAL = {"base_model": "m", "train_file": "rows.jsonl"}


@pytest.mark.parametrize(
    "write", [json.dumps, lambda spec: f"base_model: m\ntrain_file: {spec['train_file']}\n"]
)
def test_yaml_and_json_say_the_same(tmp_path: Path, write: Any) -> None:
    file = tmp_path / "spec"
    file.write_text(write(MINIMAL))
    spec = load_spec(file)
    assert spec.train_file == str(tmp_path / "rows.jsonl")
    assert spec.base_model == "m"


def test_paths_are_relative_to_the_spec_not_to_the_caller(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "spec.yaml").write_text(json.dumps(MINIMAL))
    assert load_spec(tmp_path / "spec.yaml").base_model == str(tmp_path / "m")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0}, "learning_rate is 0: it should be greater than 0"),
        ({"learning_rate": float("nan")}, "learning_rate is NaN"),
        (
            {"micro_batch_size": -4},
            "micro_batch_size is -4: it should be greater than or equal to 1",
        ),
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": "many"}, 'epochs is "many"'),
        ({"num_workers": 0}, "num_workers is 0"),
        ({"learning_rat": 1}, "'learning_rat' is not a setting; the settings are: base_model"),
        ({"format": "xml"}, 'format is "xml"'),
        ({"train_file": None}, "train_file is null"),
        (
            {"max_length": 600, "micro_batch_tokens": 512},
            "micro_batch_tokens is 512, less than max_length 600",
        ),
    ],
)
def test_a_bad_value_is_named_with_what_was_expected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TrainingSpec.model_validate({**MINIMAL, **change})
    assert message in describe_validation_error(caught.value)


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        TrainingSpec.model_validate({"train_file": "x", "epochs": 0, "seed": -1})
    said = describe_validation_error(caught.value)
    assert "base_model is missing" in said
    assert "epochs is 0" in said
    assert "seed is -1" in said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no spec at"),
        ("- 1\n- 2\n", "holds list, expected keys and values"),
        ("a: [", "neither YAML nor JSON"),
        ("epochs: 2", "base_model is missing"),
    ],
)
def test_a_file_that_is_no_spec_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "spec.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=message):
        load_spec(file)


def test_every_setting_is_described() -> None:
    undescribed = [
        name for name, field in TrainingSpec.model_fields.items() if not field.description
    ]
    assert undescribed == []


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        TrainingSpec.model_validate(MINIMAL).epochs = 5  # type: ignore[misc]
