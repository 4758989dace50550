"""The search of settings has what the script compares: defaults, and what fields show at first."""

import json
import re
from html import unescape
from typing import Any

from apps.ui.fine_tune.setting_search import (
    GROUP_NAMES,
    render_group,
    render_presets,
    render_toolbar,
)
from training.settings.setting_groups import SETTING_GROUPS

SCHEMAS: dict[str, Any] = {
    "epochs": {"type": "integer"},
    "offload_optimizer": {"type": "boolean"},
    "columns": {"type": "object"},
    "max_length": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "task_settings.labels": {"type": "array"},
}


def read_values(html: str, name: str) -> Any:
    found = re.search(rf'data-{name}="([^"]*)"', html)
    assert found
    return json.loads(unescape(found.group(1)))


def test_toolbar_has_values_as_fields_show_them() -> None:
    defaults = {"epochs": 3, "offload_optimizer": False, "columns": {}, "max_length": None}
    defaults["task_settings.labels"] = []
    shown = {**defaults, "columns": {"text": '"<b>"'}, "max_length": 64}
    html = render_toolbar(SCHEMAS, defaults, shown)
    assert read_values(html, "defaults") == {
        "setting-epochs": 3,
        "setting-offload-optimizer": False,
        "setting-columns": "",
        "setting-max-length": "",
        "setting-labels": "",
    }
    assert read_values(html, "shown")["setting-columns"] == json.dumps({"text": '"<b>"'})
    assert read_values(html, "shown")["setting-max-length"] == "64"
    assert "<b>" not in html.partition('data-shown="')[2].partition('"')[0]


def test_each_group_of_settings_has_a_title() -> None:
    assert list(GROUP_NAMES) == list(SETTING_GROUPS)
    assert "<h3>Data</h3>" in render_group("data")
    assert "<h3>New</h3>" in render_group("new")  # of a later version of the API


def test_preset_is_described() -> None:
    assert ">Fast &amp; small<" in render_presets("quick", {"quick": "Fast & small"})
    assert render_presets("quick", {}) == ""
