"""How the pages process API responses, without a browser."""

from apps.client.model_resources import Model
from apps.ui.chat.model_menu import ModelMenu, load_menu
from apps.ui.fine_tune.job_choice import list_model_choices
from tests.apps.stub_api import StubApi, ask


def test_menus_name_alias_base_model_and_handbook(api: StubApi) -> None:
    menu = ask(api, load_menu)
    assert menu.list_choices() == [
        ("latest → base-tuned", "latest"),
        ("base-tuned", "base-tuned"),
        ("base (base)", "base"),
    ]
    assert list_model_choices(menu.models)[0] == ("base (base)", "base")


def test_model_is_found_by_alias() -> None:
    model = Model(id="tuned", aliases=("latest",))
    menu = ModelMenu((model,))
    assert menu.find("latest") is model
    assert menu.find("gone") is None
