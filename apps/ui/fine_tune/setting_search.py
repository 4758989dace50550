"""The parts of the settings that the script `settings.js` uses: search, groups, presets."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from apps.ui.fine_tune.setting_fields import find_elem_id, write_value

GROUP_NAMES = {
    "task": ("Task", "What is particular to what the model learns."),
    "data": ("Data", "How rows are read, and which of their tokens are learned."),
    "optimizer": ("Optimizer", "How long the model learns, and how large its steps are."),
    "adapter": ("Adapter", "Learn a small addition to the model in place of all its weights."),
    "memory": ("Batches and memory", "What a worker computes at once, and what it keeps."),
    "cluster": ("Cluster", "How the work is spread over workers, CPUs and GPUs."),
    "evaluation": ("Evaluation", "Rows that are held out to measure the model."),
    "result": ("Checkpoints and result", "What is saved, and which state becomes the model."),
    "loop": ("Own training function", "A function that the operator allows."),
}
"""Title and explanation of each group of settings, in the order in which they are shown."""


def render_group(name: str) -> str:
    """Render the heading of a group of settings."""
    title, explanation = GROUP_NAMES.get(name, (name.capitalize(), ""))
    return (
        f'<div class="ts-group-head"><h3>{escape(title)}</h3>'
        f'<p class="ts-muted">{escape(explanation)}</p></div>'
    )


def render_presets(chosen: str, descriptions: Mapping[str, str]) -> str:
    """Render what the chosen preset is for."""
    text = descriptions.get(chosen, "")
    return f'<p class="ts-muted">{escape(text)}</p>' if text else ""


def render_toolbar(
    schemas: Mapping[str, Mapping[str, Any]],
    defaults: Mapping[str, Any],
    shown: Mapping[str, Any],
) -> str:
    """Render the search field and the switch to changed settings.

    It has the default of each field, with which the script compares the fields, and what each field
    shows at first: Gradio builds the fields of a closed accordion once it is opened.
    """
    data = "".join(
        f' data-{name}="{escape(_write_values(schemas, values))}"'
        for name, values in (("defaults", defaults), ("shown", shown))
    )
    return (
        f'<div id="settings-toolbar" role="search"{data}>'
        '<input type="search" id="settings-search" placeholder="Search the settings" '
        'aria-label="Search the settings" autocomplete="off" spellcheck="false">'
        '<label class="ts-changed-only"><input type="checkbox" id="settings-changed-only"> '
        'Changed only <b id="settings-num-changed"></b></label>'
        '<p id="settings-found" class="ts-muted" role="status"></p></div>'
    )


def _write_values(schemas: Mapping[str, Mapping[str, Any]], values: Mapping[str, Any]) -> str:
    written = {
        find_elem_id(key): _write_value(schemas[key], values[key])
        for key in schemas
        if key in values
    }
    return json.dumps(written)


def _write_value(schema: Mapping[str, Any], value: Any) -> Any:
    """Return a value as the script reads it from a field: a check box, a number, or text."""
    is_plain = schema.get("type") in ("boolean", "integer", "number")
    return value if is_plain else write_value(value) or ""
