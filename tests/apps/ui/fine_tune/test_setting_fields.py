"""The fields of the training settings: entered values are sent unchanged, or rejected."""

import json
import re
from typing import Any

import pytest

from apps.ui.fine_tune.setting_fields import (
    collect_changes,
    flatten,
    label_setting,
    read_setting,
    select_entered,
    unflatten,
)
from training.spec import TrainingSpec

SCHEMAS = TrainingSpec.model_json_schema()["properties"]
DEFAULTS = json.loads(
    TrainingSpec.model_validate({"base_model": "-", "train_file": "-"}).model_dump_json()
)


def collect(values: dict[str, Any]) -> dict[str, Any]:
    return collect_changes(DEFAULTS, SCHEMAS, values)


def test_only_changed_settings_are_sent() -> None:
    assert collect({"epochs": 5, "learning_rate": 1e-4, "max_length": ""}) == {"epochs": 5}
    assert collect({"max_length": " 64 "}) == {"max_length": 64}
    assert collect({"learning_rate": 0}) == {"learning_rate": 0}


def test_entered_values_stay_for_another_task_that_has_them() -> None:
    """A field that is built again shows what was entered, unless that is no choice of it now."""
    entered = {"epochs": 5, "strategy": "ddp", "format": "chat", "class_weights": "balanced"}
    schemas = {"epochs": {}, "strategy": {"enum": ["zero", "ddp"]}, "format": {"enum": ["labels"]}}
    assert select_entered(entered, schemas) == {"epochs": 5, "strategy": "ddp"}


@pytest.mark.parametrize("typed", [2.5, 2.0, 3])
def test_number_is_sent_as_typed(typed: float) -> None:
    """The API rejects a fractional number of epochs; the page does not round it."""
    assert collect({"epochs": typed}).get("epochs", 3) == typed


@pytest.mark.parametrize(("key", "empty"), [("learning_rate", None), ("adam_betas", " ")])
def test_empty_required_field_raises(key: str, empty: str | None) -> None:
    with pytest.raises(ValueError, match=rf"^{key[:4].capitalize()}.* is empty.*default is"):
        collect({key: empty})


def test_empty_optional_field_unsets_setting() -> None:
    defaults = {**DEFAULTS, "max_length": 512}
    assert collect_changes(defaults, SCHEMAS, {"max_length": ""}) == {"max_length": None}


@pytest.mark.parametrize("key", sorted(SCHEMAS))
def test_examples_in_descriptions_are_valid_input(key: str) -> None:
    for example in re.findall(r"[\[{].*[\]}]", SCHEMAS[key].get("description", "")):
        read = read_setting(key, SCHEMAS[key], DEFAULTS[key], example)
        rows = {} if key == "train_files" else {"train_file": "-"}
        TrainingSpec.model_validate({"base_model": "-", **rows, key: read})


def test_description_of_columns_has_example() -> None:
    assert '{"prompt": "question"' in SCHEMAS["columns"]["description"]


def test_invalid_json_raises_with_hint() -> None:
    with pytest.raises(ValueError, match=r"^Columns is not JSON.*double quotes"):
        collect({"columns": "{'prompt': 'question'}"})


@pytest.mark.parametrize("typed", ["six", "1_000", "nan", "NaN", "true", "null", '"64"'])
def test_text_that_is_no_number_is_sent_unchanged(typed: str) -> None:
    assert collect({"max_length": typed}) == {"max_length": typed}


def test_settings_of_task_are_fields_of_their_own() -> None:
    settings = {"epochs": 3, "task_settings": {"labels": ["hot", "cold"], "problem_type": "auto"}}
    shown = flatten(settings)
    assert shown["task_settings.labels"] == ["hot", "cold"]
    assert label_setting("task_settings.labels") == "Labels"
    assert unflatten(shown) == settings
    assert unflatten({"epochs": 3}) == {"epochs": 3}
