"""Which events of the pages are repeated for the latest value."""

from collections import Counter
from pathlib import Path
from typing import Any

import gradio as gr

from apps.client.client import ApiClient
from apps.ui.frame.first_views import FirstViews
from apps.ui.page import build_blocks
from apps.ui.protection.uploads import UploadFolder
from tests.apps.stub_api import StubApi, ask


def count_repeated(blocks: gr.Blocks) -> Counter[tuple[str, Any, str]]:
    """Count for each event of a component of a page how many calls of the server are repeated."""
    return Counter(
        (function.page, component, event)
        for function in blocks.fns.values()
        if function.trigger_mode == "always_last" and function.fn is not None
        for component, event in function.targets
        if component is not None
    )


def test_events_of_pages_have_at_most_one_repeated_listener(api: StubApi, tmp_path: Path) -> None:
    async def build(client: ApiClient) -> gr.Blocks:
        return build_blocks(client, UploadFolder(tmp_path), FirstViews())

    counts = count_repeated(ask(api, build))
    assert len(counts) > 10
    assert [event for event, count in counts.items() if count > 1] == []
