import os
import random
from functools import partial
from pathlib import Path

import pytest

from serving.errors import ModelNotFoundError
from serving.store.alias_history import AliasMove, list_earlier
from serving.store.aliases import AliasBook, AliasChange
from storage import durable


@pytest.fixture
def book(tmp_path: Path) -> AliasBook:
    return AliasBook(tmp_path / "aliases.json")


def point(book: AliasBook, *models: str) -> None:
    for model in models:
        with book.change() as change:
            change.point("latest", model)


def roll_back(book: AliasBook, *, missing: str = "") -> str:
    with book.change() as change:
        return change.roll_back("latest", lambda model: model != missing).model_id


def test_each_move_is_recorded_in_history(book: AliasBook) -> None:
    assert book.read() == {}
    point(book, "a", "b", "b", "a")
    history = book.read()["latest"].history
    assert [move.model_id for move in history] == ["a", "b", "a"]
    assert all(abs(move.at - history[0].at) < 60 for move in history)


def test_each_rollback_selects_previous_model(book: AliasBook) -> None:
    point(book, "a", "b", "c")
    assert roll_back(book) == "b"
    assert roll_back(book) == "a"
    with pytest.raises(
        ModelNotFoundError, match="^alias 'latest' has no earlier model to go back to$"
    ):
        roll_back(book)
    assert book.read()["latest"].model_id == "a"
    point(book, "d")
    assert roll_back(book) == "a", "the rollback selected a model that was rolled back before"
    moves = book.read()["latest"].history
    assert [move.model_id for move in moves] == ["a", "b", "c", "b", "a", "d", "a"]
    assert [move.is_rollback for move in moves] == [False, False, False, True, True, False, True]


def test_rollback_skips_deleted_models(book: AliasBook) -> None:
    point(book, "a", "b", "c")
    assert roll_back(book, missing="b") == "a"


def test_rollback_skips_current_model(book: AliasBook) -> None:
    point(book, "c", "a", "b", "a")
    assert roll_back(book, missing="b") == "c"
    with pytest.raises(ModelNotFoundError, match="^alias '.*' has no earlier model to go back to$"):
        roll_back(book)


def test_removed_alias_keeps_its_history(book: AliasBook, tmp_path: Path) -> None:
    point(book, "a", "b")
    with book.change() as change:
        change.remove("latest")
    assert book.read() == {}
    with (
        pytest.raises(ModelNotFoundError, match="^there is no alias 'latest'$"),
        book.change() as c,
    ):
        c.remove("latest")
    point(book, "c")
    assert [move.model_id for move in book.read()["latest"].history] == ["a", "b", None, "c"]
    with pytest.raises(ModelNotFoundError, match="^alias '.*' has no earlier model to go back to$"):
        roll_back(book)
    assert durable.read_json(tmp_path / "aliases.json")["latest"]["model"] == "c"


def fail_change(change: AliasChange) -> None:
    change.point("latest", "b")
    raise ValueError("no")


def test_failed_change_is_not_stored(book: AliasBook) -> None:
    point(book, "a")
    with pytest.raises(ValueError, match="^no$"), book.change() as change:
        fail_change(change)
    assert book.read()["latest"].model_id == "a"


def test_history_without_rollback_fields_is_read(book: AliasBook, tmp_path: Path) -> None:
    history = [{"model": "a", "at": 5}]
    durable.write_json(tmp_path / "aliases.json", {"latest": {"model": "a", "history": history}})
    assert book.read()["latest"].history == (AliasMove("a", 5),)


@pytest.mark.parametrize("content", [b"", b'{"latest": {"hist', b"[]", b"\xff\xfe", b"[" * 10**6])
def test_damaged_alias_file_is_recovered_from_copy(
    book: AliasBook, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    point(book, "a", "b")
    (tmp_path / "aliases.json").write_bytes(content)
    for _ in range(3):
        assert book.read()["latest"].model_id == "b"
    assert len([one for one in caplog.messages if "aliases.json" in one]) == 1, (
        "the same error is logged repeatedly"
    )
    point(book, "c")
    assert (tmp_path / "aliases.damaged.json").read_bytes() == content
    history = AliasBook(tmp_path / "aliases.json").read()["latest"].history
    assert [move.model_id for move in history] == ["a", "b", "c"]


def test_missing_alias_file_is_recovered_from_copy(book: AliasBook, tmp_path: Path) -> None:
    point(book, "a", "b")
    (tmp_path / "aliases.json").unlink()
    assert book.read()["latest"].model_id == "b"


@pytest.mark.parametrize(
    "entry",
    [
        None,
        7,
        {},
        {"history": []},
        {"history": [{"model": 5}]},
        {"history": [7]},
        {"history": [{"model": "a", "at": 1}], "past_models": [7]},
    ],
)
def test_damaged_entry_does_not_affect_other_entries(
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
    assert durable.read_json(file)["spoiled"] == entry, "the unreadable entry was removed"


def test_damaged_entry_is_recovered_from_copy(book: AliasBook, tmp_path: Path) -> None:
    point(book, "a", "b")
    with book.change() as change:
        change.point("other", "c")
    file = tmp_path / "aliases.json"
    durable.write_json(file, {**durable.read_json(file), "latest": None})
    assert book.read()["latest"].model_id == "b"
    assert book.read()["other"].model_id == "c"


def test_unrecoverable_alias_file_raises_damaged_file_error(
    book: AliasBook, tmp_path: Path
) -> None:
    point(book, "a")
    for name in ("aliases.json", "aliases.copy.json"):
        (tmp_path / name).write_bytes(b"{")
    with pytest.raises(
        durable.DamagedFileError, match=r"^'.*/aliases\.json' is damaged: it cannot be read: "
    ) as caught:
        book.read()
    assert caught.value.path == tmp_path / "aliases.json"
    assert not isinstance(caught.value, ValueError)
    with pytest.raises(durable.DamagedFileError):
        point(book, "b")
    assert (tmp_path / "aliases.json").read_bytes() == b"{", "the damaged file was overwritten"


def test_alias_file_without_copy_gets_copy(book: AliasBook, tmp_path: Path) -> None:
    history = [{"model": "a", "at": 5}]
    durable.write_json(tmp_path / "aliases.json", {"latest": {"model": "a", "history": history}})
    book.ensure_copy()
    (tmp_path / "aliases.json").write_bytes(b"")
    assert book.read()["latest"].model_id == "a"


def test_unknown_fields_of_newer_version_are_kept_by_changes(
    book: AliasBook, tmp_path: Path
) -> None:
    point(book, "a", "b")
    with book.change() as change:
        change.point("other", "c")
    file = tmp_path / "aliases.json"
    written = durable.read_json(file)
    written["latest"]["owner"] = {"team": "ovens"}
    written["latest"]["history"][0]["by"] = "ann"
    written["other"]["frozen"] = True
    durable.write_json(file, written)
    point(book, "c")
    kept = durable.read_json(file)
    assert kept["latest"]["owner"] == {"team": "ovens"}
    assert kept["latest"]["history"][0]["by"] == "ann"
    assert kept["latest"]["history"][-1]["model"] == kept["latest"]["model"] == "c"
    assert kept["other"] == written["other"]
    assert durable.read_json(tmp_path / "aliases.copy.json") == kept


def test_alias_file_is_parsed_again_only_after_change(book: AliasBook, tmp_path: Path) -> None:
    point(book, "a")
    for path in tmp_path.glob("*.json"):
        os.utime(path, (1, 1))
    first = book.read()["latest"].history
    assert book.read()["latest"].history is first
    other = AliasBook(tmp_path / "aliases.json")
    point(other, "b")
    assert book.read()["latest"].model_id == "b", "the change by another process was not detected"


def test_long_history_is_truncated_and_past_models_are_kept(
    book: AliasBook, tmp_path: Path
) -> None:
    models = [f"model-{number:05d}" for number in range(10_000)]
    for start in range(
        0, len(models), 1_000
    ):  # one write per thousand moves, because a write is slow
        with book.change() as change:
            for model in models[start : start + 1_000]:
                change.point("latest", model)
    history = book.read()["latest"].history
    assert 500 <= len(history) <= 1_000
    assert [move.model_id for move in history][-500:] == models[-500:]
    assert book.read_past_models() == set(models)
    assert (tmp_path / "aliases.json").stat().st_size < 400_000
    for model in models[-2:-102:-1]:
        assert roll_back(book) == model


def is_absent(names: set[str], name: str) -> bool:
    return name not in names


def test_rollback_after_truncation_of_history_selects_same_models(
    book: AliasBook,
) -> None:
    rng = random.Random(7)
    moves: list[AliasMove] = []
    for _ in range(30):
        with book.change() as change:
            for _ in range(100):
                earlier = [m for m in list_earlier(moves) if m != moves[-1].model_id]
                kind = rng.random()
                if kind < 0.4 and len(set(earlier)) > 1:
                    missing = {earlier[0]} if kind < 0.1 else set()
                    target = change.roll_back("latest", partial(is_absent, missing)).model_id
                    moves.append(AliasMove(target, 0, is_rollback=True))
                elif kind < 0.41 and moves and moves[-1].model_id:
                    change.remove("latest")
                    moves.append(AliasMove(None, 0))
                else:
                    model = f"model-{rng.randrange(40)}"
                    if not moves or moves[-1].model_id != model:
                        moves.append(AliasMove(model, 0))
                    change.point("latest", model)
        if (alias := book.read().get("latest")) is not None:
            assert len(alias.history) <= 1_000
            assert alias.list_earlier()[:100] == list_earlier(moves)[:100]
    assert len(moves) > 2_000
    assert book.read_past_models() == {move.model_id for move in moves if move.model_id}
