"""The settings of a run as HTML: all in groups, with those that differ from the defaults marked."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from apps.client.client import ApiClient
from apps.client.errors import RequestRefusedError
from apps.client.resources import Defaults, Job
from apps.ui import markup
from apps.ui.fine_tune.setting_fields import flatten, flatten_schemas, label_setting

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Task and result": ("task", "adapter", "quantization", "loop", "keep", "best_"),
    "Data": (
        *("format", "columns", "text_rows", "max_length", "overlong", "learned_turns", "reasoning"),
        *("template_arguments", "shuffle_window", "max_rows", "validation_", "batch_layout"),
    ),
    "Optimisation": (
        *("epochs", "max_steps", "learning_rate", "lr_", "warmup_", "weight_decay", "adam_"),
        *("max_grad_norm", "micro_batch_", "gradient_", "seed", "evaluate_", "early_stopping"),
    ),
}
"""The beginnings of the names in each group; the last group has all others."""
REST = "Memory and cluster"
NOT_SET = "not set"


class Setting(NamedTuple):
    """A setting of a run, and its default for the model and the task."""

    key: str
    value: object
    default: object = None
    is_changed: bool = False
    description: str = ""


async def read_defaults(client: ApiClient, job: Job) -> Defaults | None:
    """Return the defaults for the model and task of a run; None if its model is gone.

    Raises `ApiClientError`.
    """
    task = job.training.get("task")
    try:
        return await client.jobs.get_defaults(job.model, task if isinstance(task, str) else None)
    except RequestRefusedError as exc:
        if exc.status not in (400, 404):
            raise
        return None


def list_settings(job: Job, defaults: Defaults | None) -> list[Setting]:
    """Return the settings of a run in the order of its record; unused ones are left out."""
    before = flatten(defaults.training) if defaults else {}
    schemas = flatten_schemas(defaults.schemas) if defaults else {}
    return [
        Setting(
            key,
            value,
            before.get(key),
            is_changed=key in before and before[key] != value,
            description=str(schemas.get(key, {}).get("description", "")),
        )
        for key, value in flatten(job.training).items()
        if key in before or not _is_unset(value)
    ]


def render_settings(job: Job, defaults: Defaults | None) -> str:
    """Render all settings of a run with a field that filters them; empty without settings."""
    settings = list_settings(job, defaults)
    if not settings:
        return ""
    num_changed = sum(setting.is_changed for setting in settings)
    if defaults is None:
        summary = f"The defaults of {escape(job.model)} are not known any more."
    else:
        summary = f"{num_changed} of {len(settings)} settings changed from the defaults."
    groups: dict[str, list[Setting]] = {name: [] for name in (*GROUPS, REST)}
    for setting in settings:
        groups[_find_group(setting.key)].append(setting)
    tables = "".join(_render_group(name, members) for name, members in groups.items() if members)
    only = (
        '<label><input type="checkbox" id="changed-only"> Changed only</label>'
        if num_changed
        else ""
    )
    return (
        f'<h3>Settings</h3><p class="ts-muted">{summary}</p><div class="ts-toolbar">'
        '<input type="search" id="settings-search" placeholder="Find a setting" '
        f'aria-label="Find a setting">{only}</div>{tables}'
    )


def _find_group(key: str) -> str:
    return next((name for name, starts in GROUPS.items() if key.startswith(starts)), REST)


def _render_group(name: str, settings: Sequence[Setting]) -> str:
    rows = "".join(_render_setting(setting) for setting in settings)
    return (
        f'<table class="ts-settings"><caption>{name}</caption><thead class="ts-sr"><tr>'
        '<th scope="col">Setting</th><th scope="col">Value</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _render_setting(setting: Setting) -> str:
    label = label_setting(setting.key)
    changed, default = "", ""
    if setting.is_changed:
        changed = ' class="ts-changed" data-changed'
        default = f' <span class="ts-muted">default {render_value(setting.default)}</span>'
    return (
        f'<tr{changed} data-text="{escape(f"{label} {setting.key}".lower())}">'
        f'<th scope="row" title="{escape(setting.description)}">{escape(label)}</th>'
        f"<td>{render_value(setting.value)}{default}</td></tr>"
    )


def render_value(value: object) -> str:
    """Render a value; those of a spec are the same in every language."""
    text = write_setting(value)
    return escape(text) if isinstance(value, bool) or text == NOT_SET else markup.keep(text)


def write_setting(value: object) -> str:
    """Return a value as text, lists and objects as JSON."""
    if _is_unset(value):
        return NOT_SET
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_unset(value: object) -> bool:
    return value is None or value == "" or value in ([], {}, ())
