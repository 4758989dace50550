"""The page "Fine-tune": choose a model and data, preview the data, start a job."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import Component
from gradio.events import Dependency

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.client.resources import Defaults, File, Model
from apps.ui import markup
from apps.ui.error_messages import describe_error
from apps.ui.protection.uploads import UPLOAD_LIFETIME_S, ForeignFileError, UploadFolder
from apps.ui.setting_fields import (
    build_setting,
    collect_changes,
    flatten,
    flatten_schemas,
    unflatten,
)

_logger = logging.getLogger(__name__)

HANDBOOK_FILE_ID = "file-handbook"
INTRODUCTION = (
    "Choose a model and a file of examples. A fine-tune teaches the model to answer as the "
    "examples do. You can chat with the new model at once."
)
DEMONSTRATION_NOTE = (
    "tuneserve-demo is a small demonstration model, made to try everything out on a laptop. It "
    "learns the handbook in minutes, but it is not an assistant: for real work, add a larger "
    "base model in deploy.yaml."
)
DEFAULT_TASK = "causal_lm"
TASK_NAMES = {
    "causal_lm": "Generate text",
    "sequence_classification": "Classify texts",
    "image_classification": "Classify images",
}
CHECK_PATIENCE_S = 20.0
CHECK_INTERVAL_S = 0.5
MAIN_SETTINGS = ("epochs", "learning_rate", "micro_batch_tokens", "num_workers")
ROW_SETTINGS = (
    *("format", "columns", "text_rows", "max_length", "overlong", "max_rows"),
    "micro_batch_tokens",
)
GO_TO_RUN_JS = """(run) => {
  if (run) window.location.href = "./runs?run=" + encodeURIComponent(run);
}"""


def list_model_choices(models: Sequence[Model]) -> list[tuple[str, str]]:
    """List the entries of the model menu: base models first, of these language models first."""
    ordered = sorted(models, key=lambda model: (not model.base, model.task != DEFAULT_TASK))
    return [(f"{model.id} (base)" if model.base else model.id, model.id) for model in ordered]


def list_file_choices(files: Sequence[File]) -> list[tuple[str, str]]:
    """List the entries of the data menu: the bundled handbook first."""
    ordered = sorted(files, key=lambda file: file.id != HANDBOOK_FILE_ID)
    return [(_name_file(file), file.id) for file in ordered]


def _name_file(file: File) -> str:
    if file.id == HANDBOOK_FILE_ID:
        return "The bundled handbook"
    return f"{file.filename} ({markup.format_moment(file.created_at)})"


class FineTunePage:
    """The components of the page and their event handlers."""

    def __init__(self, client: ApiClient, uploads: UploadFolder) -> None:
        self._client = client
        self._uploads = uploads
        self.notice = gr.HTML(visible=False, elem_id="fine-tune-notice")
        self.defaults: gr.State = gr.State()  # of the chosen model and task
        self.row_settings: gr.State = gr.State({})  # changed settings that affect the preview
        self.started_run = gr.Textbox(visible="hidden", elem_id="started-run", show_label=False)
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=320):
                self.model = gr.Dropdown(label="Base model", elem_id="base-model", filterable=False)
                self.data = gr.Dropdown(label="Data", elem_id="data-file", filterable=False)
                self.upload = gr.UploadButton(
                    "Upload a file of rows", elem_id="upload-button", size="sm"
                )
                self.task = gr.Dropdown(label="Task", elem_id="task", filterable=False)
                self.settings_place = gr.Column()
            with gr.Column(scale=3, min_width=320):
                self.preview = gr.HTML(elem_id="preview", min_height=120)

    async def open(self) -> tuple[Any, ...]:
        """Fill the menus, the settings and the preview."""
        try:
            models = await self._client.models.list_all()
            files = await self._client.files.list_all()
            model_choices, file_choices = list_model_choices(models), list_file_choices(files)
            model = next((value for _, value in model_choices), None)
            data = next((value for _, value in file_choices), None)
            defaults = await self._read_defaults(model, data)
        except ApiClientError as exc:
            message = f"{describe_error(exc)} Reload the page to try again."
            return show_notice(message), *(gr.skip(),) * 5
        return (
            show_notice(""),
            gr.Dropdown(choices=model_choices, value=model),
            gr.Dropdown(choices=file_choices, value=data),
            show_tasks(defaults),
            defaults,
            await self.show_preview(model, data, {}, defaults),
        )

    async def choose_model(self, model: str | None, data: str | None) -> tuple[Any, ...]:
        """Show the default settings of a model for the data, and the tasks that it can learn."""
        try:
            defaults = await self._read_defaults(model, data)
            return show_notice(""), show_tasks(defaults), defaults, {}
        except ApiClientError as exc:
            return show_notice(describe_error(exc)), show_tasks(None), None, {}

    async def choose_data(
        self, model: str | None, data: str | None, defaults: Mapping[str, Any] | None
    ) -> tuple[Any, ...]:
        """Change the task and its settings if the rows of the chosen file are for another task."""
        try:
            found = await self._read_defaults(model, data)
        except ApiClientError as exc:
            return show_notice(describe_error(exc)), *(gr.skip(),) * 3
        if defaults and found and found["task"] == defaults["task"]:
            return show_notice(""), *(gr.skip(),) * 3
        return show_notice(""), show_tasks(found), found, {}

    async def choose_task(self, model: str | None, task: str | None) -> tuple[Any, Any, Any]:
        """Show the default settings of a task, and reset those that affect the preview."""
        if not model:
            return gr.skip(), gr.skip(), gr.skip()
        try:
            found = await self._client.jobs.get_defaults(model, task)
            return show_notice(""), found.model_dump(by_alias=True), {}
        except ApiClientError as exc:
            return show_notice(describe_error(exc)), None, {}

    async def _read_defaults(self, model: str | None, data: str | None) -> dict[str, Any] | None:
        """Return the default settings of a model as plain data, which Gradio can compare.

        They are for the task that the rows of a file are for, if the model can learn it.
        """
        if not model:
            return None
        found = await self._client.jobs.get_defaults(model)
        task = await self._find_task(data) if data else None
        if task in found.tasks and task != found.task:
            found = await self._client.jobs.get_defaults(model, task)
        return found.model_dump(by_alias=True)

    async def _find_task(self, data: str) -> str | None:
        """Return the task that the rows of a file are for; None if its check does not say.

        Waits for the check of an upload, but not for that of a large file.
        """
        deadline = time.monotonic() + CHECK_PATIENCE_S
        while (file := await self._client.files.get(data)).status == "uploaded":
            if time.monotonic() >= deadline:
                break
            await asyncio.sleep(CHECK_INTERVAL_S)
        return file.check.task if file.check else None

    async def show_preview(
        self,
        model: str | None,
        data: str | None,
        row_settings: Mapping[str, Any],
        defaults: Mapping[str, Any] | None,
    ) -> str:
        """Render the chosen file as the chosen model's tokens, or the error that prevents it."""
        if not model or not data:
            return markup.render_notice("Choose a model and data to see the first rows here.")
        settings = {**row_settings, **(name_task(defaults) if defaults else {})}
        try:
            preview = await self._client.files.preview(data, model, training=settings or None)
            return markup.render_preview(preview)
        except ApiClientError as exc:
            return markup.render_notice(describe_error(exc), "error")

    async def add_file(self, path: str) -> Any:
        """Forward an upload to the API, then select the new file in the menu."""
        try:
            with self._uploads.open(path) as content:
                file = await self._client.files.upload(Path(path).name, content)
            files = await self._client.files.list_all()
        except ForeignFileError as exc:
            _logger.warning("An upload was refused: %s", exc)
            raise gr.Error(
                "This file was not uploaded to this page.", print_exception=False
            ) from exc
        except ApiClientError as exc:
            gr.Warning(escape(describe_error(exc)))
            return gr.skip()
        finally:
            self._uploads.delete(path)
            self._uploads.delete_older_than(UPLOAD_LIFETIME_S)
        return gr.Dropdown(choices=list_file_choices(files), value=file.id)

    async def start(
        self, model: str | None, data: str | None, suffix: str, training: Mapping[str, Any]
    ) -> str:
        """Create a job and return its id; raises `gr.Error` with the message of the API."""
        if not model or not data:
            raise gr.Error("Choose a model and data first.", print_exception=False)
        try:
            job = await self._client.jobs.create(
                {
                    "model": model,
                    "training_file": data,
                    "suffix": suffix.strip() or None,
                    "training": training,
                }
            )
        except ApiClientError as exc:
            raise gr.Error(
                escape(describe_error(exc)), duration=None, print_exception=False
            ) from exc
        return job.id


def name_task(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task as a setting; empty for the one that a job has by default."""
    task = defaults["task"]
    return {} if task == next(iter(defaults["tasks"]), None) else {"task": task}


def show_tasks(defaults: Mapping[str, Any] | None) -> Any:
    """Show the tasks that a model can learn, and choose the one that its settings are for."""
    tasks = list(defaults["tasks"]) if defaults else []
    return gr.Dropdown(
        choices=[(TASK_NAMES.get(name, name), name) for name in tasks],
        value=defaults["task"] if defaults else None,
        interactive=len(tasks) > 1,
    )


def show_notice(message: str) -> Any:
    """Show an error on top of the page, or hide it if there is none."""
    return gr.HTML(markup.render_notice(message, "error"), visible=bool(message))


class _Settings:
    """The fields of a model's settings, the name and the start button, and their event handlers."""

    def __init__(self, page: FineTunePage, defaults: Defaults) -> None:
        self._page = page
        self._defaults = defaults.model_dump(include={"task", "tasks"})
        self._values = flatten(defaults.training)
        self._schemas = flatten_schemas(defaults.schemas)
        keys = [key for key in self._values if key in self._schemas and key != "task"]
        more = [key for key in keys if key not in MAIN_SETTINGS]
        with gr.Row():
            self.fields = {key: self._build(key) for key in MAIN_SETTINGS if key in keys}
        with gr.Accordion("More settings", open=False, elem_id="more-settings"), gr.Row():
            self.fields |= {key: self._build(key) for key in more}
        with gr.Row(equal_height=False):
            self.suffix = gr.Textbox(
                label="Name of the result",
                placeholder="letters, digits, - and _",
                elem_id="run-name",
                interactive=True,
                scale=3,
            )
            self.button = gr.Button("Start", variant="primary", elem_id="start-button", scale=2)
        self.row_keys = [key for key in ROW_SETTINGS if key in self.fields]

    def _build(self, key: str) -> Component:
        return build_setting(key, self._schemas[key], self._values[key])

    async def start(self, model: str | None, data: str | None, name: str, *values: Any) -> str:
        """Create a job with the changed settings and return its id; raises `gr.Error`."""
        try:
            changes = self._read_changes(list(self.fields), values)
        except ValueError as exc:
            raise gr.Error(escape(str(exc)), duration=None, print_exception=False) from exc
        return await self._page.start(model, data, name, changes | name_task(self._defaults))

    async def update_preview(
        self, model: str | None, data: str | None, *values: Any
    ) -> tuple[dict[str, object], str]:
        """Return the changed settings that affect the preview, and the preview with them."""
        try:
            changes = self._read_changes(self.row_keys, values)
        except ValueError as exc:
            return {}, markup.render_notice(str(exc), "error")
        shown = await self._page.show_preview(model, data, changes, self._defaults)
        return changes, shown

    def _read_changes(self, names: Sequence[str], values: Sequence[Any]) -> dict[str, object]:
        entered = dict(zip(names, values, strict=True))
        return unflatten(collect_changes(self._values, self._schemas, entered))


def _build_settings(page: FineTunePage, defaults: Defaults) -> None:
    """Lay out the settings of a model and their events inside the current Blocks."""
    settings = _Settings(page, defaults)
    if settings.row_keys:
        row_fields = [settings.fields[key] for key in settings.row_keys]
        gr.on(
            [watch_field(field) for field in row_fields],
            settings.update_preview,
            [page.model, page.data, *row_fields],
            [page.row_settings, page.preview],
            show_progress="minimal",
            show_progress_on=page.preview,
            api_visibility="private",
        )
    settings.button.click(
        settings.start,
        [page.model, page.data, settings.suffix, *settings.fields.values()],
        page.started_run,
        show_progress="minimal",
        show_progress_on=settings.button,
        api_visibility="private",
    ).success(None, page.started_run, js=GO_TO_RUN_JS)


def watch_field(field: Component) -> Any:
    """Return the event of a new value: `input` for a dropdown, `blur` for other fields."""
    return field.input if isinstance(field, gr.Dropdown) else field.blur  # type: ignore[attr-defined]


def build_fine_tune_page(client: ApiClient, uploads: UploadFolder) -> None:
    """Lay out the page and its events inside the current Blocks."""
    gr.HTML(
        f'<div class="ts-intro"><p>{INTRODUCTION}</p>'
        f'<p class="ts-muted">{DEMONSTRATION_NOTE}</p></div>'
    )
    page = FineTunePage(client, uploads)
    gr.on(
        fn=page.open,
        outputs=[page.notice, page.model, page.data, page.task, page.defaults, page.preview],
        show_progress="hidden",
        api_visibility="private",
    )
    chosen = [page.notice, page.task, page.defaults, page.row_settings]
    model_chosen = page.model.input(
        page.choose_model,
        [page.model, page.data],
        chosen,
        show_progress="hidden",
        api_visibility="private",
    )
    file_added = page.upload.upload(
        page.add_file, page.upload, page.data, show_progress="minimal", api_visibility="private"
    )
    task_chosen = page.task.input(
        page.choose_task,
        [page.model, page.task],
        [page.notice, page.defaults, page.row_settings],
        show_progress="hidden",
        api_visibility="private",
    )
    events: list[Callable[..., object]] = [model_chosen.then, task_chosen.then]
    choices: list[Callable[..., Dependency]] = [page.data.input, file_added.success]
    for listen_to_choice in choices:
        data_chosen = listen_to_choice(
            page.choose_data,
            [page.model, page.data, page.defaults],
            chosen,
            show_progress="hidden",
            api_visibility="private",
        )
        events.append(data_chosen.then)
    for listen in events:
        listen(
            page.show_preview,
            [page.model, page.data, page.row_settings, page.defaults],
            page.preview,
            show_progress="minimal",
            api_visibility="private",
        )
    with page.settings_place:

        @gr.render(  # type: ignore[untyped-decorator] # gradio does not annotate it
            inputs=page.defaults, triggers=[page.defaults.change], show_progress="hidden"
        )
        def render_settings(defaults: Mapping[str, object] | None) -> None:
            if defaults is not None:
                _build_settings(page, Defaults.model_validate(defaults))
