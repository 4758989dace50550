"""The settings of a fine-tune as a form: rendered as HTML, and read back from the browser.

It is plain HTML: as fifty of Gradio's components it would take a browser more than a second. The
script `settings.js` searches it, shows problems at its fields, and sends what they contain.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from apps.ui import markup
from apps.ui.fine_tune.data.column_mapping import COLUMNS
from apps.ui.fine_tune.setting_fields import (
    collect_changes,
    find_elem_id,
    flatten,
    flatten_schemas,
    is_entered,
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


@dataclass(frozen=True, eq=False)  # Gradio hashes what a `gr.State` has
class SettingForm:
    """The fields for a model and a task, as the API describes them, with the values of a preset.

    `defaults` is what the API returns for the model and the task, as plain data. `data` is the id
    of the file whose columns are known, and `token` tells this form from others that were shown.
    """

    defaults: Mapping[str, Any]
    preset: str = NO_PRESET
    data: str | None = None
    token: str = ""

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

    @property
    def name(self) -> str:
        """What the browser returns with the fields, which tells forms apart."""
        return json.dumps([self.defaults["model"], self.defaults["task"], self.token])

    def is_for(self, model: str, task: str | None, data: str) -> bool:
        """Whether these are the settings of a model and a task, and fit the columns of a file."""
        own = (self.defaults["model"], self.defaults["task"], self.data)
        return own == (model, task, data)

    def read(self, sent: str) -> Mapping[str, Any] | None:
        """Return what the fields contain, as the browser sent it; None if it is another form."""
        try:
            content = json.loads(sent)
        except (ValueError, RecursionError):
            return None
        if not isinstance(content, dict) or content.get("form") != self.name:
            return None
        fields = content.get("fields")
        if not isinstance(fields, dict) or fields.keys() != self.schemas.keys():
            return None
        return fields

    def keep(self, entered: Entered, fields: Mapping[str, Any]) -> Entered:
        """Return what is entered now, with what was entered for other tasks."""
        others = {key: value for key, value in entered.items() if key not in self.schemas}
        changed = {
            key: value for key, value in fields.items() if is_entered(self.shown[key], value)
        }
        return {**others, **changed}

    def plan(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the changed settings as a job has them; raises `FieldError`."""
        changes = unflatten(collect_changes(self.values, self.schemas, fields))
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
            f'<div data-form="{escape(self.name)}">{_TOOLBAR}{main}'
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
            render_field(key, self.schemas[key], self.values[key], contents[key]) for key in keys
        )
        return f'<div class="ts-fields">{"".join(fields)}</div>'


def merge_fields(sent: str, form: SettingForm | None, columns: Any, entered: Entered) -> Entered:
    """Return what is entered, with what the fields contain.

    `columns` are those in the form. If others were chosen in the menus since, these stay.
    """
    fields = form.read(sent) if form else None
    if form is None or fields is None:
        return entered
    kept = form.keep(entered, fields)
    if columns == entered.get(COLUMNS):
        return kept
    chosen = {COLUMNS: entered[COLUMNS]} if COLUMNS in entered else {}
    return {**{key: value for key, value in kept.items() if key != COLUMNS}, **chosen}


def read_current(
    sent: str,
    form: SettingForm,
    columns: Any,
    entered: Entered,
    choice: tuple[str, str | None, str],
) -> Mapping[str, Any] | None:
    """Return what the fields contain; None unless they are those of a model, a task and data.

    `columns` are those in the form, which must be those that were chosen.
    """
    is_current = form.is_for(*choice) and columns == entered.get(COLUMNS)
    return form.read(sent) if is_current else None


_TOOLBAR = (
    '<div id="settings-toolbar" role="search">'
    '<input type="search" id="settings-search" placeholder="Search the settings" '
    'aria-label="Search the settings" autocomplete="off" spellcheck="false">'
    '<label class="ts-changed-only"><input type="checkbox" id="settings-changed-only"> '
    'Changed only <b id="settings-num-changed"></b></label>'
    '<p id="settings-found" class="ts-muted" role="status"></p></div>'
)


def render_field(key: str, schema: Mapping[str, Any], default: Any, value: Any) -> str:
    """Render the field of a setting from its JSON schema; the API checks the ranges.

    It carries its default as the script reads it from a field: a check box, a number, or text.
    """
    elem_id = find_elem_id(key)
    label = escape(label_setting(key))
    description = schema.get("description", "")
    note = f'<small id="{elem_id}-note">{escape(description)}</small>' if description else ""
    attributes = f'id="{elem_id}-input"'
    if note:
        attributes += f' aria-describedby="{elem_id}-note"'
    is_plain = "enum" in schema or schema.get("type") in ("boolean", "integer", "number")
    compared = default if is_plain else write_value(default) or ""
    if schema.get("type") == "boolean":
        checked = " checked" if value else ""
        content = f'<label><input type="checkbox" {attributes}{checked}> {label}</label>{note}'
    else:
        named = f'<label for="{elem_id}-input">{label}</label>{note}'
        content = f"{named}{_render_input(schema, default, value, attributes)}"
    rows = " data-rows" if key in ROW_SETTINGS else ""
    return (
        f'<div class="ts-setting" id="{elem_id}" data-key="{escape(key)}"{rows} '
        f'data-default="{escape(json.dumps(compared))}">{content}</div>'
    )


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


def collect_row_settings(defaults: Mapping[str, Any], entered: Entered) -> dict[str, object]:
    """Return the entered settings that affect the preview; raises `ValueError` as `read_setting`.

    `defaults` are those of a model and a task; what was entered for another task is left out.
    """
    form = SettingForm(defaults)
    offered = {key: form.schemas[key] for key in ROW_SETTINGS if key in form.schemas}
    kept = select_entered(entered, offered)
    return unflatten(collect_changes(form.values, form.schemas, kept)) | name_task(defaults)
