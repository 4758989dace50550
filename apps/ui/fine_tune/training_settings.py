"""The settings of a fine-tune on the page, its name, and the bar that starts it.

The form is rendered again for another model, task or preset, and for settings that are filled in;
what the visitor has entered stays. The script `settings.js` places it, because Gradio would change
the attributes of the fields that are there, and not what they contain. It asks for a check when a
visitor pauses, and sends what the fields contain as text of JSON.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any

import gradio as gr
from gradio.components import Component
from gradio.events import Dependency

from apps.client.errors import ApiClientError
from apps.client.resources import Estimate
from apps.ui import markup
from apps.ui.error_messages import describe_error
from apps.ui.events import LATEST, LATEST_SHOWN, QUIET
from apps.ui.fine_tune.data.column_mapping import COLUMNS, FileColumns
from apps.ui.fine_tune.setting_export import SettingExport, read_changes, write_text
from apps.ui.fine_tune.setting_fields import FieldError
from apps.ui.fine_tune.setting_form import (
    NO_PRESET,
    PRESET_NAMES,
    ROW_SETTINGS,
    Entered,
    SettingForm,
    merge_fields,
    read_current,
)
from apps.ui.fine_tune.setting_problems import (
    NAME_LABEL,
    Verdict,
    explain,
)
from apps.ui.fine_tune.setting_texts import PlannedJob
from apps.ui.fine_tune.start_bar import REASON, render_estimate
from apps.ui.frame.assets import link_script

_SCRIPT = "window.tuneserveSettings"
COLLECT_JS = f"(...sent) => {{ sent[0] = {_SCRIPT}.collect(); return sent; }}"
"""Send what the fields contain as the first input."""
COLLECT_WITH_ORIGIN_JS = f"""(...sent) => {{
  sent.splice(0, 2, {_SCRIPT}.collect(), location.origin);
  return sent;
}}"""
"""The same, and the address of the page as the second input."""
START_UPDATE_JS = f"""(...sent) => {{
  {_SCRIPT}?.startUpdate();
  sent[0] = {_SCRIPT}?.collect() ?? "";
  return sent;
}}"""
START_IMPORT_JS = f"(...sent) => {{ {_SCRIPT}?.startUpdate(); return sent; }}"
END_UPDATE_JS = f"() => {{ {_SCRIPT}?.endUpdate(); }}"
"""Mark when the form is asked for and when it has come."""
HOLD_JS = f"""() => {{ {_SCRIPT}?.hold("data"); }}"""
RELEASE_JS = f"""() => {{ {_SCRIPT}?.release("data"); }}"""
"""The settings of the chosen data are known."""
SHOW_FORM_JS = f"(html) => {{ {_SCRIPT}?.showForm(html); }}"
CHANGED_JS = f"() => {{ {_SCRIPT}?.change(); }}"
SHOW_VERDICT_JS = f"(verdict) => {{ {_SCRIPT}?.show(verdict); }}"
GO_TO_RUN_JS = """(run) => {
  if (run) window.location.href = "./runs?run=" + encodeURIComponent(run);
}"""
_LOADING = "The settings of the chosen model and task are loading."
_NO_SETTINGS = "There are no settings for this choice: choose it again, or reload the page."
_NO_CHOICE = "Choose a model and data first."

ShowPreview = Callable[
    [str | None, str | None, Mapping[str, Any], Mapping[str, Any] | None], Awaitable[str]
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


class TrainingSettings:
    """The form of the settings, the name and the start button, and their event handlers."""

    def __init__(self, actions: JobActions) -> None:
        self._actions = actions
        self.defaults: gr.State = gr.State()  # of the chosen model and task
        self.entered: gr.State = gr.State({})
        self._shown: gr.State = gr.State()  # the form on the page
        self._shown_columns: gr.State = gr.State()  # what it has from the menus of columns
        self.started_run = gr.Textbox(visible="hidden", elem_id="started-run", show_label=False)
        self._fields = gr.Textbox(visible="hidden", elem_id="setting-values", show_label=False)
        self.preset: gr.Radio
        self.name: gr.Textbox

    def build(self) -> None:
        """Lay out the components inside the current Blocks."""
        with gr.Column(elem_id="training-settings"):
            self.preset = gr.Radio(
                [(PRESET_NAMES[NO_PRESET], NO_PRESET)],
                value=NO_PRESET,
                label="Preset",
                elem_id="preset",
                interactive=True,
                visible=False,
            )
            self._preset_note = gr.HTML("", elem_id="preset-note")
            gr.HTML(
                '<div id="setting-form"></div>',
                head=link_script("settings.js"),
                js_on_load=f"{_SCRIPT}?.begin();",
            )
            self._form = gr.Textbox(visible="hidden", elem_id="rendered-form", show_label=False)
            self.export = SettingExport()
            with gr.Row(elem_id="start-bar", equal_height=False):
                self.name = gr.Textbox(
                    label=NAME_LABEL,
                    placeholder="letters, digits, - and _",
                    elem_id="run-name",
                    interactive=True,
                    min_width=180,
                    max_lines=1,
                    scale=2,
                )
                with gr.Column(elem_id="start-text", min_width=200, scale=6):
                    self._estimate = gr.HTML("", elem_id="estimate")
                    gr.HTML(REASON, elem_id="start-reason-place")
                self._button = gr.Button(
                    "Start",
                    variant="primary",
                    elem_id="start-button",
                    min_width=120,
                    scale=1,
                )
            self._verdict = gr.Textbox(visible="hidden", elem_id="settings-verdict")
            self._check = gr.Button("Check", visible="hidden", elem_id="check-settings")
            self._keep = gr.Button("Keep", visible="hidden", elem_id="keep-settings")
            self._refresh = gr.Button("Refresh", visible="hidden", elem_id="refresh-preview")

    @property
    def outputs(self) -> list[Component]:
        """What `show` updates."""
        return [self.preset, self._preset_note, self._form, self._shown, self._shown_columns]

    def show(
        self,
        defaults: Mapping[str, Any] | None,
        entered: Entered,
        data: str | None,
        preset: str = NO_PRESET,
    ) -> tuple[Any, ...]:
        """Show the form for a model and a task, with a preset and what was entered before.

        `data` is the id of the file whose columns are known.
        """
        if defaults is None:
            return gr.Radio(visible=False), "", "", None, None
        form = SettingForm(defaults, preset, data, token_hex(4))
        return (
            gr.Radio(
                choices=[(PRESET_NAMES[name], name) for name in form.presets],
                value=form.chosen,
                visible=len(form.presets) > 1,
            ),
            form.render_preset(),
            form.render(entered),
            form,
            entered.get(COLUMNS),
        )

    def show_again(
        self,
        sent: str,
        form: SettingForm | None,
        columns: Any,
        defaults: Mapping[str, Any] | None,
        entered: Entered,
        preset: str,
        found: FileColumns,
    ) -> tuple[Any, ...]:
        """Show the form unless the one on the page is the same, `form` with these `columns`.

        Returns what is entered, also in the fields, and the updates of `outputs`.
        """
        entered = merge_fields(sent, form, columns, entered)
        is_same = form and (form.defaults, form.chosen) == (defaults, preset)
        if form and is_same and columns == entered.get(COLUMNS):
            kept = (gr.skip(),) * (len(self.outputs) - 2)
            return entered, *kept, replace(form, data=found.data), gr.skip()
        return entered, *self.show(defaults, entered, found.data, preset)

    def keep(
        self, sent: str, form: SettingForm | None, columns: Any, entered: Entered
    ) -> tuple[Any, Any]:
        """Keep what is entered; return it, and the columns that the form has now."""
        kept = merge_fields(sent, form, columns, entered)
        is_pending = columns != entered.get(COLUMNS)  # a mapping that the form does not show yet
        return kept, gr.skip() if is_pending else kept.get(COLUMNS)

    async def check_settings(
        self,
        sent: str,
        form: SettingForm | None,
        columns: Any,
        entered: Entered,
        model: str | None,
        task: str | None,
        data: str | None,
        name: str,
    ) -> tuple[str, Any]:
        """Return the verdict on a job with these settings, and what it will take."""
        if not model or not data:
            return Verdict(reason=_NO_CHOICE).to_json(), ""
        if form is None:
            return Verdict(reason=_NO_SETTINGS).to_json(), ""
        fields = read_current(sent, form, columns, entered, (model, task, data))
        if fields is None:
            return Verdict(reason=_LOADING, is_early=True).to_json(), gr.skip()
        try:
            found = await self._actions.estimate(model, data, name, form.plan(fields))
        except (FieldError, ApiClientError) as exc:
            return explain(exc, form.schemas).to_json(), ""
        return Verdict().to_json(), render_estimate(found)

    async def start(
        self,
        sent: str,
        form: SettingForm | None,
        columns: Any,
        entered: Entered,
        model: str | None,
        task: str | None,
        data: str | None,
        name: str,
    ) -> tuple[str, Any]:
        """Create a job with the changed settings; return its id, or the verdict that refuses it.

        Raises `gr.Error` while the fields are those of another choice.
        """
        if not model or not data:
            raise gr.Error(_NO_CHOICE, print_exception=False)
        choice = (model, task, data)
        fields = read_current(sent, form, columns, entered, choice) if form else None
        if form is None or fields is None:
            raise gr.Error(_LOADING, print_exception=False)
        try:
            run = await self._actions.start(model, data, name, form.plan(fields))
        except (FieldError, ApiClientError) as exc:
            return "", explain(exc, form.schemas).to_json()
        return run, gr.skip()

    async def update_preview(
        self, sent: str, form: SettingForm | None, model: str | None, data: str | None
    ) -> Any:
        """Return the preview with the settings in the fields."""
        fields = form.read(sent) if form else None
        if form is None or fields is None:
            return gr.skip()
        rows = {key: fields[key] for key in ROW_SETTINGS if key in fields}
        return await self._actions.show_preview(model, data, rows, form.defaults)

    async def write_settings(
        self,
        sent: str,
        origin: str,
        form: SettingForm | None,
        kind: str,
        model: str | None,
        data: str | None,
        name: str,
    ) -> str:
        """Return the settings as text for a program, or why there is none."""
        if not model or not data:
            return _NO_CHOICE
        fields = form.read(sent) if form else None
        if form is None or fields is None:
            return _LOADING
        try:
            filename = await self._actions.name_file(data)
            job = PlannedJob(model, data, filename, name.strip(), form.plan(fields))
        except FieldError as exc:
            return str(exc)
        except ApiClientError as exc:
            return describe_error(exc)
        return write_text(kind, job, form.defaults, origin)

    def import_settings(self, text: str, form: SettingForm | None) -> tuple[Any, ...]:
        """Fill in the settings of a spec, or show what is wrong with it."""
        if form is None:
            return self._refuse_import(_NO_SETTINGS)
        try:
            changes = read_changes(text, form.defaults)
        except ValueError as exc:
            return self._refuse_import(str(exc))
        return gr.HTML("", visible=False), changes, *self.show(form.defaults, changes, form.data)

    def _refuse_import(self, reason: str) -> tuple[Any, ...]:
        note = gr.HTML(markup.render_notice(reason, "error"), visible=True)
        return note, *(gr.skip(),) * (1 + len(self.outputs))

    def listen(
        self,
        model: Component,
        task: Component,
        data: Component,
        preview: Component,
        found: gr.State,
    ) -> None:
        """Add the events of the form and the bar; `found` has the columns of the chosen file."""
        self._form.change(None, self._form, None, js=SHOW_FORM_JS)
        data.change(None, None, None, js=CHANGED_JS)  # type: ignore[attr-defined]
        shown = [self._fields, self._shown, self._shown_columns, self.entered]
        self._keep.click(
            self.keep,
            shown,
            [self.entered, self._shown_columns],
            js=COLLECT_JS,
            **LATEST,
        )
        self._refresh.click(
            self.update_preview,
            [self._fields, self._shown, model, data],
            preview,
            js=COLLECT_JS,
            show_progress_on=preview,
            **LATEST_SHOWN,
        )
        chosen = [*shown, model, task, data, self.name]
        self._check.click(
            self.check_settings,
            chosen,
            [self._verdict, self._estimate],
            js=COLLECT_JS,
            **LATEST,
        ).then(None, self._verdict, None, js=SHOW_VERDICT_JS)
        started = self._button.click(
            self.start,
            chosen,
            [self.started_run, self._verdict],
            js=COLLECT_JS,
            show_progress="minimal",
            show_progress_on=self._button,
            api_visibility="private",
        )
        started.success(None, self.started_run, js=GO_TO_RUN_JS)
        started.then(None, self._verdict, None, js=SHOW_VERDICT_JS)
        self.show_after(self.preset.input, found)
        self._listen_to_export(model, data)

    def show_after(self, listen: Callable[..., Dependency], found: gr.State) -> Dependency:
        """Show the form of the chosen model, task, columns and preset after an event."""
        shown = [self._fields, self._shown, self._shown_columns]
        updated = listen(
            self.show_again,
            [*shown, self.defaults, self.entered, self.preset, found],
            [self.entered, *self.outputs],
            js=START_UPDATE_JS,
            **LATEST,
        )
        ended: Dependency = updated.then(None, None, None, js=END_UPDATE_JS)
        return ended

    def _listen_to_export(self, model: Component, data: Component) -> None:
        export = self.export
        gr.on(
            [export.place.expand, export.form.input, export.refresh.click],
            self.write_settings,
            [self._fields, export.origin, self._shown, export.form, model, data, self.name],
            export.text,
            js=COLLECT_WITH_ORIGIN_JS,
            **LATEST,
        )
        export.button.click(
            self.import_settings,
            [export.spec, self._shown],
            [export.note, self.entered, *self.outputs],
            js=START_IMPORT_JS,
            **QUIET,
        ).then(None, None, None, js=END_UPDATE_JS)
