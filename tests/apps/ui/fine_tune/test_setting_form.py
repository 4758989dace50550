"""The form of the settings: what its fields show, and what is read back from them."""

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from apps.ui.fine_tune.setting_fields import FieldError
from apps.ui.fine_tune.setting_form import GROUP_NAMES, SettingForm
from tests.apps.stub_api import StubApi, ask
from training.settings.setting_groups import SETTING_GROUPS
from training.spec import TrainingSpec

SCHEMAS = TrainingSpec.model_json_schema()["properties"]
DEFAULTS: dict[str, Any] = {
    "model": "base",
    "task": "causal_lm",
    "tasks": ["causal_lm", "sequence_classification"],
    "training": json.loads(
        TrainingSpec.model_validate({"base_model": "-", "train_file": "-"}).model_dump_json()
    ),
    "schema": SCHEMAS,
    "presets": {"quick": {"epochs": 1}},
    "preset_descriptions": {"quick": "Fast & small"},
}
FORM = SettingForm(DEFAULTS)


class Fields(HTMLParser):
    """The fields of a form, read as the script of the page reads them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.values: dict[str, Any] = {}
        self.kinds: dict[str, str] = {}
        self.defaults: dict[str, Any] = {}
        self.shown: dict[str, Any] = {}
        self.attributes: dict[str, dict[str, str | None]] = {}
        self._key = ""
        self._is_text = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if "data-key" in given:
            self._key = str(given["data-key"])
            self.defaults[self._key] = json.loads(str(given["data-default"]))
            self.shown[self._key] = json.loads(str(given["data-shown"]))
        if not self._key:
            return
        if tag in ("input", "select", "textarea"):
            self.kinds[self._key] = given.get("type") or tag
            self.attributes[self._key] = given
        if tag == "input":
            self.values[self._key] = self._read_input(given)
        elif tag == "option" and "selected" in given:
            self.values[self._key] = json.loads(str(given["value"]))
        elif tag == "textarea":
            self.values[self._key] = ""
            self._is_text = True

    @staticmethod
    def _read_input(given: dict[str, str | None]) -> Any:
        if given["type"] == "checkbox":
            return "checked" in given
        text = given["value"] or ""
        return json.loads(text) if given["type"] == "number" and text else text

    def handle_endtag(self, tag: str) -> None:
        self._is_text = self._is_text and tag != "textarea"

    def handle_data(self, data: str) -> None:
        if self._is_text:
            self.values[self._key] += data.removeprefix("\n")


def test_unchanged_fields_are_no_changes() -> None:
    """For every type of value, the page reads back the same value that it shows."""
    fields = Fields(FORM.render({}))
    assert fields.values.keys() == FORM.schemas.keys()
    assert FORM.has_fields(fields.values)
    assert FORM.plan(fields.values) == {}
    assert fields.values == fields.defaults == fields.shown
    changed = {**fields.values, "columns": '{"prompt": "q"}', "adam_betas": "[0.9, 0.99]"}
    assert FORM.plan(changed) == {"columns": {"prompt": "q"}, "adam_betas": [0.9, 0.99]}


def test_entered_values_are_shown_and_kept() -> None:
    entered = {
        "epochs": 7,
        "columns": {"prompt": '<b> "quoted"'},
        "strategy": "ddp",
        "zero_stage": 2,
        "offload_optimizer": True,
        "max_length": "</input>",
        "task_settings.labels": ["of", "another", "task"],
    }
    html = FORM.render(entered)
    values = Fields(html).values
    own = {key: value for key, value in entered.items() if key in FORM.schemas}
    shown = {**own, "columns": json.dumps(entered["columns"])}
    assert {key: values[key] for key in own} == shown
    assert "<b>" not in html.replace("Changed only <b ", "")
    assert Fields(html).shown == Fields(FORM.render({})).values


def test_fields_of_preset_are_changes() -> None:
    form = SettingForm(DEFAULTS, "quick")
    fields = Fields(form.render({}))
    assert (fields.values["epochs"], fields.defaults["epochs"]) == (1, 3)
    assert form.plan(fields.values) == {"epochs": 1}
    assert fields.shown == fields.values
    assert ">Fast &amp; small<" in form.render_preset()
    assert FORM.render_preset() == ""


def test_unknown_preset_shows_defaults() -> None:
    form = SettingForm({**DEFAULTS, "presets": {}}, "quick")
    assert (form.chosen, list(form.presets)) == ("balanced", ["balanced"])
    assert form.shown == form.values


def test_fields_of_another_form_are_not_those_of_this_one() -> None:
    values = Fields(FORM.render({})).values
    assert not FORM.has_fields({"epochs": 3})
    assert not FORM.has_fields({**values, "another": 1})


def test_field_without_a_value_names_its_setting() -> None:
    values = Fields(FORM.render({})).values
    with pytest.raises(FieldError, match="Epochs is empty") as caught:
        FORM.plan({**values, "epochs": None})
    assert caught.value.key == "epochs"


def test_each_type_of_setting_has_its_field(api: StubApi) -> None:
    found = ask(api, lambda client: client.jobs.get_defaults("base", "sequence_classification"))
    form = SettingForm(found.model_dump(by_alias=True))
    html = form.render({})
    assert Fields(html).kinds == {
        "epochs": "number",
        "learning_rate": "number",
        "max_length": "text",
        "precision": "select",
        "columns": "textarea",
        "adapter": "textarea",
        "offload_optimizer": "checkbox",
        "wall_clock_breakdown": "checkbox",
        "warmup_ratio": "number",
        "task_settings.problem_type": "select",
        "task_settings.labels": "textarea",
    }
    assert 'id="setting-problem-type"' in html
    assert 'id="setting-learning-rate"' in html


def test_inputs_have_labels_and_descriptions() -> None:
    html = FORM.render({})
    ids = set(re.findall(r' id="([^"]+)"', html))
    for key, attributes in Fields(html).attributes.items():
        assert attributes["aria-describedby"] in ids, key
        is_wrapped = attributes.get("type") == "checkbox"
        assert is_wrapped or f'<label for="{attributes["id"]}">' in html, key


def test_each_group_of_settings_has_a_title() -> None:
    assert list(GROUP_NAMES) == list(SETTING_GROUPS)
    html = SettingForm(
        {
            **DEFAULTS,
            "schema": {"epochs": {}, "seed": {"group": "new"}, "format": SCHEMAS["format"]},
        }
    ).render({})
    assert re.findall("<h2>([^<]*)</h2>", html) == ["Data", "New"]  # of a later version of the API


def test_row_settings_are_those_that_affect_the_preview() -> None:
    entered = {"epochs": 5, "max_length": "64", "task_settings.labels": ["a"]}
    assert FORM.plan_rows(entered) == {"max_length": 64}
    other = {**DEFAULTS, "task": "sequence_classification"}
    assert SettingForm(other).plan_rows({}) == {"task": "sequence_classification"}
