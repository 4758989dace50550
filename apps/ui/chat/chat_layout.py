"""The components of the page "Chat", and what they show."""

from typing import Any

import gradio as gr
from gradio.blocks import Block

from apps.ui import markup
from apps.ui.chat.code_panel import CodePanel
from apps.ui.chat.conversation import Conversation, OpenChat
from apps.ui.chat.model_menu import ModelMenu
from apps.ui.chat.question_bar import QuestionBar
from apps.ui.chat.sampling_settings import SettingsPanel

MODEL_ID = "chat-model"
REFRESH_INTERVAL_S = 10.0
Updates = dict[Block, Any]
"""New values of some of an event's outputs; the others stay as they are."""


class ChatLayout:
    """The components of the page."""

    def __init__(self) -> None:
        self.chat: gr.State = gr.State(OpenChat())
        self.menu: gr.State = gr.State(ModelMenu())
        self.timer = gr.Timer(REFRESH_INTERVAL_S)
        self.kept = gr.Textbox(visible="hidden", elem_id="chat-kept", show_label=False)
        with gr.Row(elem_id="chat-columns", equal_height=False):
            with gr.Column(scale=5, min_width=320):
                self._build_models()
                self._build_conversation()
            with gr.Column(scale=2, min_width=250, elem_id="chat-side"):
                self.settings = SettingsPanel(is_open=True)
                self.program = CodePanel()

    def _build_models(self) -> None:
        with gr.Row(elem_id="chat-models", equal_height=False):
            self.model = gr.Dropdown(
                label="Model",
                elem_id=MODEL_ID,
                elem_classes=markup.NAMES,
                scale=5,
                min_width=200,
            )
            with gr.Column(scale=1, min_width=150, elem_id="chat-model-actions"):
                self.more = gr.Button("Show checkpoints", size="sm", elem_id="chat-checkpoints")
                self.compare = gr.HTML(render_compare_link(ModelMenu(), ""), elem_id="chat-compare")
        self.note = gr.HTML(elem_id="chat-note", visible=False)

    def _build_conversation(self) -> None:
        self.history = gr.Chatbot(
            elem_id="chat-history",
            show_label=False,
            height="calc(100vh - 320px)",
            min_height=300,
            buttons=["copy"],
            feedback_options=None,
            latex_delimiters=[],
            layout="bubble",
            group_consecutive_messages=False,
            editable="user",
        )
        self.answered_by = gr.HTML(elem_id="chat-answered-by")
        self.go_on = gr.Button(
            "Continue the answer", size="sm", elem_id="chat-continue", visible=False
        )
        self.bar = QuestionBar("chat", "Ask something…")


def show_continue(conversation: Conversation) -> Any:
    """Show the button that continues the last answer if it ended at the limit."""
    return gr.Button(visible=conversation.find_cut_answer() is not None)


def render_compare_link(menu: ModelMenu, name: Any) -> str:
    """Render the link that compares the chosen model, with its base if the menu has that."""
    query = ""
    if isinstance(name, str) and name:
        base = menu.find_base(name)
        query = f"?models={markup.join_models([base, name] if base else [name])}"
    return f'<a class="ts-side-link" href="./compare{query}">Compare models</a>'
