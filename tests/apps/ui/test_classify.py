"""The page "Classify", through its functions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.client.resources import TextLabels
from apps.ui.chat.model_menu import list_chat_models
from apps.ui.classify import MAX_UPLOAD_BYTES, render_labels
from apps.ui.settings import UiSettings
from tests.apps.stub_api import HOSTILE, StubApi, ask
from tests.apps.ui.page_server import PageCaller, serve_page


@pytest.fixture
def page(api: StubApi) -> Iterator[str]:
    with serve_page(UiSettings(api_url=api.url)) as url:
        yield url


@pytest.fixture
def visitor(page: str) -> Iterator[PageCaller]:
    visitor = PageCaller(page)
    yield visitor
    visitor.close()


def test_menu_has_classifiers_only(visitor: PageCaller) -> None:
    shown = visitor.call(visitor.find_function("show_classifiers"), [])
    assert shown.success
    assert "topics" in shown.text
    assert "base-tuned" not in shown.text


def test_alias_of_classifier_is_chosen(page: str) -> None:
    visitor = PageCaller(page, query={"model": "subject"})
    shown = visitor.call(visitor.find_function("show_classifiers"), []).text
    visitor.close()
    assert "subject → topics" in shown
    assert "no classifier" not in shown


def test_menu_of_chat_has_no_classifier(api: StubApi) -> None:
    names = [model.id for model in ask(api, list_chat_models)]
    assert "base-tuned" in names
    assert "topics" not in names


def test_unknown_classifier_is_reported(page: str) -> None:
    visitor = PageCaller(page, query={"model": "nothing"})
    assert "no classifier" in visitor.call(visitor.find_function("show_classifiers"), []).text
    visitor.close()


@pytest.mark.parametrize(
    ("second", "expected"), [("", ["A text"]), (" Another ", [["A text", "Another"]])]
)
def test_texts_are_classified(
    visitor: PageCaller, api: StubApi, second: str, expected: list[object]
) -> None:
    shown = visitor.call(visitor.find_function("classify"), ["topics", "A text\n", second])
    assert shown.success
    assert "75.0%" in shown.text
    assert HOSTILE not in shown.text
    assert api.bodies[-1] == {"model": "topics", "input": expected, "truncate": True}


@pytest.mark.parametrize(
    ("model", "text", "message"),
    [
        (None, "A text", "Choose a model first"),
        ("topics", "  ", "Enter a text first"),
        ("topics", "a" * 20_001, "20,001 characters"),
        ("base", "A text", "There is no classifier"),
    ],
)
def test_invalid_input_is_reported(
    visitor: PageCaller, model: str | None, text: str, message: str
) -> None:
    shown = visitor.call(visitor.find_function("classify"), [model, text, ""])
    assert not shown.success
    assert message in shown.text


def test_image_beyond_the_limit_of_the_api_is_not_read(visitor: PageCaller, api: StubApi) -> None:
    image = visitor.upload("a.png", bytes(MAX_UPLOAD_BYTES + 1))
    session = {"session_hash": "a" * 32}
    visitor.call(visitor.find_function("show_classifiers"), [], **session)  # fills the menu
    shown = visitor.call(visitor.find_function("classify_image"), ["topics", image], **session)
    assert not shown.success
    assert "The image has 15,998,001 bytes; expected at most 15,998,000." in shown.text
    assert not Path(image["path"]).exists()
    assert api.bodies == []


def test_value_of_regression_is_shown() -> None:
    assert "3.25" in render_labels(TextLabels(value=3.25))
