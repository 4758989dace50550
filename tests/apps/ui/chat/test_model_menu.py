"""The entries of the menu of models."""

from apps.client.model_resources import Model
from apps.ui.chat.chat_layout import render_compare_link
from apps.ui.chat.model_menu import ModelMenu, OfferedCheckpoint, describe_choice, load_menu
from tests.apps.stub_api import StubApi, ask

TUNED = Model(id="tuned", aliases=("production", "latest"), run_id="ftjob-1", checkpoint_step=9)
ADAPTER = Model(id="tone", kind="adapter", base_model="base")
CHECKPOINT = OfferedCheckpoint("tuned-step-3", "ftjob-1", 3)


def test_menu_has_aliases_models_adapters_and_checkpoints() -> None:
    menu = ModelMenu((ADAPTER, TUNED, Model(id="base", base=True)), (CHECKPOINT,))
    assert menu.list_choices() == [
        ("latest → tuned", "latest"),
        ("production → tuned", "production"),
        ("tone (adapter of base)", "tone"),
        ("tuned", "tuned"),
        ("base (base)", "base"),
        ("tuned-step-3 (checkpoint)", "tuned-step-3"),
    ]
    found = menu.find("tuned-step-3")
    assert found is not None
    assert (found.run_id, found.checkpoint_step) == ("ftjob-1", 3)


def test_base_of_a_model_is_found_if_it_is_offered() -> None:
    tuned = Model(id="full", aliases=("latest",), tuned_from="base")
    menu = ModelMenu((ADAPTER, tuned, Model(id="base", base=True), Model(id="x", tuned_from="y")))
    assert [menu.find_base(name) for name in ("tone", "full", "latest")] == ["base"] * 3
    assert [menu.find_base(name) for name in ("base", "x", "gone")] == [None] * 3
    link = render_compare_link(menu, "latest")
    assert 'href="./compare?models=base,latest"' in link
    assert 'href="./compare"' in render_compare_link(menu, None)


def test_published_checkpoint_is_a_model() -> None:
    menu = ModelMenu((TUNED,)).add([CHECKPOINT]).add([CHECKPOINT])
    assert menu.checkpoints == (CHECKPOINT,)
    menu = menu.update([TUNED, Model(id="tuned-step-3")])
    assert menu.find_checkpoint("tuned-step-3") is None
    assert menu.has("tuned-step-3")


def test_checkpoints_are_requested_only_if_named(api: StubApi) -> None:
    api.add_job("ftjob-1", "running", training={"task": "causal_lm"})
    entry = {"id": "c", "step_number": 3, "fine_tuned_model_checkpoint": "tuned-step-3"}
    api.runs.checkpoints["ftjob-1"] = [entry]
    assert ask(api, load_menu).checkpoints == ()
    assert ask(api, lambda client: load_menu(client, ["gone-step-3"])).checkpoints == ()
    menu = ask(api, lambda client: load_menu(client, ["tuned-step-3"]))
    assert menu.checkpoints == (CHECKPOINT,)


def test_note_says_that_question_publishes_checkpoint(api: StubApi) -> None:
    menu = ModelMenu((TUNED,), (CHECKPOINT,))
    api.permissions = ["text.generate"]
    refused = ask(api, lambda client: describe_choice(client, menu, "tuned-step-3"))
    assert refused.kind == "error"
    assert "your key may not publish it" in refused.message
    api.permissions = ["jobs.write"]
    note = ask(api, lambda client: describe_choice(client, menu, "tuned-step-3"))
    assert note.kind == "info"
    assert "step 3 of the run ftjob-1" in note.message
    assert ask(api, lambda client: describe_choice(client, menu, "tuned")).message == ""
    assert ask(api, lambda client: describe_choice(client, menu, ["x"])).message == ""
