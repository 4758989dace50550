"""The settings of a fine-tune as a form: rendered as HTML, and read back from the browser.

It is plain HTML: as fifty of Gradio's components it would take a browser more than a second. The
script `setting_form.js` searches it, shows problems at its fields, and sends what they contain.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from apps.ui import markup
from apps.ui.fine_tune.setting_fields import (
    collect_changes,
    find_elem_id,
    flatten,
    flatten_schemas,
    label_setting,
    list_kinds,
    select_entered,
    unflatten,
    write_value,
)

Entered = Mapping[str, Any]
"""What fields contain that differs from what they showed at first, by flat name."""

MAIN_SETTINGS = ("epochs", "learning_rate", "micro_batch_tokens", "num_workers")
ROW_SETTINGS = (
    *("format", "columns", "text_rows", "max_length", "overlong", "max_rows"),
    "micro_batch_tokens",
    "task_settings.loss",
)
NO_PRESET = "balanced"
PRESET_NAMES = {
    "quick": "Quick look",
    NO_PRESET: "Balanced",
    "thorough": "Thorough",
    "adapter": "Adapter (LoRA)",
}
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
_SHORT_KINDS = {"integer", "number", "string", "null"}


@dataclass(frozen=True)
class SettingForm:
    """The fields for a model and a task, as the API describes them, with the values of a preset.

    `defaults` is what the API returns for the model and the task, as plain data.
    """

    defaults: Mapping[str, Any]
    preset: str = NO_PRESET

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """The default of each setting, by flat name."""
        return flatten(self.defaults["training"])

    @cached_property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """The schema of each field, in the order in which the API names them."""
        schemas = flatten_schemas(self.defaults["schema"])
        return {
            key: schema for key, schema in schemas.items() if key in self.values and key != "task"
        }

    @cached_property
    def presets(self) -> dict[str, Mapping[str, Any]]:
        """The settings of each preset by its name; the defaults are always among them."""
        offered = self.defaults.get("presets") or {}
        return {
            name: offered.get(name, {})
            for name in PRESET_NAMES
            if name in offered or name == NO_PRESET
        }

    @cached_property
    def chosen(self) -> str:
        """The preset that is shown: the defaults if there is no such preset."""
        return self.preset if self.preset in self.presets else NO_PRESET

    @cached_property
    def shown(self) -> Mapping[str, Any]:
        """What fields show at first, by flat name."""
        return {**self.values, **flatten(self.presets[self.chosen])}

    def has_fields(self, fields: Mapping[str, Any]) -> bool:
        """Return whether these are the fields of this form."""
        return fields.keys() == self.schemas.keys()

    def plan(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the changed settings as a job has them; raises `FieldError`."""
        changes = unflatten(collect_changes(self.values, self.schemas, fields))
        return changes | name_task(self.defaults)

    def plan_rows(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the changed settings that affect the preview; raises `FieldError`.

        Fields of other settings, also of another task, are left out.
        """
        offered = {key: self.schemas[key] for key in ROW_SETTINGS if key in self.schemas}
        kept = select_entered(fields, offered)
        changes = unflatten(collect_changes(self.values, self.schemas, kept))
        return changes | name_task(self.defaults)

    def render(self, entered: Entered) -> str:
        """Render the search, the main fields, and the others in groups that can be opened."""
        contents = {**self.shown, **select_entered(entered, self.schemas)}
        groups = "".join(
            f'<div class="ts-group" id="group-{escape(name)}">{_render_group(name)}'
            f"{self._render_fields(keys, contents)}</div>"
            for name, keys in self._group().items()
        )
        main = self._render_fields((key for key in MAIN_SETTINGS if key in self.schemas), contents)
        return (
            f"<div data-form>{_TOOLBAR}{main}"
            '<details id="more-settings" class="ts-more">'
            f'<summary id="more-settings-title">More settings</summary>{groups}</details></div>'
        )

    def render_preset(self) -> str:
        """Render what the chosen preset is for."""
        text = (self.defaults.get("preset_descriptions") or {}).get(self.chosen, "")
        return f'<p class="ts-muted">{escape(text)}</p>' if text else ""

    def _group(self) -> dict[str, list[str]]:
        """Return the settings of each group that has some, but not the main ones."""
        groups: dict[str, list[str]] = {name: [] for name in GROUP_NAMES}
        for key, schema in self.schemas.items():
            if key not in MAIN_SETTINGS:
                name = "task" if "." in key else str(schema.get("group", "other"))
                groups.setdefault(name, []).append(key)
        return {name: keys for name, keys in groups.items() if keys}

    def _render_fields(self, keys: Iterable[str], contents: Mapping[str, Any]) -> str:
        fields = (
            render_field(key, self.schemas[key], self.values[key], self.shown[key], contents[key])
            for key in keys
        )
        return f'<div class="ts-fields">{"".join(fields)}</div>'


_TOOLBAR = (
    '<div id="settings-toolbar" role="search">'
    '<input type="search" id="settings-search" placeholder="Search the settings" '
    'aria-label="Search the settings" autocomplete="off" spellcheck="false">'
    '<label class="ts-changed-only"><input type="checkbox" id="settings-changed-only"> '
    'Changed only <b id="settings-num-changed"></b></label>'
    '<p id="settings-found" class="ts-muted" role="status"></p></div>'
)


def render_field(key: str, schema: Mapping[str, Any], default: Any, shown: Any, value: Any) -> str:
    """Render the field of a setting from its JSON schema; the API checks the ranges.

    It carries its default, and what it shows before something is entered, as the script reads them
    from a field: a check box, a number, or text.
    """
    elem_id = find_elem_id(key)
    label = escape(label_setting(key))
    description = schema.get("description", "")
    note = f'<small id="{elem_id}-note">{escape(description)}</small>' if description else ""
    attributes = f'id="{elem_id}-input"'
    if note:
        attributes += f' aria-describedby="{elem_id}-note"'
    if schema.get("type") == "boolean":
        checked = " checked" if value else ""
        content = f'<label><input type="checkbox" {attributes}{checked}> {label}</label>{note}'
    else:
        named = f'<label for="{elem_id}-input">{label}</label>{note}'
        content = f"{named}{_render_input(schema, default, value, attributes)}"
    rows = " data-rows" if key in ROW_SETTINGS else ""
    return (
        f'<div class="ts-setting" id="{elem_id}" data-key="{escape(key)}"{rows} '
        f'data-default="{_write_content(schema, default)}" '
        f'data-shown="{_write_content(schema, shown)}">{content}</div>'
    )


def _write_content(schema: Mapping[str, Any], value: Any) -> str:
    """Return what the script reads from the field of a value, as JSON in an attribute."""
    is_plain = "enum" in schema or schema.get("type") in ("boolean", "integer", "number")
    return escape(json.dumps(value if is_plain else write_value(value) or ""))


def _render_input(schema: Mapping[str, Any], default: Any, value: Any, attributes: str) -> str:
    """Render what takes the value of a setting; options contain JSON, since some are numbers."""
    if "enum" in schema:
        choices = schema["enum"] if value in schema["enum"] else [value, *schema["enum"]]
        options = "".join(
            f'<option value="{escape(json.dumps(choice))}"{" selected" if choice == value else ""}>'
            f"{escape(str(choice))}</option>"
            for choice in choices
        )
        return f'<select class="{markup.NAMES}" {attributes}>{options}</select>'
    if schema.get("type") in ("integer", "number"):
        step = 1 if schema["type"] == "integer" or not default else default / 10
        shown = "" if value is None else escape(str(value))
        return f'<input type="number" step="{step}" value="{shown}" {attributes}>'
    text = escape(write_value(value) or "")
    attributes += ' placeholder="not set" autocomplete="off" spellcheck="false"'
    if list_kinds(schema) <= _SHORT_KINDS:
        return f'<input type="text" value="{text}" {attributes}>'
    return f'<textarea rows="1" {attributes}>\n{text}</textarea>'


def _render_group(name: str) -> str:
    """Render the heading of a group of settings."""
    title, explanation = GROUP_NAMES.get(name, (name.capitalize(), ""))
    return (
        f'<div class="ts-group-head"><h2>{escape(title)}</h2>'
        f'<p class="ts-muted">{escape(explanation)}</p></div>'
    )


def name_task(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task as a setting; empty for the one that a job has by default."""
    task = defaults["task"]
    return {} if task == next(iter(defaults["tasks"]), None) else {"task": task}
