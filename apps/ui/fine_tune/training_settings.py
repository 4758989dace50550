"""The settings of a fine-tune on the page, its name, and the button that starts it.

The fields are built again for another model, task or preset. What the visitor has entered stays;
while they are built, nothing can be entered.
"""

from collections.abc import Awaitable, Callable, Mapping
from html import escape
from typing import Any

import gradio as gr
from gradio.components import Component

from apps.client.resources import Defaults
from apps.ui.fine_tune.setting_fields import (
    build_setting,
    collect_changes,
    flatten,
    flatten_schemas,
    is_entered,
    select_entered,
    unflatten,
)

Entered = Mapping[str, Any]
"""What fields contain that differs from what they showed at first, by flat name."""

MAIN_SETTINGS = ("epochs", "learning_rate", "micro_batch_tokens", "num_workers")
ROW_SETTINGS = (
    *("format", "columns", "text_rows", "max_length", "overlong", "max_rows"),
    "micro_batch_tokens",
    "task_settings.loss",
)
NO_PRESET = ""
PRESET_NAMES = {NO_PRESET: "All weights", "adapter": "An adapter (LoRA)"}
_NAME = "suffix"  # beside the settings in what was entered
_PLACE = "training-settings"
CLOSE_FIELDS_JS = f"""() => {{
  const fields = document.getElementById("{_PLACE}");
  if (fields) fields.inert = true;
}}"""
OPEN_FIELDS_JS = f"""
  const fields = document.getElementById("{_PLACE}");
  if (fields) fields.inert = false;
"""
GO_TO_RUN_JS = """(run) => {
  if (run) window.location.href = "./runs?run=" + encodeURIComponent(run);
}"""

Start = Callable[[str | None, str | None, str, Mapping[str, Any]], Awaitable[str]]
ShowPreview = Callable[
    [str | None, str | None, Mapping[str, Any], Mapping[str, Any]], Awaitable[str]
]


def name_task(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task as a setting; empty for the one that a job has by default."""
    task = defaults["task"]
    return {} if task == next(iter(defaults["tasks"]), None) else {"task": task}


def collect_row_settings(defaults: Mapping[str, Any], entered: Entered) -> dict[str, object]:
    """Return the entered settings that affect the preview; raises `ValueError` as `read_setting`.

    `defaults` are those of a model and a task; what was entered for another task is left out.
    """
    values, schemas = flatten(defaults["training"]), flatten_schemas(defaults["schema"])
    kept = select_entered(entered, {key: schemas[key] for key in ROW_SETTINGS if key in schemas})
    return unflatten(collect_changes(values, schemas, kept)) | name_task(defaults)


class TrainingSettings:
    """The fields of a model's settings, the name and the start button, and their event handlers."""

    def __init__(
        self,
        defaults: Defaults,
        entered: Entered,
        preset: str = NO_PRESET,
        *,
        is_more_open: bool,
        start: Start,
        show_preview: ShowPreview,
    ) -> None:
        self._start = start
        self._show_preview = show_preview
        self._defaults = defaults.model_dump(by_alias=True)
        self._values = flatten(defaults.training)
        presets = {NO_PRESET: {}, **defaults.presets}
        chosen = preset if preset in presets else NO_PRESET
        self._shown = {**self._values, **flatten(presets[chosen])}
        self._schemas = flatten_schemas(defaults.schemas)
        keys = [key for key in self._values if key in self._schemas and key != "task"]
        more = [key for key in keys if key not in MAIN_SETTINGS]
        kept = select_entered(entered, {key: self._schemas[key] for key in keys})
        with gr.Column(elem_id=_PLACE):
            self.preset = gr.Radio(
                [(PRESET_NAMES.get(name, name), name) for name in presets],
                value=chosen,
                label="What is learned",
                elem_id="preset",
                interactive=True,
                visible=len(presets) > 1,
            )
            with gr.Row():
                self.fields = {key: self._build(key, kept) for key in MAIN_SETTINGS if key in keys}
            self.more = gr.Accordion("More settings", open=is_more_open, elem_id="more-settings")
            with self.more, gr.Row():
                self.fields |= {key: self._build(key, kept) for key in more}
            with gr.Row(equal_height=False):
                self.name = gr.Textbox(
                    entered.get(_NAME),
                    label="Name of the result",
                    placeholder="letters, digits, - and _",
                    elem_id="run-name",
                    interactive=True,
                    scale=3,
                )
                self.button = gr.Button("Start", variant="primary", elem_id="start-button", scale=2)
        gr.HTML("", js_on_load=OPEN_FIELDS_JS)
        self.row_keys = [key for key in ROW_SETTINGS if key in self.fields]

    def _build(self, key: str, entered: Entered) -> Component:
        return build_setting(key, self._schemas[key], entered.get(key, self._shown[key]))

    def keep(self, entered: Entered, name: str, *values: Any) -> Entered:
        """Return what is entered now, with what was entered for other tasks."""
        shown = dict(zip(self.fields, values, strict=True))
        others = {key: value for key, value in entered.items() if key not in shown}
        changed = {
            key: value for key, value in shown.items() if is_entered(self._shown[key], value)
        }
        return {**others, **changed, _NAME: name}

    async def start(
        self, model: str | None, task: str | None, data: str | None, name: str, *values: Any
    ) -> str:
        """Create a job with the changed settings and return its id; raises `gr.Error`."""
        for kind, chosen in (("model", model), ("task", task)):
            if chosen != self._defaults[kind]:
                raise gr.Error(
                    f"These are the settings of the {kind} {self._defaults[kind]}. Start when "
                    f"those of the chosen {kind} are shown, or choose it again.",
                    print_exception=False,
                )
        entered = dict(zip(self.fields, values, strict=True))
        try:
            changes = unflatten(collect_changes(self._values, self._schemas, entered))
        except ValueError as exc:
            raise gr.Error(escape(str(exc)), duration=None, print_exception=False) from exc
        return await self._start(model, data, name, changes | name_task(self._defaults))

    async def update_preview(self, model: str | None, data: str | None, *values: Any) -> str:
        """Return the preview with the entered settings."""
        entered = dict(zip(self.row_keys, values, strict=True))
        return await self._show_preview(model, data, entered, self._defaults)


class TrainingSettingsPlace:
    """Where the settings are built, and what stays when they are built again."""

    def __init__(self, start: Start, show_preview: ShowPreview) -> None:
        self._start = start
        self._show_preview = show_preview
        self.defaults: gr.State = gr.State()  # of the chosen model and task
        self.entered: gr.State = gr.State({})
        self._preset = gr.State(NO_PRESET)
        self._is_more_open = gr.State(False)
        self.started_run = gr.Textbox(visible="hidden", elem_id="started-run", show_label=False)

    def build(self, model: Component, task: Component, data: Component, preview: Component) -> None:
        """Lay out the settings inside the current Blocks, again for other defaults or a preset."""
        changes = [self.defaults.change, self._preset.change]
        gr.on(changes, None, None, None, js=CLOSE_FIELDS_JS)

        @gr.render(  # type: ignore[untyped-decorator] # gradio does not annotate it
            inputs=[self.defaults, self.entered, self._preset, self._is_more_open],
            triggers=changes,
            show_progress="hidden",
        )
        def render_settings(
            defaults: Mapping[str, object] | None, entered: Entered, preset: str, is_more_open: bool
        ) -> None:
            if defaults is not None:
                settings = TrainingSettings(
                    Defaults.model_validate(defaults),
                    entered,
                    preset,
                    is_more_open=is_more_open,
                    start=self._start,
                    show_preview=self._show_preview,
                )
                self._listen(settings, model, task, data, preview)

    def _listen(
        self,
        settings: TrainingSettings,
        model: Component,
        task: Component,
        data: Component,
        preview: Component,
    ) -> None:
        fields = list(settings.fields.values())
        gr.on(
            [field.input for field in (settings.name, *fields)],  # type: ignore[attr-defined]
            settings.keep,
            [self.entered, settings.name, *fields],
            self.entered,
            trigger_mode="always_last",
            show_progress="hidden",
            api_visibility="private",
        )
        settings.preset.input(
            lambda preset: preset,
            settings.preset,
            self._preset,
            show_progress="hidden",
            api_visibility="private",
        )
        settings.more.expand(lambda: True, None, self._is_more_open, api_visibility="private")
        settings.more.collapse(lambda: False, None, self._is_more_open, api_visibility="private")
        if settings.row_keys:
            row_fields = [settings.fields[key] for key in settings.row_keys]
            gr.on(
                [watch_field(field) for field in row_fields],
                settings.update_preview,
                [model, data, *row_fields],
                preview,
                show_progress="minimal",
                show_progress_on=preview,
                api_visibility="private",
            )
        settings.button.click(
            settings.start,
            [model, task, data, settings.name, *fields],
            self.started_run,
            show_progress="minimal",
            show_progress_on=settings.button,
            api_visibility="private",
        ).success(None, self.started_run, js=GO_TO_RUN_JS)


def watch_field(field: Component) -> Any:
    """Return the event of a new value: `input` for a dropdown, `blur` for other fields."""
    return field.input if isinstance(field, gr.Dropdown) else field.blur  # type: ignore[attr-defined]
