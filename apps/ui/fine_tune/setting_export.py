"""Settings as YAML, curl, Python or a command; and settings that are filled in from YAML."""

from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr

from apps.client.resources import Defaults
from apps.ui import markup
from apps.ui.fine_tune.setting_fields import flatten
from apps.ui.fine_tune.setting_texts import (
    PlannedJob,
    read_spec,
    write_command,
    write_curl,
    write_python,
    write_spec,
)

FORMS = (("YAML", "yaml"), ("curl", "curl"), ("Python", "python"), ("Terminal", "command"))
ADD_ORIGIN_JS = "(...values) => { values[0] = location.origin; return values; }"
"""Set the first input to the address of the page."""

Plan = Callable[[tuple[Any, ...]], dict[str, Any]]


class SettingExport:
    """The part of the page that exports and imports settings."""

    def __init__(self, plan: Plan, defaults: Defaults) -> None:
        self._plan = plan
        self._defaults = defaults
        with gr.Accordion(
            "Copy, export and import", open=False, elem_id="settings-export"
        ) as self.place:
            self.form = gr.Radio(
                FORMS,
                value="yaml",
                label="These settings as",
                elem_id="export-form",
                interactive=True,
            )
            self.text = gr.Textbox(
                label="Text to copy",
                lines=6,
                max_lines=24,
                interactive=False,
                buttons=["copy"],
                elem_id="export-text",
            )
            self.spec = gr.Textbox(
                label="Settings from YAML or JSON",
                info="Settings that it does not name get their defaults. The model and the data "
                "stay as they are chosen above.",
                placeholder="epochs: 3\nlearning_rate: 0.0001",
                lines=4,
                elem_id="import-text",
                interactive=True,
            )
            self.note = gr.HTML("", visible=False, elem_id="import-note")
            self.button = gr.Button("Fill in these settings", size="sm", elem_id="import-button")
            self.origin = gr.Textbox(visible="hidden", elem_id="page-origin")
            self.refresh = gr.Button("Refresh", visible="hidden", elem_id="refresh-export")

    def write_text(self, form: str, job: PlannedJob, origin: str) -> str:
        """Write a job in one of the forms."""
        if form == "curl":
            return write_curl(job, origin)
        if form == "python":
            return write_python(job, origin)
        if form == "command":
            return write_command(job, origin)
        return write_spec(job, self._defaults.training, self._defaults.schemas)

    def plan_job(
        self, model: str, data: str, filename: str, name: str, values: tuple[Any, ...]
    ) -> PlannedJob:
        """Return the job as it would be created; raises `FieldError`."""
        return PlannedJob(model, data, filename, name.strip(), self._plan(values))

    def import_spec(self, text: str) -> tuple[Any, Any]:
        """Return a message, and what the fields contain after the import; None if it fails."""
        try:
            settings = read_spec(text, self._defaults.training, self._defaults.task)
            _check_task_settings(settings, self._defaults.training)
        except ValueError as exc:
            return gr.HTML(markup.render_notice(str(exc), "error"), visible=True), None
        return gr.HTML("", visible=False), list_changes(self._defaults, settings)


def list_changes(defaults: Defaults, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the defaults by their flat names, as entered."""
    known = flatten(defaults.training)
    given = flatten(settings)
    return {key: value for key, value in given.items() if key in known and value != known[key]}


def _check_task_settings(settings: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raise `ValueError` for settings of the task that it does not have."""
    own, possible = settings.get("task_settings") or {}, known.get("task_settings")
    if not isinstance(own, Mapping):
        raise ValueError("Expected a mapping as task_settings, as in: {labels: [a, b]}")
    if unknown := [name for name in own if name not in (possible or {})]:
        names = ", ".join(repr(str(name)[:60]) for name in unknown[:5])
        raise ValueError(f"These are no settings of this task: {names}.")
