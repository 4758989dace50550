"""Where the page changes how Gradio works inside."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from gradio import queueing, routes
from gradio.routes import App
from gradio.server_messages import ProcessCompletedMessage
from pydantic import model_validator

_MAKE = "create_app"


@contextmanager
def build_without_apps() -> Iterator[None]:
    """Let Gradio build pages without making a web application for each of them.

    It makes one at the end of every page and one for the queue, for its own server, in 0.15 s of
    processor time each. The page has another server: `gr.mount_gradio_app` makes its application,
    which must be called outside of this context.
    """
    make = App.__dict__[_MAKE]
    setattr(App, _MAKE, staticmethod(_make_nothing))
    try:
        yield
    finally:
        setattr(App, _MAKE, make)


def _make_nothing(*_: Any, **__: Any) -> None:
    """Replace the function that makes an application."""


class CompletedMessage(ProcessCompletedMessage):
    """The end of a call, with data also if the call was cancelled: none, so nothing changes.

    Gradio's script expects data. If it reads the message of a cancelled call before its own request
    for the cancellation has returned, it fails and covers the outputs with "Error".
    """

    @model_validator(mode="after")
    def _add_data(self) -> Self:
        if self.success:
            self.output.setdefault("data", [])
        return self


def complete_cancelled_calls() -> None:
    """Let Gradio send `CompletedMessage` instead of its own message."""
    for module in (queueing, routes):  # both, because one compares the types of messages
        module.ProcessCompletedMessage = CompletedMessage  # type: ignore[attr-defined]
