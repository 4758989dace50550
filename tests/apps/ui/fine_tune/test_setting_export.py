"""Settings that are filled in from a spec: what differs from the defaults, or why they are not."""

from typing import Any

import pytest

from apps.ui.fine_tune.setting_export import list_changes, read_changes, write_text
from apps.ui.fine_tune.setting_texts import PlannedJob

DEFAULTS: dict[str, Any] = {
    "model": "base",
    "task": "sequence_classification",
    "training": {"epochs": 3, "columns": {}, "task_settings": {"labels": [], "kind": "auto"}},
    "schema": {"epochs": {"default": 3, "type": "integer"}, "columns": {}, "task_settings": {}},
}


def test_spec_is_filled_in_as_its_differences() -> None:
    text = "base_model: x\nepochs: 3\ncolumns: {text: t}\ntask_settings: {labels: [a, b]}"
    changes = read_changes(text, DEFAULTS)
    assert changes == {"columns": {"text": "t"}, "task_settings.labels": ["a", "b"]}


def test_numbers_that_yaml_reads_as_text_are_numbers() -> None:
    assert read_changes("epochs: 1e1", DEFAULTS) == {"epochs": 10}
    assert read_changes("epochs: 2.5", DEFAULTS) == {"epochs": 2.5}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("task_settings: {colour: red}", "colour"),
        ("task_settings: 3", "mapping"),
        ("rate: 1", "rate"),
        ("epochs: three", "epochs is 'three', expected a number"),
        ("epochs: [3]", "expected a number"),
    ],
)
def test_faulty_spec_is_refused(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read_changes(text, DEFAULTS)


def test_settings_of_another_version_are_ignored() -> None:
    assert list_changes(DEFAULTS, {"epochs": 4, "removed": 1, "task_settings": None}) == {
        "epochs": 4
    }


@pytest.mark.parametrize(
    ("form", "start"),
    [("yaml", "# python -m"), ("curl", "curl "), ("python", "import"), ("command", "tuneserve ")],
)
def test_each_form_has_the_settings(form: str, start: str) -> None:
    job = PlannedJob("base", "file-1", "rows.csv", "mine", {"epochs": 5})
    text = write_text(form, job, DEFAULTS, "http://127.0.0.1:8000")
    assert text.startswith(start)
    assert "epochs" in text
