"""Changes to Gradio: no web applications that nothing uses, and data in each end of a call."""

from typing import Any

import gradio as gr
import pytest
from gradio import queueing, routes
from gradio.routes import App
from gradio.server_messages import ProcessCompletedMessage

from apps.ui.gradio_internals import (
    CompletedMessage,
    build_without_apps,
    complete_cancelled_calls,
)
from apps.ui.settings import UiSettings
from tests.apps.ui.page_server import build_page


def test_page_has_one_application(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    configure = App.configure_app

    def configure_counted(app: App, blocks: gr.Blocks) -> None:
        made.append(app)
        configure(app, blocks)

    monkeypatch.setattr(App, "configure_app", configure_counted)
    build_page(UiSettings(api_url="http://127.0.0.1:9"))
    assert len(made) == 1


def fail_while_building() -> None:
    with build_without_apps():
        raise RuntimeError


def test_gradio_is_as_before_also_after_an_error() -> None:
    make = App.create_app
    with build_without_apps():
        assert App.create_app is not make
    with pytest.raises(RuntimeError):
        fail_while_building()
    assert App.create_app is make


@pytest.fixture
def original_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let both modules have Gradio's own message until the test has ended."""
    for module in (queueing, routes):
        monkeypatch.setattr(module, "ProcessCompletedMessage", ProcessCompletedMessage)


def test_page_sends_complete_ends_of_calls(original_messages: None) -> None:
    build_page(UiSettings(api_url="http://127.0.0.1:9"))
    for module in (queueing, routes):
        assert module.ProcessCompletedMessage is CompletedMessage


def test_end_of_a_cancelled_call_has_data(original_messages: None) -> None:
    complete_cancelled_calls()
    for module in (queueing, routes):
        message = module.ProcessCompletedMessage
        assert message(output={}, success=True).output == {"data": []}
        assert message(output={"data": [1]}, success=True).output == {"data": [1]}
        assert message(output={"error": "no"}, success=False).output == {"error": "no"}
