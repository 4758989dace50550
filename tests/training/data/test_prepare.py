import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datasets
import pytest
from transformers import PreTrainedTokenizerBase

from tests.tiny_model import CONTEXT_LENGTH
from training.base_model import UnknownModelError
from training.data import token_cache
from training.data.faults import DataError
from training.data.prepare import PreparedData, prepare_data
from training.data.row_table import RowTable
from training.data.run_tables import link_data
from training.data.text.preview import preview_rows
from training.data.text.token_layout import TOKEN_LAYOUT
from training.data.token_cache import default_cache, prune_cache
from training.spec import TrainingSpec


def make_records(num_rows: int) -> list[dict[str, str]]:
    return [
        {"prompt": f"How many loaves on day {day}?", "completion": f"{day * 12}, and two."}
        for day in range(num_rows)
    ]


def write_rows(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def make_spec(base_model: Path, **settings: Any) -> TrainingSpec:
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in settings.items()}
    return TrainingSpec.model_validate({"base_model": str(base_model), **settings})


def read_texts(table: Path, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    tokens = RowTable(table, TOKEN_LAYOUT)
    return [str(tokenizer.decode(ids)) for ids, _ in tokens.read(range(len(tokens)))]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl", make_records(20))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_prepare_data_writes_table_and_summary(tiny_model: Path, rows: Path, cache: Path) -> None:
    progress: list[tuple[int, int]] = []
    prepared = prepare_data(
        make_spec(tiny_model, train_file=rows), cache, lambda *done: progress.append(done)
    )
    table = RowTable(prepared.folder / "train.arrow", TOKEN_LAYOUT)
    assert prepared.summary == {
        "format": "prompt_completion",
        "num_rows": 20,
        "num_tokens": table.lengths.sum(),
        "num_learned_tokens": table.num_targets.sum(),
        "num_truncated_rows": 0,
        "num_dropped_rows": 0,
        "num_split_rows": 0,
        "has_end_token": True,
        "ignored_keys": {},
        "dropped_lines": [],
        "max_length": CONTEXT_LENGTH,
        "name": "rows.jsonl",
        "sha256": prepared.summary["fingerprint"],
        "fingerprint": prepared.summary["fingerprint"],
        "cache": "miss",
        "validation": None,
    }
    assert table.find_lines([4, 0]) == [5, 1]
    assert progress[-1] == (rows.stat().st_size, rows.stat().st_size)
    for (ids, learned), length, num in zip(
        table.read(range(20)), table.lengths, table.num_targets, strict=True
    ):
        assert (len(ids), learned[1:].sum()) == (length, num)


def test_cache_hit_for_renamed_file(tiny_model: Path, rows: Path, cache: Path) -> None:
    first = prepare_data(make_spec(tiny_model, train_file=rows), cache)
    renamed = rows.rename(rows.with_name("others.jsonl"))
    again = prepare_data(make_spec(tiny_model, train_file=renamed, learning_rate=1e-5), cache)
    assert again.folder == first.folder
    assert again.summary == {**first.summary, "name": "others.jsonl", "cache": "hit"}


@pytest.mark.parametrize(
    "settings",
    [
        {"max_length": 64},
        {"overlong": "drop"},
        {"format": "prompt_completion"},
        {"columns": {"prompt": "completion", "completion": "prompt"}},
        {"validation_fraction": 0.1},
        {"max_rows": 20},
        {"text_rows": "document"},
    ],
)
def test_changed_data_setting_creates_cache_entry(
    tiny_model: Path, rows: Path, cache: Path, settings: dict[str, Any]
) -> None:
    prepare_data(make_spec(tiny_model, train_file=rows), cache)
    other = prepare_data(make_spec(tiny_model, train_file=rows, **settings), cache)
    assert other.summary["cache"] == "miss"


def test_changed_rows_or_template_create_cache_entry(
    tiny_model: Path, rows: Path, cache: Path, tmp_path: Path
) -> None:
    spec = make_spec(tiny_model, train_file=rows)
    prepare_data(spec, cache)
    write_rows(rows, make_records(21))
    assert prepare_data(spec, cache).summary["num_rows"] == 21
    copy = tmp_path / "other"
    copy.mkdir()
    for file in tiny_model.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    template = copy / "chat_template.jinja"
    template.write_text("Talk:" + template.read_text())
    other = spec.model_copy(update={"base_model": str(copy)})
    assert prepare_data(other, cache).summary["cache"] == "miss"


@pytest.mark.parametrize("damage", ["cut", "gone", "manifest"])
def test_damaged_cache_entry_is_rebuilt(
    tiny_model: Path, rows: Path, cache: Path, damage: str
) -> None:
    spec = make_spec(tiny_model, train_file=rows)
    first = prepare_data(spec, cache)
    table = first.folder / "train.arrow"
    whole = table.read_bytes()
    if damage == "cut":
        table.write_bytes(whole[:-8])
    elif damage == "gone":
        table.unlink()
    else:
        (first.folder / "manifest.json").write_text("{")
    again = prepare_data(spec, cache)
    assert again.summary["cache"] == "miss"
    assert table.read_bytes() == whole
    assert [path.name for path in cache.iterdir()] == [first.folder.name]


def test_rejected_rows_leave_no_cache_entry(tiny_model: Path, rows: Path, cache: Path) -> None:
    write_rows(rows, [*make_records(3), {"prompt": "x", "completion": ""}])
    with pytest.raises(DataError, match="^rows.jsonl: 1 of 4 rows cannot be used"):
        prepare_data(make_spec(tiny_model, train_file=rows), cache)
    assert list(cache.iterdir()) == []


def test_prune_cache_keeps_size_limit(tiny_model: Path, rows: Path, cache: Path) -> None:
    made = []
    for length in (32, 64, 96, 128):
        spec = make_spec(tiny_model, train_file=rows, max_length=length)
        made.append(prepare_data(spec, cache).folder)
    for age, folder in enumerate(made):
        os.utime(folder / "manifest.json", (age, age))
    prepare_data(make_spec(tiny_model, train_file=rows, max_length=32), cache)  # most recent use
    size = sum(path.stat().st_size for path in made[0].iterdir())
    prune_cache(cache, [made[1].name], int(2.5 * size))
    assert {path.name for path in cache.iterdir()} == {made[0].name, made[1].name}
    prune_cache(cache, [made[1].name], 0)
    assert {path.name for path in cache.iterdir()} == {made[1].name}


def test_preview_of_long_rows_has_fewer_rows(
    tiny_model: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(tiny_model, train_file=rows)
    every_row = preview_rows(spec, 10).rows
    enough = sum(len(row.input_ids) for row in every_row[:3])
    monkeypatch.setattr("training.data.text.preview._ENOUGH_TOKENS", enough)
    assert [row.line for row in preview_rows(spec, 10).rows] == [1, 2, 3]
    assert len(every_row) == 10


def test_unreadable_cache_entry_does_not_stop_pruning(
    tiny_model: Path, rows: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for length in (32, 64):
        prepare_data(make_spec(tiny_model, train_file=rows, max_length=length), cache)
    for name in ("aaa", "zzz"):
        (cache / name).mkdir()
        (cache / name / "manifest.json").write_text("{}")
        (cache / name / "loop").symlink_to(cache / name / "loop")
    (cache / "linked").mkdir()
    (cache / "linked" / "manifest.json").symlink_to(cache / "linked" / "manifest.json")
    prune_cache(cache, [], 0)
    assert {path.name for path in cache.iterdir()} == {"aaa", "zzz", "linked"}
    assert "aaa cannot be read and stay: [Errno 40] Too many levels of symbolic" in caplog.text


def test_old_unfinished_cache_entry_is_removed(cache: Path) -> None:
    old, new = cache / ".unfinished-a", cache / ".unfinished-b"
    old.mkdir(parents=True)
    new.mkdir()
    os.utime(old, (0, 0))
    prune_cache(cache, ["none"])
    assert list(cache.iterdir()) == [new]


def test_concurrent_preparations_share_cache_entry(
    tiny_model: Path, rows: Path, cache: Path
) -> None:
    write_rows(rows, make_records(300))
    spec = make_spec(tiny_model, train_file=rows)
    with ThreadPoolExecutor(4) as pool:
        several = list(pool.map(lambda _: prepare_data(spec, cache), range(4)))
    assert len({data.folder for data in several}) == 1
    assert [path.name for path in cache.iterdir()] == [several[0].folder.name]
    assert len(RowTable(several[0].folder / "train.arrow", TOKEN_LAYOUT)) == 300


def test_second_preparation_uses_published_cache_entry(
    tiny_model: Path, rows: Path, cache: Path
) -> None:
    spec = make_spec(tiny_model, train_file=rows)
    first = prepare_data(spec, cache)
    inode = (first.folder / "train.arrow").stat().st_ino
    with token_cache.build_entry(cache, first.folder.name) as building:
        (building / "train.arrow").write_text("the same, made at the same time")
    assert (first.folder / "train.arrow").stat().st_ino == inode
    assert [path.name for path in cache.iterdir()] == [first.folder.name]


def test_seed_selects_held_out_rows(
    tiny_model: Path, rows: Path, cache: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    def prepare(seed: int, where: Path) -> PreparedData:
        spec = make_spec(tiny_model, train_file=rows, validation_fraction=0.25, seed=seed)
        return prepare_data(spec, where)

    data = prepare(1, cache)
    train = RowTable(data.folder / "train.arrow", TOKEN_LAYOUT)
    held_out = RowTable(data.folder / "validation.arrow", TOKEN_LAYOUT)
    lines = [train.find_lines(range(len(train))), held_out.find_lines(range(len(held_out)))]
    assert (len(train), len(held_out)) == (15, 5)
    assert sorted(lines[0] + lines[1]) == list(range(1, 21))
    assert lines == [sorted(lines[0]), sorted(lines[1])]
    assert data.summary["num_rows"] == 15
    assert data.summary["validation"]["num_tokens"] == held_out.lengths.sum()
    texts = read_texts(data.folder / "validation.arrow", tokenizer)
    assert all(f"day {line - 1}?" in text for line, text in zip(lines[1], texts, strict=True))
    again = prepare(1, tmp_path / "elsewhere").folder / "validation.arrow"
    assert again.read_bytes() == (data.folder / "validation.arrow").read_bytes()
    assert read_texts(prepare(2, cache).folder / "validation.arrow", tokenizer) != texts


def test_unused_keys_are_counted(tiny_model: Path, rows: Path, cache: Path) -> None:
    records: list[dict[str, Any]] = make_records(10)
    for index, record in enumerate(records):
        record |= {"id": index, **({"note": "x"} if index < 4 else {})}
    write_rows(rows, records)
    spec = make_spec(tiny_model, train_file=rows)
    assert prepare_data(spec, cache).summary["ignored_keys"] == {"id": 10, "note": 4}
    assert prepare_data(spec, cache).summary["ignored_keys"] == {"id": 10, "note": 4}  # a hit
    assert preview_rows(spec, 2).ignored_keys == {"id": 2, "note": 2}
    split = spec.model_copy(update={"validation_fraction": 0.5})
    assert prepare_data(split, cache).summary["ignored_keys"] == {"id": 10, "note": 4}
    held_out = spec.model_copy(update={"validation_file": str(rows)})
    assert prepare_data(held_out, cache).summary["validation"]["ignored_keys"]["note"] == 4


def test_number_of_ignored_key_names_is_limited(tiny_model: Path, rows: Path, cache: Path) -> None:
    records: list[dict[str, Any]] = make_records(100)
    for index, record in enumerate(records):
        record |= {f"key {index}": 1, "k" * 5000: 1}
    write_rows(rows, records)
    found = prepare_data(make_spec(tiny_model, train_file=rows), cache).summary["ignored_keys"]
    assert len(found) == 65
    assert found["(other keys)"] == 37
    assert max(map(len, found)) == 80


def make_mix(tiny_model: Path, folder: Path, **settings: Any) -> TrainingSpec:
    """Build a spec with 20 rows of weight 2 and 10 rows of weight 0.5."""
    write_rows(folder / "a.jsonl", make_records(20))
    others = [{"instruction": f"Bake {index}.", "output": "Done."} for index in range(10)]
    write_rows(folder / "b.jsonl", others)
    weights = {"a.jsonl": 2, "b.jsonl": 0.5}
    files = [{"file": str(folder / name), "weight": weight} for name, weight in weights.items()]
    return make_spec(tiny_model, train_files=files, **settings)


def test_files_are_mixed_by_weight_and_seed(
    tiny_model: Path, cache: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    spec = make_mix(tiny_model, tmp_path)
    data = prepare_data(spec, cache)
    texts = read_texts(data.train, tokenizer)
    assert len(texts) == 45
    assert all(sum(f"day {day}?" in text for text in texts) == 2 for day in range(20))
    assert sum("Bake" in text for text in texts) == 5
    assert data.summary["num_rows"] == 45
    assert data.summary["format"] == "prompt_completion, alpaca"
    assert data.summary["name"] == "a.jsonl and 1 more"
    assert data.summary["sources"] == [
        {"name": "a.jsonl", "weight": 2, "num_files": 1, "num_rows": 40, "num_dropped_rows": 0},
        {"name": "b.jsonl", "weight": 0.5, "num_files": 1, "num_rows": 5, "num_dropped_rows": 0},
    ]
    again = prepare_data(spec, cache)
    assert (again.summary["cache"], again.train) == ("hit", data.train)
    elsewhere = prepare_data(spec, tmp_path / "elsewhere")
    assert elsewhere.train.read_bytes() == data.train.read_bytes()
    other = prepare_data(spec.model_copy(update={"seed": 7}), cache)
    assert read_texts(other.train, tokenizer) != texts
    assert other.summary["fingerprint"] == data.summary["fingerprint"]
    heavier = spec.train_files[1].model_copy(update={"weight": 1})
    changed = spec.model_copy(update={"train_files": (spec.train_files[0], heavier)})
    assert prepare_data(changed, cache).summary["fingerprint"] != data.summary["fingerprint"]


def test_rows_of_mix_are_held_out_before_repetition(
    tiny_model: Path, cache: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    data = prepare_data(make_mix(tiny_model, tmp_path, validation_fraction=0.3), cache)
    assert data.validation is not None
    held_out = read_texts(data.validation, tokenizer)
    assert len(held_out) == len(set(held_out)) == data.summary["validation"]["num_rows"] == 9
    assert not set(held_out) & set(read_texts(data.train, tokenizer))


def test_files_of_folder_are_read_in_order(
    tiny_model: Path, cache: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for day, name in enumerate(("c.jsonl", "a.jsonl", "b.jsonl")):
        write_rows(folder / name, make_records(day + 2)[-1:])
    spec = make_spec(tiny_model, train_file=folder, validation_file=folder / "[ab].jsonl")
    data = prepare_data(spec, cache)
    days = [text.split("day ")[1][0] for text in read_texts(data.train, tokenizer)]
    assert days == ["2", "3", "1"]  # sorted by file name
    assert data.validation is not None
    assert len(read_texts(data.validation, tokenizer)) == 2
    assert data.summary["name"] == "many"
    assert data.summary["sources"][0]["num_files"] == 3
    assert prepare_data(spec, cache).summary["cache"] == "hit"
    with (folder / "b.jsonl").open("a") as file:
        file.write('{"prompt": 3}\n')
    with pytest.raises(DataError, match="^b.jsonl: 1 of 2 rows cannot be used") as caught:
        prepare_data(spec, cache)
    assert caught.value.role == "training"


def test_dropped_rows_and_ignored_keys_of_mix_are_summed(
    tiny_model: Path, cache: Path, tmp_path: Path
) -> None:
    spec = make_mix(tiny_model, tmp_path, overlong="drop", max_length=64)
    long_row = {"prompt": "x " * 300, "completion": "y", "id": 1}
    write_rows(tmp_path / "a.jsonl", [*make_records(3), long_row])
    write_rows(tmp_path / "b.jsonl", [*make_records(3), {**long_row, "note": "z"}])
    summary = prepare_data(spec, cache).summary
    assert (summary["num_dropped_rows"], summary["dropped_lines"]) == (2, [])
    assert summary["ignored_keys"] == {"id": 2, "note": 1}
    assert [source["num_dropped_rows"] for source in summary["sources"]] == [1, 1]


def test_max_rows_limits_rows_of_each_file(
    tiny_model: Path, rows: Path, cache: Path, tmp_path: Path
) -> None:
    with rows.open("a") as file:
        file.write("this is no JSON\n")
    spec = make_spec(tiny_model, train_file=rows, max_rows=5)
    data = prepare_data(spec, cache)
    assert data.summary["num_rows"] == 5
    assert RowTable(data.train, TOKEN_LAYOUT).find_lines(range(5)) == [1, 2, 3, 4, 5]
    fewer = prepare_data(spec.model_copy(update={"max_rows": 4}), cache)
    assert (fewer.summary["num_rows"], fewer.summary["cache"]) == (4, "miss")
    mixed = prepare_data(make_mix(tiny_model, tmp_path, max_rows=4), cache)
    assert mixed.summary["num_rows"] == 2 * 4 + 2
    assert len(preview_rows(spec, 20).rows) == 5
    with pytest.raises(
        DataError, match="^rows.jsonl: 1 of 21 rows cannot be used"
    ):  # all rows are read
        prepare_data(spec.model_copy(update={"max_rows": None, "validation_file": None}), cache)
    other = write_rows(tmp_path / "heldout.jsonl", make_records(9))
    held_out = spec.model_copy(update={"validation_file": str(other)})
    assert prepare_data(held_out, cache).summary["validation"]["num_rows"] == 9


def test_single_row_cannot_be_split(tiny_model: Path, rows: Path, cache: Path) -> None:
    write_rows(rows, make_records(1))
    with pytest.raises(DataError, match="^rows.jsonl: 1 row is too few to hold out a validation"):
        prepare_data(make_spec(tiny_model, train_file=rows, validation_fraction=0.1), cache)
    write_rows(rows, make_records(2))
    spec = make_spec(tiny_model, train_file=rows, validation_fraction=0.01)
    summary = prepare_data(spec, cache).summary
    assert (summary["num_rows"], summary["validation"]["num_rows"]) == (1, 1)


def test_validation_file_is_checked_completely(
    tiny_model: Path, rows: Path, cache: Path, tmp_path: Path
) -> None:
    other = write_rows(tmp_path / "heldout.jsonl", [{"instruction": "a", "output": "b"}] * 3)
    spec = make_spec(tiny_model, train_file=rows, validation_file=other)
    assert prepare_data(spec, cache).summary["validation"]["num_rows"] == 3
    write_rows(other, [*make_records(1), {"prompt": "x", "completion": 3}])
    with pytest.raises(DataError, match="^heldout.jsonl: 1 of 2 rows .* is 3, expected text"):
        prepare_data(spec, cache)
    write_rows(other, [{"prompt": "x"}])  # parsed in the format of the training rows
    with pytest.raises(DataError, match="^heldout.jsonl: .* 'completion' is missing"):
        prepare_data(spec, cache)


@pytest.mark.parametrize("overlong", ["truncate", "drop"])
def test_long_rows_are_truncated_or_dropped_and_counted(
    tiny_model: Path, rows: Path, cache: Path, overlong: str
) -> None:
    long_answer = {"prompt": "x", "completion": "loaves " * 300}
    long_prompt = {"prompt": "loaves " * 300, "completion": "x"}
    write_rows(rows, [*make_records(2), long_answer, long_prompt])
    spec = make_spec(tiny_model, train_file=rows, overlong=overlong, max_length=64)
    prepared = prepare_data(spec, cache)
    counts = [prepared.summary[f"num_{what}_rows"] for what in ("truncated", "dropped")]
    if overlong == "truncate":
        assert counts == [1, 1]
        assert prepared.summary["dropped_lines"] == [4]
        assert RowTable(prepared.folder / "train.arrow", TOKEN_LAYOUT).lengths[2] == 64
    else:
        assert counts == [0, 2]
        assert prepared.summary["dropped_lines"] == [3, 4]


@pytest.mark.parametrize("can_link", [True, False])
def test_run_data_remains_after_cache_pruning(
    tiny_model: Path,
    rows: Path,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    can_link: bool,
) -> None:
    prepared = prepare_data(make_spec(tiny_model, train_file=rows, validation_fraction=0.1), cache)
    if not can_link:

        def refuse(*paths: Path) -> None:
            raise OSError("no hard links here")

        monkeypatch.setattr(os, "link", refuse)
    data = tmp_path / "run" / "data"
    for _ in range(2):  # a run may be prepared again
        link_data(prepared, data)
    inodes = {(folder / "train.arrow").stat().st_ino for folder in (data, prepared.folder)}
    assert len(inodes) == (1 if can_link else 2)
    prune_cache(cache, ["none"], 0)
    assert len(RowTable(data / "train.arrow", TOKEN_LAYOUT)) == 18
    assert len(RowTable(data / "validation.arrow", TOKEN_LAYOUT)) == 2
    summary = json.loads((data / "summary.json").read_text())
    assert summary == {k: v for k, v in prepared.summary.items() if k != "cache"}


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_data_set_in_folder_is_read(
    tiny_model: Path,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    datasets.disable_progress_bars()
    first = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Two."}]
    silent = {"role": "assistant", "content": "No.", "weight": 0}
    records: list[Any] = [{"messages": first}, {"messages": [*first, silent]}]
    folder = tmp_path / "loaves"
    folder.mkdir()
    if kind == "parquet":
        datasets.Dataset.from_list(records).to_parquet(folder / "train.parquet")
    else:
        write_rows(folder / "train.jsonl", records)
    spec = make_spec(tiny_model, train_dataset={"id": str(folder)})
    prepared = prepare_data(spec, cache)
    assert (prepared.summary["format"], prepared.summary["name"]) == ("chat", "loaves")
    table = RowTable(prepared.folder / "train.arrow", TOKEN_LAYOUT)
    assert table.find_lines([0, 1]) == [1, 2]
    assert table.num_targets[0] == table.num_targets[1]  # weight 0 and nulls are supported
    assert prepare_data(spec, cache).summary["cache"] == "hit"
    spec = make_spec(tiny_model, train_dataset={"id": str(folder), "split": "tset"})
    with pytest.raises(
        DataError, match=r"^the data set 'loaves' \(split 'tset'\) cannot be loaded: .*tset"
    ) as e:
        prepare_data(spec, cache)
    assert str(tmp_path) not in str(e.value)


def test_unknown_data_set_is_named(tiny_model: Path, cache: Path) -> None:
    spec = make_spec(tiny_model, train_dataset={"id": "no/such-data"})
    with pytest.raises(DataError, match="^the data set 'no/such-data' .* cannot be loaded"):
        prepare_data(spec, cache)


def test_preview_reads_only_shown_rows(tiny_model: Path, rows: Path) -> None:
    with rows.open("a") as file:
        file.write("this is no JSON\n")
    shown = preview_rows(make_spec(tiny_model, train_file=rows), 3)
    assert (shown.format, shown.max_length) == ("prompt_completion", CONTEXT_LENGTH)
    assert [row.line for row in shown.rows] == [1, 2, 3]
    with pytest.raises(DataError, match="^rows.jsonl: 1 of 21 rows cannot be used: "):
        preview_rows(make_spec(tiny_model, train_file=rows), 21)


def test_unknown_base_model_is_named(rows: Path, cache: Path) -> None:
    spec = make_spec(Path("no/such-model"), train_file=rows)
    with pytest.raises(
        UnknownModelError, match="^base_model 'no/such-model' is neither the folder"
    ):
        prepare_data(spec, cache)


def test_max_length_over_context_is_rejected(tiny_model: Path, rows: Path, cache: Path) -> None:
    with pytest.raises(ValueError, match="^max_length is 512, but .* a context of 128 tokens"):
        prepare_data(make_spec(tiny_model, train_file=rows, max_length=512), cache)


def test_default_cache_follows_xdg_cache_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache() == Path("/somewhere/tuneserve/tokens")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "tuneserve" / "tokens"
