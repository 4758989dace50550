"""The page "Fine-tune": choose a model and data, preview the data, start a job."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from secrets import token_hex
from typing import Any

import gradio as gr
from gradio.events import Dependency

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.client.jobs import JobRequest
from apps.client.model_resources import Model
from apps.client.resources import Estimate
from apps.ui import markup
from apps.ui.error_messages import describe_error
from apps.ui.events import LATEST, QUIET
from apps.ui.fine_tune.data.column_mapping import (
    COLUMNS,
    DEFAULT_TASK,
    RECALL_COLUMNS_JS,
    recall_columns,
)
from apps.ui.fine_tune.data.data_panel import DataPanel
from apps.ui.fine_tune.data.file_menu import RECALL_FILE_JS, FileMenu, choose_file
from apps.ui.fine_tune.data.preview import render_preview
from apps.ui.fine_tune.former_run import read_former_run
from apps.ui.fine_tune.model_facts import show_model_facts
from apps.ui.fine_tune.setting_form import Entered, collect_row_settings
from apps.ui.fine_tune.training_settings import (
    END_UPDATE_JS,
    HOLD_JS,
    RELEASE_JS,
    JobActions,
    TrainingSettings,
)
from apps.ui.notices import show_notice
from apps.ui.protection.uploads import UploadFolder

_logger = logging.getLogger(__name__)

INTRODUCTION = (
    "Choose a model and a file of examples. A fine-tune teaches the model to answer as the "
    "examples do. You can chat with the new model at once."
)
DEMONSTRATION_NOTE = (
    "tuneserve-demo is a small demonstration model, made to try everything out on a laptop. It "
    "learns the handbook in minutes, but it is not an assistant: for real work, add a larger "
    "base model in deploy.yaml."
)
TASK_NAMES = {
    "causal_lm": "Generate text",
    "sequence_classification": "Classify texts",
    "image_classification": "Classify images",
    "preference": "Prefer better answers",
}
CHECK_PATIENCE_S = 20.0
CHECK_INTERVAL_S = 0.5


def list_model_choices(models: Sequence[Model]) -> list[tuple[str, str]]:
    """List the entries of the model menu: base models first, of these language models first."""
    ordered = sorted(models, key=lambda model: (not model.base, model.task != DEFAULT_TASK))
    return [(_name_model(model), model.id) for model in ordered]


def _name_model(model: Model) -> str:
    if model.kind == "adapter":
        return f"{model.id} (adapter; a job continues it)"
    return f"{model.id} (base)" if model.base else model.id


class FineTunePage:
    """The components of the page and their event handlers."""

    def __init__(self, client: ApiClient, uploads: UploadFolder) -> None:
        self._client = client
        self.notice = gr.HTML(visible=False, elem_id="fine-tune-notice")
        self.choice: gr.State = gr.State("")
        """Another text after another choice of model, data, task or columns."""
        self.settings = TrainingSettings(
            JobActions(self.start, self.estimate, self.name_file, self.show_preview)
        )
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=320):
                self.model = gr.Dropdown(
                    label="Base model",
                    elem_id="base-model",
                    elem_classes=markup.NAMES,
                    filterable=False,
                )
                self.facts = gr.HTML(elem_id="model-facts")
                self.files = FileMenu(client, uploads)
                self.data = self.files.menu
                self.task = gr.Dropdown(label="Task", elem_id="task", filterable=False)
                self.settings.build()
            with gr.Column(scale=3, min_width=320):
                self.panel = DataPanel(client)
                self.preview = self.panel.preview

    async def open(
        self, remembered: str | None, remembered_columns: str | None, request: gr.Request
    ) -> AsyncGenerator[tuple[Any, ...], None]:
        """Fill the menus and the settings, like those of the run in `?from=`, then the preview.

        Without that run, the remembered file is chosen if it exists, with its task and columns. One
        event fills everything, because each takes a round trip of the browser.
        """
        kept: tuple[Any, ...] = (gr.skip(),) * len(self.opened)
        notice, name = "", ""
        entered: Mapping[str, Any] = {}
        try:
            models, files = await asyncio.gather(
                self._client.models.list_all(), self.files.list_files()
            )
            model_choices = list_model_choices(models)
            model = next((value for _, value in model_choices), None)
            data = choose_file(files, remembered)
            known = None
            recalled = recall_columns(remembered_columns, data)
            if run_id := dict(request.query_params).get("from", ""):
                found = await read_former_run(self._client, run_id, model_choices, files)
                notice, entered, name = found.notice, found.entered, found.name
                model, data, known = found.model or model, found.data or data, found.defaults
            columns, facts, defaults = await asyncio.gather(
                self.panel.columns.read_columns(data),
                self.show_model(model),
                self._read_defaults(model, data, known, recalled.task if recalled else None),
            )
        except ApiClientError as exc:
            message = f"{describe_error(exc)} Reload the page to try again."
            yield show_notice(message, "error"), *kept[1:]
            return
        tasks = show_tasks(defaults)
        if recalled and defaults and not run_id:
            chosen = recalled.select(columns, str(defaults["task"]))
            entered = {COLUMNS: chosen} if chosen else {}
        task = str(defaults["task"]) if defaults else DEFAULT_TASK
        entered, *mapping = self.panel.columns.fit(columns, None, task, entered)
        yield (
            show_notice(notice),
            gr.Dropdown(choices=model_choices, value=model),
            *self.files.show(files, data),
            tasks,
            defaults,
            entered,
            *self.settings.show(defaults, entered, columns.data),
            name,
            columns,
            *mapping,
            facts,
            gr.skip(),
        )
        # It waits for checks of files and for other jobs that are created.
        yield *kept[:-1], await self.show_preview(model, data, entered, defaults)

    @property
    def opened(self) -> list[Any]:
        """What `open` updates."""
        return [
            self.notice,
            self.model,
            *self.files.outputs,
            self.task,
            self.settings.defaults,
            self.settings.entered,
            *self.settings.outputs,
            self.settings.name,
            self.panel.columns.found,
            *self.panel.columns.outputs,
            self.facts,
            self.preview,
        ]

    async def choose_settings(
        self, model: str | None, data: str | None, defaults: Mapping[str, Any] | None
    ) -> tuple[Any, ...]:
        """Show the tasks that a model can learn, and its default settings for the data.

        They stay if they are for this model and task already, or if the data cannot be read.
        """
        choice = token_hex(4)
        try:
            found = await self._read_defaults(model, data)
        except ApiClientError as exc:
            notice = show_notice(describe_error(exc), "error")
            if defaults and defaults["model"] == model:
                return notice, gr.skip(), gr.skip(), choice
            return notice, show_tasks(None), None, choice
        if defaults and found and _name_defaults(defaults) == _name_defaults(found):
            return show_notice(""), gr.skip(), gr.skip(), choice
        return show_notice(""), show_tasks(found), found, choice

    async def choose_task(self, model: str | None, task: str | None) -> tuple[Any, ...]:
        """Show the default settings of a task."""
        if not model:
            return (gr.skip(),) * 3
        try:
            found = await self._client.jobs.get_defaults(model, task)
            return show_notice(""), found.model_dump(by_alias=True), token_hex(4)
        except ApiClientError as exc:
            return show_notice(describe_error(exc), "error"), None, token_hex(4)

    async def _read_defaults(
        self,
        model: str | None,
        data: str | None,
        known: Mapping[str, Any] | None = None,
        chosen_task: str | None = None,
    ) -> Mapping[str, Any] | None:
        """Return the default settings of a model as plain data, which Gradio can compare.

        They are for the task that the rows of a file are for, else for `chosen_task`, if the model
        can learn it; `known` ones are returned as they are.
        """
        if known or not model:
            return known
        found, task = await asyncio.gather(
            self._client.jobs.get_defaults(model), self._find_task(data)
        )
        task = task or chosen_task
        if task in found.tasks and task != found.task:
            found = await self._client.jobs.get_defaults(model, task)
        return found.model_dump(by_alias=True)

    async def _find_task(self, data: str | None) -> str | None:
        """Return the task that the rows of a file are for; None if its check does not say."""
        if not data:
            return None
        file = await self._client.files.get(data)
        return file.check.task if file.check else None

    async def show_model(self, model: str | None) -> str:
        """Describe the chosen model."""
        return await show_model_facts(self._client, model)

    async def wait_for_check(self, data: str | None) -> None:
        """Wait for the check of an upload, but not for that of a large file."""
        deadline = time.monotonic() + CHECK_PATIENCE_S
        try:
            while data and (await self._client.files.get(data)).status == "uploaded":
                if time.monotonic() >= deadline:
                    break
                await asyncio.sleep(CHECK_INTERVAL_S)
        except ApiClientError as exc:
            _logger.warning("The check of %s cannot be read: %s", data, exc)

    async def show_preview(
        self,
        model: str | None,
        data: str | None,
        entered: Entered,
        defaults: Mapping[str, Any] | None,
    ) -> str:
        """Render the chosen file as the chosen model's tokens, or the error that prevents it."""
        if not model or not data:
            return markup.render_notice("Choose a model and data to see the first rows here.")
        try:
            settings = collect_row_settings(defaults, entered) if defaults else {}
        except ValueError as exc:
            return markup.render_notice(str(exc), "error")
        try:
            preview = await self._client.files.preview(data, model, training=settings or None)
            return render_preview(preview)
        except ApiClientError as exc:
            return markup.render_notice(describe_error(exc), "error")

    async def start(self, model: str, data: str, suffix: str, training: Mapping[str, Any]) -> str:
        """Create a job and return its id."""
        return (await self._client.jobs.create(_request_job(model, data, suffix, training))).id

    async def estimate(
        self, model: str, data: str, suffix: str, training: Mapping[str, Any]
    ) -> Estimate:
        """Return what a job will take."""
        return await self._client.jobs.estimate(_request_job(model, data, suffix, training))

    async def name_file(self, data: str) -> str:
        """Return the name of a file."""
        return (await self._client.files.get(data)).filename


def _request_job(model: str, data: str, suffix: str, training: Mapping[str, Any]) -> JobRequest:
    return {
        "model": model,
        "training_file": data,
        "suffix": suffix.strip() or None,
        "training": training,
    }


def _name_defaults(defaults: Mapping[str, Any]) -> tuple[str, str]:
    return defaults["model"], defaults["task"]


def show_tasks(defaults: Mapping[str, Any] | None) -> Any:
    """Show the tasks that a model can learn, and choose the one that its settings are for."""
    tasks = list(defaults["tasks"]) if defaults else []
    return gr.Dropdown(
        choices=[(TASK_NAMES.get(name, name), name) for name in tasks],
        value=defaults["task"] if defaults else None,
        interactive=len(tasks) > 1,
    )


def build_fine_tune_page(client: ApiClient, uploads: UploadFolder) -> None:
    """Lay out the page and its events inside the current Blocks."""
    gr.HTML(
        f'<div class="ts-intro"><p>{INTRODUCTION}</p>'
        f'<p class="ts-muted">{DEMONSTRATION_NOTE}</p></div>'
    )
    page = FineTunePage(client, uploads)
    gr.on(
        fn=page.open,
        inputs=[page.files.remembered, page.panel.columns.remembered],
        outputs=page.opened,
        js=f"() => [{RECALL_FILE_JS}, {RECALL_COLUMNS_JS}]",
        show_progress="minimal",
        show_progress_on=page.preview,
        api_visibility="private",
    ).then(None, None, None, js=END_UPDATE_JS)
    defaults, entered = page.settings.defaults, page.settings.entered
    choice = page.choice
    page.task.input(
        page.choose_task,
        [page.model, page.task],
        [page.notice, defaults, choice],
        **LATEST,
    )
    chosen = [
        listen_to_choice(
            page.choose_settings,
            [page.model, page.data, defaults],
            [page.notice, page.task, defaults, choice],
            # A dropdown may send its event twice: the second call finds what the first one chose.
            concurrency_id="choose",
            concurrency_limit=1,
            **LATEST,
        )
        for listen_to_choice in (page.model.input, _listen_to_files(page).then)
    ]
    chosen[0].then(page.show_model, page.model, page.facts, **LATEST)
    fitted = page.panel.listen(
        page.model, page.task, page.data, entered, defaults, page.show_preview, choice
    )
    found = page.panel.columns.found
    shown = page.settings.show_after(fitted.then, found)
    shown.then(None, None, None, js=RELEASE_JS, api_visibility="private")
    page.settings.listen(page.model, page.task, page.data, page.preview, found)


def _listen_to_files(page: FineTunePage) -> Dependency:
    """Hold the settings when another file is chosen; return the event of the end of its check."""
    choices = page.files.listen()
    gr.on(choices, None, None, None, js=HOLD_JS, api_visibility="private")
    checked: Dependency = gr.on(choices, page.wait_for_check, page.data, None, **QUIET)
    checked.then(
        page.files.list_all_files,
        [page.data, page.files.shows_all],
        page.files.outputs,
        **LATEST,
    )
    return checked
