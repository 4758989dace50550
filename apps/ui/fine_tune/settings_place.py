"""Where the settings of a fine-tune are built, and the events of their fields."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
from gradio.components import Component

from apps.client.errors import ApiClientError
from apps.client.resources import Defaults
from apps.ui.error_messages import describe_error
from apps.ui.events import LATEST, LATEST_SHOWN, QUIET
from apps.ui.fine_tune.setting_export import ADD_ORIGIN_JS
from apps.ui.fine_tune.setting_fields import FieldError
from apps.ui.fine_tune.setting_problems import NAME_KEY
from apps.ui.fine_tune.training_settings import (
    CHANGED_JS,
    CLOSE_FIELDS_JS,
    GO_TO_RUN_JS,
    NO_PRESET,
    SHOW_VERDICT_JS,
    Entered,
    JobActions,
    TrainingSettings,
)


class TrainingSettingsPlace:
    """Where the settings are built, and what stays when they are built again."""

    def __init__(self, actions: JobActions) -> None:
        self._actions = actions
        self.defaults: gr.State = gr.State()  # of the chosen model and task
        self.entered: gr.State = gr.State({})
        self._preset = gr.State(NO_PRESET)
        self._num_imports = gr.State(0)
        self._is_more_open = gr.State(False)
        self.started_run = gr.Textbox(visible="hidden", elem_id="started-run", show_label=False)

    def build(self, model: Component, task: Component, data: Component, preview: Component) -> None:
        """Lay out the settings inside the current Blocks, again for other defaults or a preset."""
        changes = [self.defaults.change, self._preset.change, self._num_imports.change]
        gr.on(changes, None, None, None, js=CLOSE_FIELDS_JS)
        gr.on([data.change], None, None, None, js=CHANGED_JS)  # type: ignore[attr-defined]

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
                    actions=self._actions,
                )
                self._listen(settings, model, task, data, preview)
                self._listen_to_export(settings, model, data)

    def _listen(
        self,
        settings: TrainingSettings,
        model: Component,
        task: Component,
        data: Component,
        preview: Component,
    ) -> None:
        fields = list(settings.fields.values())
        entries: list[Any] = [settings.name, *fields]
        gr.on([entry.input for entry in entries], None, None, None, js=CHANGED_JS)
        row_fields: list[Any] = [settings.fields[key] for key in settings.row_keys]
        menus = [field for field in row_fields if isinstance(field, gr.Dropdown)]
        kept = {"inputs": [self.entered, *entries], "outputs": self.entered, **LATEST}
        others = [entry.input for entry in entries if entry not in menus]
        gr.on(others, settings.keep, **kept)
        previews = [field.blur for field in row_fields if field not in menus]
        if menus:
            previews.append(gr.on([menu.input for menu in menus], settings.keep, **kept).then)
        for listen in previews:
            listen(
                settings.update_preview,
                [model, data, *row_fields],
                preview,
                show_progress_on=preview,
                **LATEST_SHOWN,
            )
        settings.preset.input(
            lambda preset: preset,
            settings.preset,
            self._preset,
            **LATEST,
        )
        settings.more.expand(lambda: True, None, self._is_more_open, **LATEST)
        settings.more.collapse(lambda: False, None, self._is_more_open, **LATEST)
        chosen = [model, task, data, settings.name, *fields]
        settings.check_button.click(
            settings.check_settings,
            chosen,
            [settings.verdict, settings.estimate],
            **LATEST,
        ).then(None, settings.verdict, None, js=SHOW_VERDICT_JS)
        started = settings.button.click(
            settings.start,
            chosen,
            [self.started_run, settings.verdict],
            show_progress="minimal",
            show_progress_on=settings.button,
            api_visibility="private",
        )
        started.success(None, self.started_run, js=GO_TO_RUN_JS)
        started.then(None, settings.verdict, None, js=SHOW_VERDICT_JS)

    def _listen_to_export(
        self, settings: TrainingSettings, model: Component, data: Component
    ) -> None:
        export, fields = settings.export, list(settings.fields.values())

        async def write_settings(
            origin: str,
            form: str,
            model_id: str | None,
            file_id: str | None,
            name: str,
            *values: Any,
        ) -> str:
            """Return the settings as text for a program, or why there is none."""
            if not model_id or not file_id:
                return "Choose a model and data first."
            try:
                filename = await self._actions.name_file(file_id)
                job = export.plan_job(model_id, file_id, filename, name, values)
            except FieldError as exc:
                return str(exc)
            except ApiClientError as exc:
                return describe_error(exc)
            return export.write_text(form, job, origin)

        def import_settings(
            text: str, entered: Entered, num_imports: int
        ) -> tuple[Any, Any, Any, Any]:
            """Fill in the settings of a spec, or show what is wrong with it."""
            note, changes = export.import_spec(text)
            if changes is None:
                return note, gr.skip(), gr.skip(), gr.skip()
            name = {NAME_KEY: entered[NAME_KEY]} if NAME_KEY in entered else {}
            return note, {**changes, **name}, NO_PRESET, num_imports + 1

        gr.on(
            [export.place.expand, export.form.input, export.refresh.click],
            write_settings,
            [export.origin, export.form, model, data, settings.name, *fields],
            export.text,
            js=ADD_ORIGIN_JS,
            **LATEST,
        )
        export.button.click(
            import_settings,
            [export.spec, self.entered, self._num_imports],
            [export.note, self.entered, self._preset, self._num_imports],
            **QUIET,
        )
