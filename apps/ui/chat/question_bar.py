"""The text field for questions with its buttons, on the pages "Chat" and "Compare"."""

from typing import Any

import gradio as gr
from gradio.blocks import Block


class QuestionBar:
    """A row with the text field and the buttons Send, Stop and Clear."""

    def __init__(self, page: str, placeholder: str) -> None:
        with gr.Row(elem_id=f"{page}-bar"):
            self.text = gr.Textbox(
                elem_id=f"{page}-input",
                label="Question",
                placeholder=placeholder,
                show_label=False,
                container=False,
                scale=6,
                min_width=110,
                max_lines=6,
                autofocus=True,
            )
            self.send = gr.Button(
                "Send", variant="primary", elem_id=f"{page}-send", scale=1, min_width=72
            )
            self.stop = gr.Button(
                "Stop", elem_id=f"{page}-stop", scale=1, min_width=72, visible=False
            )
            self.clear = gr.Button("Clear", elem_id=f"{page}-clear", scale=1, min_width=72)

    @property
    def sent(self) -> list[Any]:
        """The events that send a question."""
        return [self.text.submit, self.send.click]

    @property
    def buttons(self) -> list[Block]:
        """The buttons that `show_buttons` updates."""
        return [self.send, self.stop]

    def show_buttons(self, *, busy: bool) -> dict[Block, Any]:
        """Return the updates of Send and Stop: Stop replaces Send while answers are streamed."""
        return {self.send: gr.Button(visible=not busy), self.stop: gr.Button(visible=busy)}
