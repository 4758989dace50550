"""The settings of a fine-tune on the page, its name, and the bar that starts it.

The fields are built again for another model, task or preset, and for settings that are filled in.
What the visitor has entered stays; while they are built, nothing can be entered. The script
`settings.js` searches them, shows problems at them, and asks for a check when a visitor pauses.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr
from gradio.components import Component

from apps.client.errors import ApiClientError
from apps.client.resources import Defaults, Estimate
from apps.ui.fine_tune.setting_export import SettingExport
from apps.ui.fine_tune.setting_fields import (
    FieldError,
    build_setting,
    collect_changes,
    flatten,
    flatten_schemas,
    is_entered,
    select_entered,
    unflatten,
)
from apps.ui.fine_tune.setting_problems import (
    NAME_KEY,
    NAME_LABEL,
    Verdict,
    explain_field_error,
    explain_refusal,
)
from apps.ui.fine_tune.setting_search import (
    GROUP_NAMES,
    render_group,
    render_presets,
    render_toolbar,
)
from apps.ui.fine_tune.start_bar import REASON, render_estimate
from apps.ui.frame.assets import link_script

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
_PLACE = "training-settings"
CLOSE_FIELDS_JS = f"""() => {{
  const fields = document.getElementById("{_PLACE}");
  if (fields) fields.inert = true;
  window.tuneserveSettings?.hold("fields");
}}"""
OPEN_FIELDS_JS = f"""
  const fields = document.getElementById("{_PLACE}");
  if (fields) fields.inert = false;
  window.tuneserveSettings?.begin();
"""
HOLD_JS = """() => { window.tuneserveSettings?.hold("data"); }"""
RELEASE_JS = """() => { window.tuneserveSettings?.release("data"); }"""
"""The settings of the chosen data are known."""
CHANGED_JS = "() => { window.tuneserveSettings?.change(); }"
SHOW_VERDICT_JS = "(verdict) => { window.tuneserveSettings?.show(verdict); }"
GO_TO_RUN_JS = """(run) => {
  if (run) window.location.href = "./runs?run=" + encodeURIComponent(run);
}"""

ShowPreview = Callable[
    [str | None, str | None, Mapping[str, Any], Mapping[str, Any]], Awaitable[str]
]


@dataclass(frozen=True)
class JobActions:
    """What the page asks the API about a job: model, file, name, and the changed settings.

    `start` returns the job's id, `name_file` the name of a file. All but `show_preview` raise
    `ApiClientError`.
    """

    start: Callable[[str, str, str, Mapping[str, Any]], Awaitable[str]]
    estimate: Callable[[str, str, str, Mapping[str, Any]], Awaitable[Estimate]]
    name_file: Callable[[str], Awaitable[str]]
    show_preview: ShowPreview


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
        actions: JobActions,
    ) -> None:
        self._actions = actions
        self._defaults = defaults.model_dump(by_alias=True)
        self._values = flatten(defaults.training)
        presets = {
            name: defaults.presets[name] for name in PRESET_NAMES if name in defaults.presets
        }
        presets = {**presets, NO_PRESET: {}} if NO_PRESET not in presets else presets
        chosen = preset if preset in presets else NO_PRESET
        self._shown = {**self._values, **flatten(presets[chosen])}
        self._schemas = flatten_schemas(defaults.schemas)
        self._keys = [key for key in self._schemas if key in self._values and key != "task"]
        self._kept = select_entered(entered, {key: self._schemas[key] for key in self._keys})
        self.fields: dict[str, Component] = {}
        with gr.Column(elem_id=_PLACE):
            self.preset = gr.Radio(
                [(PRESET_NAMES[name], name) for name in presets],
                value=chosen,
                label="Preset",
                elem_id="preset",
                interactive=True,
                visible=len(presets) > 1,
            )
            gr.HTML(render_presets(chosen, defaults.preset_descriptions), elem_id="preset-note")
            offered = {key: self._schemas[key] for key in self._keys}
            gr.HTML(render_toolbar(offered, self._values, {**self._shown, **self._kept}))
            with gr.Row(elem_classes="ts-fields"):
                self._build_fields(key for key in MAIN_SETTINGS if key in self._keys)
            self.more = gr.Accordion("More settings", open=is_more_open, elem_id="more-settings")
            with self.more:
                self._build_groups()
            self.export = SettingExport(self.plan, defaults)
            self._build_bar(entered)
        gr.HTML("", head=link_script("settings.js"), js_on_load=OPEN_FIELDS_JS)
        self.row_keys = [key for key in ROW_SETTINGS if key in self.fields]

    def _build_groups(self) -> None:
        """Build the fields of all but the main settings, group by group."""
        groups: dict[str, list[str]] = {name: [] for name in GROUP_NAMES}
        for key in self._keys:
            if key not in MAIN_SETTINGS:
                name = "task" if "." in key else str(self._schemas[key].get("group", "other"))
                groups.setdefault(name, []).append(key)
        for name, keys in groups.items():
            if keys:
                with gr.Column(elem_classes="ts-group", elem_id=f"group-{name}"):
                    gr.HTML(render_group(name))
                    with gr.Row(elem_classes="ts-fields"):
                        self._build_fields(keys)

    def _build_fields(self, keys: Any) -> None:
        for key in keys:
            value = self._kept.get(key, self._shown[key])
            self.fields[key] = build_setting(key, self._schemas[key], value)

    def _build_bar(self, entered: Entered) -> None:
        with gr.Row(elem_id="start-bar", equal_height=False):
            self.name = gr.Textbox(
                entered.get(NAME_KEY),
                label=NAME_LABEL,
                placeholder="letters, digits, - and _",
                elem_id="run-name",
                interactive=True,
                min_width=180,
                scale=2,
            )
            with gr.Column(elem_id="start-text", min_width=200, scale=6):
                self.estimate = gr.HTML("", elem_id="estimate")
                gr.HTML(REASON, elem_id="start-reason-place")
            self.button = gr.Button(
                "Start", variant="primary", elem_id="start-button", min_width=120, scale=1
            )
            self.verdict = gr.Textbox(visible="hidden", elem_id="settings-verdict")
            self.check_button = gr.Button("Check", visible="hidden", elem_id="check-settings")

    def keep(self, entered: Entered, name: str, *values: Any) -> Entered:
        """Return what is entered now, with what was entered for other tasks."""
        shown = dict(zip(self.fields, values, strict=True))
        others = {key: value for key, value in entered.items() if key not in shown}
        changed = {
            key: value for key, value in shown.items() if is_entered(self._shown[key], value)
        }
        return {**others, **changed, NAME_KEY: name}

    def plan(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """Return the changed settings as a job has them; raises `FieldError`."""
        entered = dict(zip(self.fields, values, strict=True))
        changes = unflatten(collect_changes(self._values, self._schemas, entered))
        return changes | name_task(self._defaults)

    async def check_settings(
        self, model: str | None, task: str | None, data: str | None, name: str, *values: Any
    ) -> tuple[str, Any]:
        """Return the verdict on a job with these settings, and what it will take."""
        if model != self._defaults["model"] or task != self._defaults["task"]:
            reason = "The settings of the chosen model and task are loading."
            return Verdict(reason=reason, is_early=True).to_json(), gr.skip()
        if not model or not data:
            return Verdict(reason="Choose a model and data first.").to_json(), ""
        try:
            found = await self._actions.estimate(model, data, name, self.plan(values))
        except FieldError as exc:
            return explain_field_error(exc).to_json(), ""
        except ApiClientError as exc:
            return explain_refusal(exc, self.fields).to_json(), ""
        return Verdict().to_json(), render_estimate(found)

    async def start(
        self, model: str | None, task: str | None, data: str | None, name: str, *values: Any
    ) -> tuple[str, Any]:
        """Create a job with the changed settings; return its id, or the verdict that refuses it.

        Raises `gr.Error` while the fields are those of another choice.
        """
        for kind, chosen in (("model", model), ("task", task)):
            if chosen != self._defaults[kind]:
                raise gr.Error(
                    f"These are the settings of the {kind} {escape(self._defaults[kind])}. Start "
                    f"when those of the chosen {kind} are shown, or choose it again.",
                    print_exception=False,
                )
        if not model or not data:
            raise gr.Error("Choose a model and data first.", print_exception=False)
        try:
            run = await self._actions.start(model, data, name, self.plan(values))
        except FieldError as exc:
            return "", explain_field_error(exc).to_json()
        except ApiClientError as exc:
            return "", explain_refusal(exc, self.fields).to_json()
        return run, gr.skip()

    async def update_preview(self, model: str | None, data: str | None, *values: Any) -> str:
        """Return the preview with the entered settings."""
        entered = dict(zip(self.row_keys, values, strict=True))
        return await self._actions.show_preview(model, data, entered, self._defaults)
