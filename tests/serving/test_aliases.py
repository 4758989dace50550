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


@pytest.mark.parametrize("content", [b"", b'{"latest": {"hist', b"[]", b"\xff\xfe", b"[" * 10**6])
def test_a_damaged_file_is_recovered_from_its_copy(
    book: AliasBook, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    point(book, "a", "b")
    (tmp_path / "aliases.json").write_bytes(content)
    for _ in range(3):
        assert book.read()["latest"].model_id == "b"
    assert len([one for one in caplog.messages if "aliases.json" in one]) == 1, "it floods the log"
    point(book, "c")
    assert (tmp_path / "aliases.damaged.json").read_bytes() == content
    history = AliasBook(tmp_path / "aliases.json").read()["latest"].history
    assert [move.model_id for move in history] == ["a", "b", "c"]


def test_a_missing_file_is_recovered_from_its_copy(book: AliasBook, tmp_path: Path) -> None:
    point(book, "a", "b")
    (tmp_path / "aliases.json").unlink()
    assert book.read()["latest"].model_id == "b"


@pytest.mark.parametrize("entry", [None, 7, {}, {"history": []}, {"history": [{"model": 5}]}])
def test_a_damaged_entry_does_not_lose_the_others(
    book: AliasBook, tmp_path: Path, entry: object
) -> None:
    point(book, "a")
    with book.change() as change:
        change.point("other", "b")
    (tmp_path / "aliases.copy.json").unlink()
    file = tmp_path / "aliases.json"
    durable.write_json(file, {**durable.read_json(file), "spoiled": entry})
    assert {name: alias.model_id for name, alias in book.read().items()} == {
        "latest": "a",
        "other": "b",
    }
    point(book, "c")
    assert durable.read_json(file)["spoiled"] == entry, "what cannot be read was thrown away"


def test_a_damaged_entry_is_recovered_from_the_copy(book: AliasBook, tmp_path: Path) -> None:
    point(book, "a", "b")
    with book.change() as change:
        change.point("other", "c")
    file = tmp_path / "aliases.json"
    durable.write_json(file, {**durable.read_json(file), "latest": None})
    assert book.read()["latest"].model_id == "b"
    assert book.read()["other"].model_id == "c"


def test_a_file_that_nothing_can_replace_is_no_fault_of_a_request(
    book: AliasBook, tmp_path: Path
) -> None:
    point(book, "a")
    for name in ("aliases.json", "aliases.copy.json"):
        (tmp_path / name).write_bytes(b"{")
    with pytest.raises(durable.DamagedFileError, match=r"aliases\.json' is damaged") as caught:
        book.read()
    assert caught.value.path == tmp_path / "aliases.json"
    assert not isinstance(caught.value, ValueError)
    with pytest.raises(durable.DamagedFileError):
        point(book, "b")
    assert (tmp_path / "aliases.json").read_bytes() == b"{", "it was overwritten"


def test_a_file_of_before_copies_gets_one(book: AliasBook, tmp_path: Path) -> None:
    history = [{"model": "a", "at": 5}]
    durable.write_json(tmp_path / "aliases.json", {"latest": {"model": "a", "history": history}})
    book.ensure_copy()
    (tmp_path / "aliases.json").write_bytes(b"")
    assert book.read()["latest"].model_id == "a"
