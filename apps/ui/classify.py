"""The page "Classify": try a classifier on a text, or on two texts together."""

from collections.abc import Sequence
from html import escape
from typing import Any

import gradio as gr

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.client.resources import Model, ScoredLabel, TextLabels, read_resources
from apps.ui import markup
from apps.ui.error_messages import describe_error

TASK = "sequence_classification"
NO_MODELS_NOTE = (
    "There is no classifier yet. Fine-tune one: choose a file of texts with labels, and a model "
    "of the task sequence_classification or an encoder."
)
UNKNOWN_MODEL_NOTE = "There is no classifier {!r}; choose one from the menu."
MAX_CHARACTERS = 20_000


def list_classifiers(models: Sequence[Model]) -> list[Model]:
    """Return the models that this page can try, in their order."""
    return [model for model in models if model.task == TASK]


def render_labels(result: TextLabels) -> str:
    """Render the labels of a text with bars as long as their scores, or its value."""
    if result.value is not None:
        return f'<p class="ts-value">{result.value:.4g}</p>'
    lines = "".join(map(_render_label, result.labels))
    return f'<ol class="ts-labels" aria-label="Labels by their scores">{lines}</ol>'


def _render_label(scored: ScoredLabel) -> str:
    return (
        f'<li style="--ts-share:{scored.score:.4f}"><span>{escape(scored.label)}</span>'
        f"<b>{scored.score:.1%}</b></li>"
    )


class _Page:
    """The components of the page and their event handlers."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self.note = gr.HTML(elem_id="classify-note", visible=False)
        with gr.Row(equal_height=False):
            with gr.Column(scale=3, min_width=320):
                self.model = gr.Dropdown(label="Model", elem_id="classify-model", filterable=False)
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
                self.button = gr.Button("Classify", variant="primary", elem_id="classify-button")
            with gr.Column(scale=2, min_width=320):
                self.result = gr.HTML(
                    '<p class="ts-empty">The labels appear here.</p>', elem_id="classify-result"
                )

    async def show_classifiers(self, request: gr.Request) -> tuple[Any, Any]:
        """Fill the model menu; the query parameter `model` selects a model."""
        try:
            models = list_classifiers(await self._client.models.list_all())
        except ApiClientError as exc:
            return gr.skip(), _show_note(describe_error(exc), "error")
        names = [model.id for model in models]
        asked = request.query_params.get("model")
        if asked is None or asked in names:
            note = "" if names else NO_MODELS_NOTE
            chosen = asked or next(iter(names), None)
            return gr.Dropdown(choices=names, value=chosen), _show_note(note)
        note = UNKNOWN_MODEL_NOTE.format(asked)
        return gr.Dropdown(choices=names, value=None), _show_note(note, "error")

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
        try:
            answer = await self._client.text.classify(model, inputs, truncate=True)
        except ApiClientError as exc:
            raise gr.Error(
                escape(describe_error(exc)), duration=None, print_exception=False
            ) from exc
        data = answer.get("data")
        (result,) = read_resources(TextLabels, data if isinstance(data, list) else [])
        return render_labels(result)


def _show_note(message: str, kind: str = "info") -> Any:
    return gr.HTML(markup.render_notice(message, kind), visible=bool(message))


def build_classify_page(client: ApiClient) -> None:
    """Lay out the page and its events inside the current Blocks."""
    page = _Page(client)
    gr.on(
        fn=page.show_classifiers,
        outputs=[page.model, page.note],
        show_progress="hidden",
        api_visibility="private",
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
