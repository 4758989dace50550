"""What the page says of the chosen model."""

from apps.client.model_resources import ModelCard
from apps.ui.fine_tune.model_facts import render_model_facts, show_model_facts
from tests.apps.stub_api import StubApi, ask


def test_line_has_what_is_known() -> None:
    card = ModelCard(
        id="a", num_parameters=20_300_000, context_length=2048, dtype="bf16", license="<mit>"
    )
    expected = "20.3 M parameters · context of 2,048 tokens · bf16 · license &lt;mit&gt;"
    assert render_model_facts(card) == f'<p class="ts-muted">{expected}</p>'
    assert "rank 8" in render_model_facts(ModelCard(id="a", rank=8))
    assert render_model_facts(ModelCard(id="a")) == ""


def test_line_is_empty_without_a_model_or_its_card(api: StubApi) -> None:
    api.runs.cards["base"] = {"dtype": "f32"}
    assert "f32" in ask(api, lambda client: show_model_facts(client, "base"))
    assert ask(api, lambda client: show_model_facts(client, None)) == ""
    assert ask(api, lambda client: show_model_facts(client, "gone")) == ""
