"""Which events of the pages are repeated for the latest value."""

from collections import Counter
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from apps.client.client import ApiClient
from apps.client.resources import Defaults
from apps.ui.fine_tune.fine_tune_page import FineTunePage
from apps.ui.fine_tune.settings_place import TrainingSettingsPlace
from apps.ui.fine_tune.training_settings import JobActions, TrainingSettings
from apps.ui.page import build_blocks
from apps.ui.protection.uploads import UploadFolder
from tests.apps.stub_api import StubApi, ask

CLASSIFICATION = "sequence_classification"


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
        return build_blocks(client, UploadFolder(tmp_path))

    counts = count_repeated(ask(api, build))
    assert len(counts) > 20
    assert [event for event, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("task", ["causal_lm", CLASSIFICATION])
def test_events_of_settings_have_at_most_one_repeated_listener(
    api: StubApi, tmp_path: Path, task: str
) -> None:
    async def build(client: ApiClient) -> gr.Blocks:
        defaults = (await client.jobs.get_defaults("base", task)).model_dump(by_alias=True)
        blocks: gr.Blocks
        with gr.Blocks(analytics_enabled=False) as blocks:
            page = FineTunePage(client, UploadFolder(tmp_path))
            actions = JobActions(page.start, page.estimate, page.name_file, page.show_preview)
            settings = TrainingSettings(
                Defaults.model_validate(defaults), {}, "", is_more_open=False, actions=actions
            )
            settings.row_keys.append("precision")  # a menu, as other settings of rows are
            place = TrainingSettingsPlace(actions)
            place._listen(settings, page.model, page.task, page.data, page.preview)
        return blocks

    counts = count_repeated(ask(api, build))
    inputs = {component for _, component, event in counts if event == "input"}
    assert len(inputs) > 5
    assert [event for event, count in counts.items() if count > 1] == []
