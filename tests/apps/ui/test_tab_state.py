"""A message to a tab has only what has changed since the last one that the tab has applied."""

from apps.client.resources import Event
from apps.ui.runs.view_request import ViewRequest
from apps.ui.tab_state import (
    Content,
    FirstStates,
    Known,
    KnownEvents,
    TabState,
    write_message,
)

ASKED = ViewRequest(view="run", run="ftjob-1")


def ask(applied: int) -> ViewRequest:
    return ASKED.model_copy(update={"applied": applied})


def test_unchanged_content_is_sent_once() -> None:
    content = Content({"a": "1", "b": "2"}, {"runs": ["x"]}, {"title": "t"})
    first, state = write_message(content, TabState().select_for(ASKED))
    assert (first["base"], first["parts"], first["lists"]) == (0, content.parts, content.lists)
    same, _ = write_message(content, state.select_for(ask(first["serial"])))
    assert (same["serial"], same["base"]) == (first["serial"], first["serial"])
    assert not any((same["parts"], same["lists"], same["values"], same["additions"]))
    changed = Content({"a": "1", "b": "3"}, {"runs": ["x"]}, {"title": "t"})
    second, _ = write_message(changed, state.select_for(ask(first["serial"])))
    assert second["base"] == first["serial"] < second["serial"]
    assert (second["parts"], second["lists"], second["values"]) == ({"b": "3"}, {}, {})


def test_first_message_has_a_number_even_if_it_is_empty() -> None:
    message, _ = write_message(Content(), TabState().select_for(ASKED))
    assert message["serial"] > 0


def test_tab_that_has_another_message_gets_all() -> None:
    known = Known(events=KnownEvents("ftjob-1", (Event(id="1"),)))
    first, state = write_message(Content({"a": "1"}, known=known), TabState().select_for(ASKED))
    assert state.select_for(ask(first["serial"])).known == known
    for applied in (0, first["serial"] - 1):
        lost = state.select_for(ask(applied))
        assert lost.known == Known()
        message, _ = write_message(Content({"a": "1"}), lost)
        assert (message["base"], message["parts"]) == (0, {"a": "1"})


def test_other_place_gets_all() -> None:
    first, state = write_message(Content({"a": "1"}), TabState().select_for(ASKED))
    other = state.select_for(ViewRequest(applied=first["serial"]))
    assert other.serial == 0


def test_what_grows_is_always_sent() -> None:
    _, state = write_message(Content(), TabState().select_for(ASKED))
    added = Content(additions={"log": "new line"})
    for _ in range(2):
        message, state = write_message(added, state.select_for(ask(state.serial)))
        assert message["additions"] == {"log": "new line"}


def test_tab_continues_after_the_message_of_its_document() -> None:
    states = FirstStates(max_states=2)
    message, state = write_message(Content({"a": "1"}), TabState().select_for(ASKED))
    first, second = states.keep(message, state), states.keep(message, state)
    assert first["serial"] < second["serial"]
    assert (first["parts"], second["parts"]) == (message["parts"],) * 2
    for kept in (first, second):
        before = states.select_for(ask(kept["serial"]), TabState())
        changed, now = write_message(Content({"a": "1", "b": "2"}), before)
        assert (changed["base"], changed["parts"]) == (kept["serial"], {"b": "2"})
        later = states.select_for(ask(now.serial), now)
        assert later == now
    other = ViewRequest(view="run", run="ftjob-2", applied=first["serial"])
    assert states.select_for(other, TabState()).serial == 0
    states.keep(message, state)
    assert states.select_for(ask(first["serial"]), TabState()).serial == 0  # the oldest was dropped
