"""Settings that are filled in from a spec: what differs from the defaults, or why they are not."""

import asyncio
from typing import Any

import gradio as gr
import pytest

from apps.client.resources import Defaults
from apps.ui.fine_tune.setting_export import SettingExport, list_changes
from apps.ui.fine_tune.setting_texts import PlannedJob

DEFAULTS = Defaults.model_validate(
    {
        "model": "base",
        "task": "sequence_classification",
        "training": {"epochs": 3, "columns": {}, "task_settings": {"labels": [], "kind": "auto"}},
        "schema": {"epochs": {"default": 3}, "columns": {}, "task_settings": {}},
    }
)


@pytest.fixture
def export() -> SettingExport:
    async def build() -> SettingExport:
        with gr.Blocks(analytics_enabled=False):
            return SettingExport(lambda values: {"epochs": values[0]}, DEFAULTS)

    return asyncio.run(build())  # without an event loop, Gradio would leave one open


def test_spec_is_filled_in_as_its_differences(export: SettingExport) -> None:
    text = "base_model: x\nepochs: 3\ncolumns: {text: t}\ntask_settings: {labels: [a, b]}"
    note, changes = export.import_spec(text)
    assert changes == {"columns": {"text": "t"}, "task_settings.labels": ["a", "b"]}
    assert not note.visible


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("task_settings: {colour: red}", "colour"),
        ("task_settings: 3", "mapping"),
        ("rate: 1", "rate"),
    ],
)
def test_faulty_spec_fills_in_nothing(export: SettingExport, text: str, named: str) -> None:
    note, changes = export.import_spec(text)
    assert changes is None
    assert note.visible
    assert named in note.value


def test_settings_of_another_version_are_ignored() -> None:
    assert list_changes(DEFAULTS, {"epochs": 4, "removed": 1, "task_settings": None}) == {
        "epochs": 4
    }


@pytest.mark.parametrize(
    ("form", "start"),
    [("yaml", "# python -m"), ("curl", "curl "), ("python", "import"), ("command", "tuneserve ")],
)
def test_each_form_has_the_settings(export: SettingExport, form: str, start: str) -> None:
    job: Any = export.plan_job("base", "file-1", "rows.csv", " mine ", (5,))
    assert job == PlannedJob("base", "file-1", "rows.csv", "mine", {"epochs": 5})
    text = export.write_text(form, job, "http://127.0.0.1:8000")
    assert text.startswith(start)
    assert "epochs" in text
