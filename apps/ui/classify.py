"""The page "Classify": try a classifier on a text, on two texts together, or on an image."""

import base64
import logging
import os
from collections.abc import Awaitable, Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import gradio as gr

from apps.client.client import ApiClient
from apps.client.connection import Upload
from apps.client.errors import ApiClientError
from apps.client.model_resources import Model
from apps.client.resources import ScoredLabel, TextLabels, read_resources
from apps.middleware.body_limit import MAX_IMAGES_BYTES
from apps.ui import markup
from apps.ui.error_messages import describe_error
from apps.ui.events import LATEST, QUIET
from apps.ui.notices import show_notice
from apps.ui.protection.uploads import ForeignFileError, UploadFolder

_logger = logging.getLogger(__name__)

TEXT_TASK, IMAGE_TASK = "sequence_classification", "image_classification"
NO_MODELS_NOTE = (
    "There is no classifier yet. Fine-tune one: upload texts with labels, or a ZIP archive with a "
    "folder of images for each class."
)
UNKNOWN_MODEL_NOTE = "There is no classifier {!r}; choose one from the menu."
MAX_CHARACTERS = 20_000
MAX_UPLOAD_BYTES = MAX_IMAGES_BYTES - 2_000
"""The form that contains the image is a little larger."""
MAX_SHOWN_BYTES = 2 << 20
"""Larger images are classified, but not shown."""
_EMPTY = '<p class="ts-empty">The labels appear here.</p>'
_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}


def list_classifiers(models: Sequence[Model]) -> list[Model]:
    """Return the models that this page can try, in their order."""
    return [model for model in models if model.task in (TEXT_TASK, IMAGE_TASK)]


def list_choices(models: Sequence[Model]) -> list[tuple[str, str]]:
    """List the entries of the model menu: all models, then the aliases with their models."""
    aliases = [(f"{alias} → {model.id}", alias) for model in models for alias in model.aliases]
    return [(model.id, model.id) for model in models] + aliases


def render_image(content: bytes) -> str:
    """Render an image in the page itself; empty for a large one, or of another kind."""
    kinds = (kind for start, kind in _SIGNATURES.items() if content.startswith(start))
    kind = next(kinds, None)
    if kind is None or len(content) > MAX_SHOWN_BYTES:
        return ""
    encoded = base64.b64encode(content).decode()
    return f'<img class="ts-picture" alt="The classified image" src="data:{kind};base64,{encoded}">'


def render_labels(result: TextLabels) -> str:
    """Render the labels of a text with bars as long as their scores, or its value."""
    if result.value is not None:
        return f'<p class="ts-value">{result.value:.4g}</p>'
    lines = "".join(map(_render_label, result.labels))
    return f'<ol class="ts-labels" aria-label="Labels by their scores">{lines}</ol>'


def _render_label(scored: ScoredLabel) -> str:
    return (
        f'<li style="--ts-share:{scored.score:.4f}">{markup.keep(scored.label)}'
        f"<b>{scored.score:.1%}</b></li>"
    )


class _Page:
    """The components of the page and their event handlers."""

    def __init__(self, client: ApiClient, uploads: UploadFolder) -> None:
        self._client = client
        self._uploads = uploads
        self.models: gr.State = gr.State({})  # the task of each name in the menu
        self.note = gr.HTML(elem_id="classify-note", visible=False)
        with gr.Row(equal_height=False):
            with gr.Column(scale=3, min_width=320):
                self.model = gr.Dropdown(
                    label="Model",
                    elem_id="classify-model",
                    elem_classes=markup.NAMES,
                    filterable=False,
                )
                with gr.Column() as self.text_input:
                    self.text = gr.Textbox(
                        label="Text", elem_id="classify-text", lines=3, max_lines=12, autofocus=True
                    )
                    self.second = gr.Textbox(
                        label="Second text",
                        info="For a model that learned from pairs of texts; else leave it empty.",
                        elem_id="classify-second",
                        lines=1,
                        max_lines=12,
                    )
                    self.button = gr.Button(
                        "Classify", variant="primary", elem_id="classify-button"
                    )
                with gr.Column(visible=False) as self.image_input:
                    self.image = gr.UploadButton(
                        "Choose an image",
                        variant="primary",
                        file_types=["image"],
                        elem_id="classify-image",
                    )
            with gr.Column(scale=2, min_width=320):
                self.result = gr.HTML(_EMPTY, elem_id="classify-result")

    async def show_classifiers(self, request: gr.Request) -> tuple[Any, ...]:
        """Fill the model menu; the query parameter `model` selects a model."""
        try:
            models = list_classifiers(await self._client.models.list_all())
        except ApiClientError as exc:
            notice = show_notice(describe_error(exc), "error")
            return gr.skip(), gr.skip(), notice, *(gr.skip(),) * 2
        tasks = {name: model.task for model in models for name in (model.id, *model.aliases)}
        chosen = request.query_params.get("model") or next(iter(tasks), None)
        note = show_notice("" if tasks else NO_MODELS_NOTE)
        if chosen is not None and chosen not in tasks:
            note, chosen = show_notice(UNKNOWN_MODEL_NOTE.format(chosen), "error"), None
        menu = gr.Dropdown(choices=list_choices(models), value=chosen)
        return menu, tasks, note, *_show_inputs(tasks.get(chosen or ""))

    def choose_classifier(self, tasks: dict[str, str], name: Any) -> tuple[Any, ...]:
        """Show the inputs of the chosen model, and no result."""
        return *_show_inputs(tasks.get(str(name))), _EMPTY

    async def classify(self, model: Any, text: Any, second: Any) -> str:
        """Return the labels of a text as HTML; raises `gr.Error` with the message of the API."""
        if not isinstance(model, str) or not model:
            raise gr.Error("Choose a model first.", print_exception=False)
        texts = [one.strip() for one in (text, second) if isinstance(one, str) and one.strip()]
        if not texts:
            raise gr.Error("Enter a text first.", print_exception=False)
        if too_long := [one for one in texts if len(one) > MAX_CHARACTERS]:
            raise gr.Error(
                f"The text has {len(too_long[0]):,} characters; expected at most "
                f"{MAX_CHARACTERS:,}. Shorten it.",
                print_exception=False,
            )
        inputs = [texts] if len(texts) > 1 else texts
        return await _render_answer(self._client.text.classify(model, inputs, truncate=True))

    async def classify_image(self, model: Any, path: str) -> str:
        """Return an image and its labels as HTML; raises `gr.Error` with the message of the API."""
        if not isinstance(model, str) or not model:
            raise gr.Error("Choose a model first.", print_exception=False)
        try:
            with self._uploads.open(path) as file:
                content = _read_image(file)
        except ForeignFileError as exc:
            _logger.warning("An image was refused: %s", exc)
            raise gr.Error(
                "This image was not uploaded to this page.", print_exception=False
            ) from exc
        finally:
            self._uploads.delete(path)
        upload = Upload(Path(path).name, BytesIO(content))
        labels = await _render_answer(self._client.text.classify_images(model, [upload]))
        return render_image(content) + labels


def _read_image(file: BinaryIO) -> bytes:
    """Read an upload; raises `gr.Error` if the API would refuse its size."""
    num_bytes = os.fstat(file.fileno()).st_size
    if num_bytes > MAX_UPLOAD_BYTES:
        raise gr.Error(
            f"The image has {num_bytes:,} bytes; expected at most {MAX_UPLOAD_BYTES:,}. Make it "
            "smaller.",
            print_exception=False,
        )
    return file.read()


async def _render_answer(call: Awaitable[Mapping[str, object]]) -> str:
    """Render the labels of the only input of a request."""
    try:
        answer = await call
    except ApiClientError as exc:
        raise gr.Error(escape(describe_error(exc)), duration=None, print_exception=False) from exc
    data = answer.get("data")
    (result,) = read_resources(TextLabels, data if isinstance(data, list) else [])
    return render_labels(result)


def _show_inputs(task: str | None) -> tuple[Any, Any]:
    """Show the inputs of a task: texts, or an image."""
    return gr.Column(visible=task != IMAGE_TASK), gr.Column(visible=task == IMAGE_TASK)


def build_classify_page(client: ApiClient, uploads: UploadFolder) -> None:
    """Lay out the page and its events inside the current Blocks."""
    page = _Page(client, uploads)
    inputs = [page.text_input, page.image_input]
    gr.on(
        fn=page.show_classifiers,
        outputs=[page.model, page.models, page.note, *inputs],
        **QUIET,
    )
    page.model.input(
        page.choose_classifier,
        [page.models, page.model],
        [*inputs, page.result],
        **LATEST,
    )
    gr.on(
        [page.button.click, page.text.submit, page.second.submit],
        page.classify,
        [page.model, page.text, page.second],
        page.result,
        show_progress="minimal",
        show_progress_on=page.button,
        preprocess=False,  # Gradio's check of the menu would fail for a model that was deleted
        api_visibility="private",
    )
    page.image.upload(
        page.classify_image,
        [page.model, page.image],
        page.result,
        show_progress="minimal",
        api_visibility="private",
    )
