"""The table of models and the aliases as HTML."""

from apps.client.model_resources import AliasEvent, AliasMove, Model, ModelAlias
from apps.client.resources import Access
from apps.ui.models.model_list import (
    MAX_HISTORY,
    NOT_ALLOWED,
    HandoverHistory,
    find_loss,
    render_aliases,
    render_history,
    render_models,
)
from tests.apps.stub_api import HOSTILE

ADMIN = Access(key=None, permissions=("models.write",))
READER = Access(key="reader", permissions=("models.read",))


def test_row_has_what_identifies_a_model() -> None:
    model = Model(
        id="Tuned",
        aliases=("latest",),
        tuned_from="base",
        data="rows.csv",
        run_id="ftjob-1",
        bytes=15_300_000,
        created=1_795_000_000,
        metrics={"loss": 2.0, "eval_loss": 1.25},
        kind="adapter",
    )
    html = render_models([model])
    assert 'data-text="tuned base rows.csv ftjob-1 latest adapter "' in html
    assert all(text in html for text in ("15.3 MB", "1.250", 'datetime="2026-11-18T11:06:40Z"'))
    assert "1.250<small>Validation loss</small>" in html
    assert find_loss(Model(id="a", metrics={"loss": 2.0})) == ("Training loss", 2.0)
    assert find_loss(Model(id="a")) is None
    assert "No models yet" in render_models([])


def test_aliases_can_be_moved_only_with_permission() -> None:
    aliases = [
        ModelAlias(id="latest", model="b", rollback_to="a"),
        ModelAlias(id="new", model="b"),
    ]
    html = render_aliases(aliases, ADMIN, None)
    assert html.count('data-action="roll_back"') == 1
    assert '<b translate="no">latest</b> will point to <b translate="no">a</b> again' in html
    assert "new has no earlier model" in html
    assert html.count('data-action="remove"') == 2
    html = render_aliases(aliases, READER, None)
    assert "roll_back" not in html
    assert "remove" not in html
    assert html.count('data-action="history"') == 2
    assert NOT_ALLOWED in html


def test_history_merges_moves_and_handovers_newest_first() -> None:
    moves = (
        AliasMove(model="a", at=10),
        AliasMove(model="b", at=20),
        AliasMove(model="a", at=30, rollback=True),
        AliasMove(model=None, at=40),
    )
    alias = ModelAlias(id="latest", model="a", history=moves)
    event = AliasEvent(alias="latest", outcome="refused", model="b", message=HOSTILE, at=20)
    html = render_history(HandoverHistory(alias, (event,)))
    html = html.replace('<span translate="no">', "")
    texts = ["Removed", "Rolled back to</b> a", "Not loaded", "Moved to</b> b", "Moved to</b> a"]
    places = [html.index(text) for text in texts]
    assert places == sorted(places)
    assert "<img" not in html


def test_history_is_limited_to_newest_moves() -> None:
    moves = tuple(AliasMove(model=f"m{number}.", at=number) for number in range(MAX_HISTORY + 5))
    html = render_history(HandoverHistory(ModelAlias(id="latest", model="m", history=moves), ()))
    assert html.count("<li>") == MAX_HISTORY
    assert "m4." not in html
    assert "m5." in html


def test_texts_of_models_and_aliases_are_escaped() -> None:
    model = Model(id=HOSTILE, aliases=(HOSTILE,), tuned_from=HOSTILE, data=HOSTILE, task=HOSTILE)
    alias = ModelAlias(id=HOSTILE, model=HOSTILE, rollback_to=HOSTILE)
    history = HandoverHistory(alias, ())
    assert "<img" not in render_models([model]) + render_aliases([alias], ADMIN, history)
