"""The panel that shows the last request of a conversation, to use it from a program."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
from gradio.components import Component

from apps.ui.chat.conversation import Conversation, OpenChat
from apps.ui.chat.request_code import write_code
from apps.ui.chat.sampling_settings import check_settings
from apps.ui.events import LATEST_RAW
from apps.ui.protection.visitor import find_visitor_key

NOTHING_ASKED = "Ask a question first: the request that gave the last answer is shown here."


def find_request(conversation: Conversation) -> Conversation | None:
    """Return the part of a conversation that was sent for its last answer; None without one."""
    for index in range(len(conversation.turns), 0, -1):
        if conversation.turns[index - 1].role == "user":
            return conversation.cut(index)
    return None


def find_origin(headers: Mapping[str, str]) -> str:
    """Return the scheme and host under which a browser reaches the page, and so the API."""
    origin = headers.get("origin", "")
    return origin if "://" in origin else f"http://{headers.get('host', '127.0.0.1:8000')}"


class CodePanel:
    """The panel's components and event handlers; the request is written only while it is open."""

    def __init__(self) -> None:
        with gr.Accordion("Use it from a program", open=False, elem_id="chat-code") as self.box:
            self.kind = gr.Radio(
                ["curl", "Python"], value="curl", label="Language", elem_id="chat-code-kind"
            )
            self.code = gr.Textbox(
                label="The request of the last answer",
                lines=8,
                max_lines=16,
                buttons=["copy"],
                elem_id="chat-code-text",
            )

    async def show_code(self, chat: OpenChat, kind: Any, values: Any, request: gr.Request) -> str:
        """Open the panel, and show the request with the settings of the page."""
        chat.shows_code = True
        return self._write(chat, kind, request, values)

    async def update_code(self, chat: OpenChat, kind: Any, values: Any, request: gr.Request) -> Any:
        """Show the current request if the panel is open."""
        return self._write(chat, kind, request, values) if chat.shows_code else gr.skip()

    async def hide_code(self, chat: OpenChat) -> None:
        """Close the panel."""
        chat.shows_code = False

    def _write(self, chat: OpenChat, kind: Any, request: gr.Request, values: Any) -> str:
        settings, faults = check_settings(values)
        found = find_request(chat.conversation)
        if settings is None:
            return " ".join(faults.values())
        if found is None:
            return NOTHING_ASKED
        return write_code(
            "Python" if kind == "Python" else "curl",
            find_origin(request.headers),
            found.model_id or found.asked_model,
            settings.add_system(found.to_messages()),
            settings.sampling,
            needs_key=find_visitor_key() is not None,
        )

    def listen(self, chat: gr.State, settings: Component) -> None:
        """Show the request when the panel is opened, or another language is chosen."""
        inputs = [chat, self.kind, settings]
        gr.on([self.box.expand, self.kind.input], self.show_code, inputs, self.code, **LATEST_RAW)
        self.box.collapse(self.hide_code, chat, None, **LATEST_RAW)
