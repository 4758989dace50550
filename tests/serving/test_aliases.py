from pathlib import Path

import pytest

from serving.aliases import AliasBook, AliasChange, AliasMove
from serving.errors import ModelNotFoundError
from storage import durable


@pytest.fixture
def book(tmp_path: Path) -> AliasBook:
    return AliasBook(tmp_path / "aliases.json")


def point(book: AliasBook, *models: str) -> None:
    for model in models:
        with book.change() as change:
            change.point("latest", model)


def roll_back(book: AliasBook, *, gone: str = "") -> str:
    with book.change() as change:
        return change.roll_back("latest", lambda model: model != gone).model_id


def test_every_move_stays_on_record(book: AliasBook) -> None:
    assert book.read() == {}
    point(book, "a", "b", "b", "a")
    history = book.read()["latest"].history
    assert [move.model_id for move in history] == ["a", "b", "a"]
    assert all(abs(move.at - history[0].at) < 60 for move in history)


def test_rolling_back_goes_back_step_by_step(book: AliasBook) -> None:
    point(book, "a", "b", "c")
    assert roll_back(book) == "b"
    assert roll_back(book) == "a"
    with pytest.raises(ModelNotFoundError, match="'latest' has no earlier model to go back to"):
        roll_back(book)
    assert book.read()["latest"].model_id == "a"
    point(book, "d")
    assert roll_back(book) == "a", "what was rolled back is not gone forward to"
    moves = book.read()["latest"].history
    assert [move.model_id for move in moves] == ["a", "b", "c", "b", "a", "d", "a"]
    assert [move.is_rollback for move in moves] == [False, False, False, True, True, False, True]


def test_deleted_models_are_passed_over(book: AliasBook) -> None:
    point(book, "a", "b", "c")
    assert roll_back(book, gone="b") == "a"


def test_rolling_back_never_stays_where_it_is(book: AliasBook) -> None:
    point(book, "c", "a", "b", "a")
    assert roll_back(book, gone="b") == "c"
    with pytest.raises(ModelNotFoundError, match="no earlier model"):
        roll_back(book)


def test_a_removed_alias_is_gone_and_its_history_is_not(book: AliasBook, tmp_path: Path) -> None:
    point(book, "a", "b")
    with book.change() as change:
        change.remove("latest")
    assert book.read() == {}
    with pytest.raises(ModelNotFoundError, match="there is no alias 'latest'"), book.change() as c:
        c.remove("latest")
    point(book, "c")
    assert [move.model_id for move in book.read()["latest"].history] == ["a", "b", None, "c"]
    with pytest.raises(ModelNotFoundError, match="no earlier model"):
        roll_back(book)
    assert durable.read_json(tmp_path / "aliases.json")["latest"]["model"] == "c"


def decide_against(change: AliasChange) -> None:
    change.point("latest", "b")
    raise ValueError("no")


def test_a_body_that_fails_changes_nothing(book: AliasBook) -> None:
    point(book, "a")
    with pytest.raises(ValueError, match="no"), book.change() as change:
        decide_against(change)
    assert book.read()["latest"].model_id == "a"


def test_files_of_before_rollbacks_are_read(book: AliasBook, tmp_path: Path) -> None:
    history = [{"model": "a", "at": 5}]
    durable.write_json(tmp_path / "aliases.json", {"latest": {"model": "a", "history": history}})
    assert book.read()["latest"].history == (AliasMove("a", 5),)
