"""The panel that shows the last question as a request, to use it from a program."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
from gradio.components import Component
from gradio.events import Dependency

from apps.ui.chat.conversation import Conversation, OpenChat
from apps.ui.chat.request_code import write_code
from apps.ui.chat.sampling_settings import check_settings
from apps.ui.events import LATEST_RAW
from apps.ui.frame.assets import link_script
from apps.ui.protection.visitor import find_visitor_key

NOTHING_ASKED = "Ask a question first: it is shown here as a request with the settings of the page."


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


_KINDS = "".join(
    f'<label><input type="radio" name="chat-code-kind" value="{kind}"> {kind}</label>'
    for kind in ("curl", "Python")
)
_TEMPLATE = f"""<details class="ts-more"><summary>Use it from a program</summary>
<fieldset class="ts-radios"><legend>Language</legend>{_KINDS}</fieldset>
<div class="ts-field" id="chat-code-text">
  <label for="chat-code-area">The last question with the settings of the page</label>
  <textarea id="chat-code-area" rows="8" readonly></textarea></div>
<button type="button" class="ts-action">Copy</button></details>"""


class CodePanel:
    """The panel and its event handlers; the request is written only while it is open.

    The value of the component is the chosen language.
    """

    def __init__(self) -> None:
        self.panel = gr.HTML(
            "curl",
            html_template=_TEMPLATE,
            js_on_load="""tuneserveCode.start(element, props, watch,
  (isOpen) => trigger(isOpen ? "expand" : "collapse"));""",
            head=link_script("code_panel.js"),
            apply_default_css=False,
            elem_id="chat-code",
            code="",
        )

    async def show_code(self, chat: OpenChat, kind: Any, values: Any, request: gr.Request) -> Any:
        """Show the request with the settings of the page: the panel was opened."""
        chat.shows_code = True
        return gr.HTML(code=self._write(chat, kind, request, values))

    async def update_code(self, chat: OpenChat, kind: Any, values: Any, request: gr.Request) -> Any:
        """Show the current request if the panel is open."""
        if not chat.shows_code:
            return gr.skip()
        return gr.HTML(code=self._write(chat, kind, request, values))

    async def hide_code(self, chat: OpenChat) -> None:
        """Keep that the panel was closed."""
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
            settings.select_messages(found.to_messages()),
            settings.sampling,
            needs_key=find_visitor_key() is not None,
        )

    def update_after(self, event: Dependency, chat: gr.State, settings: Component) -> None:
        """Update the request after an event, if the panel is open."""
        event.then(self.update_code, [chat, self.panel, settings], self.panel, **LATEST_RAW)

    def listen(self, chat: gr.State, settings: Component) -> None:
        """Show the request when the panel is opened, or another language is chosen."""
        inputs = [chat, self.panel, settings]
        self.panel.expand(self.show_code, inputs, self.panel, **LATEST_RAW)
        self.panel.collapse(self.hide_code, chat, None, **LATEST_RAW)
