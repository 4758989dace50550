"""How the page "Models" processes API responses, without a browser."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import gradio as gr
import pytest

from apps.client.client import ApiClient
from apps.client.errors import RequestRefusedError
from apps.hub import transfers
from apps.hub.settings import HubSettings
from apps.ui.models.model_actions import ModelAction, perform, read_action
from apps.ui.models.models_page import (
    NOTHING_SHOWN,
    ModelsView,
    ShownModel,
    _list_state_updates,
    prepare_card,
    read_view,
)
from tests.apps.ui.models_storage import ModelsStorage

Result = TypeVar("Result")


@pytest.fixture
def storage(tmp_path: Path, tiny_model: Path) -> ModelsStorage:
    storage = ModelsStorage(tmp_path, tiny_model)
    storage.add_tuned("tuned-1")
    storage.store.point_alias("latest", "tuned-1")
    return storage


@pytest.fixture
def url(storage: ModelsStorage) -> Iterator[str]:
    with storage.serve() as url:
        yield url


def view(url: str, shown: ShownModel) -> ModelsView:
    return call(url, lambda client: read_view(client, shown))


def call(url: str, send: Callable[[ApiClient], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        async with ApiClient(url) as client:
            return await send(client)

    return asyncio.run(run())


def test_unchanged_view_has_the_same_digest(url: str, storage: ModelsStorage) -> None:
    for shown in (NOTHING_SHOWN, ShownModel("tuned-1"), ShownModel("tuned-1", alias="latest")):
        first = view(url, shown)
        assert view(url, first.shown).shown.digest == first.shown.digest
        storage.store.point_alias("latest", "tiny")
        assert view(url, first.shown).shown.digest != first.shown.digest
        storage.store.point_alias("latest", "tuned-1")


def test_model_is_found_by_alias_and_its_content_is_read_once(url: str) -> None:
    first = view(url, ShownModel("latest"))
    assert (first.shown.model_id, first.notice) == ("tuned-1", "")
    assert "tiny, fine-tuned" in first.card
    assert view(url, first.shown).shown.content is first.shown.content


def test_unknown_model_is_reported_with_all_models(url: str) -> None:
    found = view(url, ShownModel("gone"))
    assert found.notice == "There is no model 'gone'; these are all."
    assert found.shown.model_id == ""
    assert "tuned-1" in found.html


def test_actions_change_models_and_aliases(url: str, storage: ModelsStorage) -> None:
    def act(name: str, model: str = "", alias: str = "") -> str:
        return call(url, lambda client: perform(client, ModelAction(name, model, alias)))

    assert act("promote", "tiny", " live ") == "live points to tiny now."
    assert act("promote", "tuned-1", "live") == "live points to tuned-1 now."
    assert act("roll_back", alias="live") == "live points to tiny again."
    assert act("remove", alias="live") == "The alias live was removed."
    assert act("verify", "tuned-1") == "All files of tuned-1 are as they were published."
    with pytest.raises(RequestRefusedError, match="'latest' points to"):
        act("delete", "tuned-1")
    act("remove", alias="latest")
    assert act("delete", "tuned-1") == "tuned-1 was deleted."
    assert [model.id for model in storage.store.list_models()] == ["tiny"]
    assert act("format", "tiny") == ""


@pytest.mark.parametrize("data", [None, [], "delete", {"action": 1, "model": None, "alias": {}}])
def test_unexpected_event_data_is_no_action(data: object) -> None:
    assert read_action(data) == ModelAction()


def test_card_has_no_metadata_and_its_headings_are_below_those_of_the_page() -> None:
    text = "---\r\na: 1\r\n---\r\n# Title\n\n## Part\n#!/bin/sh\n"
    expected = "### Model card\n\n#### Title\n\n##### Part\n#!/bin/sh"
    assert prepare_card(text) == expected
    assert prepare_card("---\na: 1\n---\n") == prepare_card(None) == ""


def test_card_keeps_code_and_shows_html_as_text() -> None:
    text = "#### Deep\n```bash\n# load <b>\n```\n<form action=/v1/x>`<i>` 1 < 2"
    expected = "###### Deep\n```bash\n# load <b>\n```\n&lt;form action=/v1/x>`<i>` 1 < 2"
    assert prepare_card(text) == f"### Model card\n\n{expected}"


def test_models_are_installed_pushed_and_cancelled(
    storage: ModelsStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(transfers, "run_transfer", lambda *_: release.wait(60) and None)
    permitted = HubSettings(install=("org/*",), push=("me/*",))
    with storage.serve(hub=permitted) as url:

        def act(**values: str) -> str:
            return call(url, lambda client: perform(client, read_action(values)))

        done = act(action="install", source=" org/x ", revision="", new_id=" mine ")
        assert done == "org/x is being installed as mine."
        done = act(action="push", model="latest", repository="me/x", public="on")
        assert done == "tuned-1 is being pushed to me/x."
        shown = view(url, NOTHING_SHOWN).shown
        assert len(shown.running) == 2
        for part in ("org/x", "me/x", 'data-action="cancel"', "Asking the hub"):
            assert part in shown.transfers
        transfer_id = next(iter(shown.running))
        assert act(action="cancel", transfer=transfer_id).endswith("is being cancelled.")
        with pytest.raises(RequestRefusedError, match="does not permit 'you/x'") as refused:
            act(action="push", model="tiny", repository="you/x")
        assert refused.value.param == "repository"
        release.set()
        call(url, _wait_for_end)
        ended = view(url, shown).shown
        assert ended.running == frozenset()
        assert 'data-action="cancel"' not in ended.transfers


async def _wait_for_end(client: ApiClient) -> None:
    async with asyncio.timeout(30):
        while any(one.is_running for one in await client.hub.list_transfers()):
            await asyncio.sleep(0.05)


def test_transfers_are_sent_only_if_they_changed() -> None:
    before = ShownModel("a", transfers="<p>1</p>", running=frozenset({"x"}))
    assert _list_state_updates(before, before) == [gr.skip()] * 3
    state, html, timer = _list_state_updates(replace(before, transfers="<p>2</p>"), before)
    assert (state.transfers, html.value, timer) == ("<p>2</p>", "<p>2</p>", gr.skip())
    ended = replace(before, transfers="", running=frozenset())
    _, html, timer = _list_state_updates(ended, before)
    assert (html.visible, timer.active) == (False, False)
    _, _, timer = _list_state_updates(before, ended)
    assert timer.active
