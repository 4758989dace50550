"""How the pages process API responses, without a browser."""

import gradio as gr
from gradio.components import Component

from apps.client.client import ApiClient
from apps.client.model_resources import Model
from apps.ui.chat.model_menu import ModelMenu, load_menu
from apps.ui.fine_tune import fine_tune_page
from apps.ui.fine_tune.setting_fields import build_setting, flatten, flatten_schemas
from tests.apps.stub_api import StubApi, ask


def test_each_type_of_setting_has_its_field(api: StubApi) -> None:
    async def build(client: ApiClient) -> dict[str, Component]:
        defaults = await client.jobs.get_defaults("base", "sequence_classification")
        values = flatten(defaults.training)
        with gr.Blocks(analytics_enabled=False):
            return {
                key: build_setting(key, schema, values[key])
                for key, schema in flatten_schemas(defaults.schemas).items()
            }

    fields = ask(api, build)
    kinds = {key: type(field) for key, field in fields.items()}
    assert kinds == {
        "epochs": gr.Number,
        "learning_rate": gr.Number,
        "max_length": gr.Textbox,
        "precision": gr.Dropdown,
        "columns": gr.Textbox,
        "adapter": gr.Textbox,
        "offload_optimizer": gr.Checkbox,
        "wall_clock_breakdown": gr.Checkbox,
        "warmup_ratio": gr.Number,
        "task_settings.problem_type": gr.Dropdown,
        "task_settings.labels": gr.Textbox,
    }
    assert fields["task_settings.problem_type"].elem_id == "setting-problem-type"
    assert fields["learning_rate"].elem_id == "setting-learning-rate"


def test_menus_name_alias_base_model_and_handbook(api: StubApi) -> None:
    menu = ask(api, load_menu)
    assert menu.list_choices() == [
        ("latest → base-tuned", "latest"),
        ("base-tuned", "base-tuned"),
        ("base (base)", "base"),
    ]
    assert fine_tune_page.list_model_choices(menu.models)[0] == ("base (base)", "base")


def test_model_is_found_by_alias() -> None:
    model = Model(id="tuned", aliases=("latest",))
    menu = ModelMenu((model,))
    assert menu.find("latest") is model
    assert menu.find("gone") is None
