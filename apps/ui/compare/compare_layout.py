"""The components of the page "Compare", and what they show."""

from collections.abc import Sequence
from html import escape
from typing import Any
from urllib.parse import quote

import gradio as gr

from apps.client.model_resources import Model
from apps.ui import markup
from apps.ui.chat.chat_layout import Updates
from apps.ui.chat.model_menu import ModelMenu
from apps.ui.chat.question_bar import QuestionBar
from apps.ui.chat.sampling_settings import SettingsPanel
from apps.ui.compare.comparison import MAX_COLUMNS, Comparison

MODELS_ID = "compare-models"
GONE_MODEL = "There is no model {!r} any more."


class _Column:
    """The components of one model."""

    def __init__(self, number: int) -> None:
        self.box = gr.Column(
            visible=False,
            min_width=250,
            elem_id=f"compare-column-{number}",
            elem_classes="ts-compare-column",
        )
        with self.box:
            self.head = gr.HTML()
            self.history = gr.Chatbot(
                label=f"Model {number}",
                show_label=False,
                height="calc(100vh - 390px)",
                min_height=280,
                buttons=["copy"],
                feedback_options=None,
                latex_delimiters=[],
                layout="bubble",
                group_consecutive_messages=False,
                elem_classes="ts-compare-history",
            )
            self.status = gr.HTML()

    @property
    def outputs(self) -> list[Any]:
        """All components."""
        return [self.box, self.head, self.history, self.status]


class CompareLayout:
    """The components of the page."""

    def __init__(self) -> None:
        self.comparison: gr.State = gr.State(Comparison())
        self.menu: gr.State = gr.State(ModelMenu())
        self.models = gr.Dropdown(
            label="Models",
            info="Two to four; each has its own conversation.",
            multiselect=True,
            max_choices=MAX_COLUMNS,
            elem_id=MODELS_ID,
            elem_classes=markup.NAMES,
        )
        self.note = gr.HTML(elem_id="compare-note", visible=False)
        with gr.Row(elem_id="compare-columns", equal_height=True):
            self.columns = [_Column(number + 1) for number in range(MAX_COLUMNS)]
        self.evaluation = gr.HTML(elem_id="compare-evaluation")
        self.bar = QuestionBar("compare", "Ask all models…")
        self.settings = SettingsPanel(is_open=False)

    @property
    def column_outputs(self) -> list[Any]:
        """The components of all columns, and the link below them."""
        columns = [component for column in self.columns for component in column.outputs]
        return [*columns, self.evaluation]

    def show_columns(self, comparison: Comparison, menu: ModelMenu) -> Updates:
        """Show one column for each chosen name, with its conversation."""
        names = comparison.names
        updates: Updates = {self.evaluation: render_evaluation_link(names)}
        for column, name in zip(self.columns, [*names, *[""] * MAX_COLUMNS], strict=False):
            updates[column.box] = gr.Column(visible=bool(name))
            if name:
                updates[column.head] = render_head(name, menu.find(name))
                updates[column.history] = comparison.chats[name].conversation.to_chatbot()
                updates[column.status] = comparison.statuses.get(name, "")
        return updates


def render_evaluation_link(names: Sequence[str]) -> str:
    """Render the link that evaluates the first two models; empty without any."""
    if not names:
        return ""
    query = markup.join_models(names[:2])
    subject = "this model" if len(names) == 1 else "these models"
    if len(names) > 2:
        subject = "the first two models"
    return f'<a href="./evaluate?models={query}">Evaluate {subject} on all questions of a file</a>'


def render_head(name: str, model: Model | None) -> str:
    """Render the name of a column's model with links to it and to its run."""
    if model is None:
        return f"{markup.keep(name, 'h2')}{markup.render_notice(GONE_MODEL.format(name), 'error')}"
    alias = f"{markup.keep(name)} → " if name != model.id else ""
    parts = []
    if model.kind == "adapter":
        base = markup.keep(model.base_model) if model.base_model else "an unknown model"
        parts.append(f"adapter of {base}")
    if model.base:
        parts.append("base model")
    if model.run_id:
        step = "" if model.checkpoint_step is None else f", step {model.checkpoint_step:,}"
        parts.append(f"run {markup.link_run(model.run_id)}{step}")
    shown = " · ".join(f"<span>{part}</span>" for part in parts)
    href = f"./models?model={quote(model.id, safe='')}"
    link = f'<a href="{href}" translate="no">{escape(model.id)}</a>'
    return (
        f'<h2 class="ts-compare-name">{alias}{link}</h2>'
        f'<p class="ts-compare-origin">{shown or "a model"}</p>'
    )
