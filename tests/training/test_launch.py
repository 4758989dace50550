import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from training.dataset import Row, encode_row
from training.launch import (
    ResourceError,
    UnknownModelError,
    check_resources,
    encode_data,
    save_data,
    split_tokens,
)
from training.runs import RunFolder
from training.spec import TrainingSpec
from training.token_rows import TokenRows

ROW = {"prompt": "How many loaves?", "completion": "Twelve."}


def make_spec(base_model: str | Path, train_file: Path, **settings: object) -> TrainingSpec:
    return TrainingSpec.model_validate(
        {"base_model": str(base_model), "train_file": str(train_file), **settings}
    )


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{json.dumps(ROW)}\n" * 5)
    return file


def test_rows_are_kept_as_they_were_encoded(tiny_model: Path, rows: Path, tmp_path: Path) -> None:
    data = encode_data(make_spec(tiny_model, rows))
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    save_data(run, data)
    kept = TokenRows(run.data)
    assert kept.lengths == [len(row.input_ids) for row in data.rows]
    assert kept.collate([0]).input_ids.tolist() == [data.rows[0].input_ids]
    (event,) = run.read_events()
    assert event["data"]["num_rows"] == 5
    assert event["data"]["num_learned_tokens"] == 5 * data.rows[0].num_learned


def test_truncation_is_told(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"text": "loaves " * 400}) + "\n" + json.dumps(ROW | {"text": "a"}))
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    save_data(run, encode_data(make_spec(tiny_model, file, format="text")))
    warning = run.read_events()[-1]
    assert warning["level"] == "warn"
    assert warning["message"] == "1 rows are longer than 128 tokens and were truncated"


def test_an_unknown_base_model_is_named(rows: Path) -> None:
    with pytest.raises(UnknownModelError, match="base_model 'no/such-model' is neither the folder"):
        encode_data(make_spec("no/such-model", rows))


def test_a_length_beyond_the_context_is_refused(tiny_model: Path, rows: Path) -> None:
    with pytest.raises(ValueError, match="max_length is 512, but .* a context of 128 tokens"):
        encode_data(make_spec(tiny_model, rows, max_length=512))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_workers": 8, "cpus_per_worker": 1}, "8 workers × 1 CPUs = 8 CPUs.*cluster has 2"),
        ({"num_workers": 1, "cpus_per_worker": 3}, "3 CPUs.*at most 2 on one node"),
        ({"num_workers": 3, "cpus_per_worker": 0.7}, "3 workers × 0.7 CPUs"),
        ({"accelerator": "gpu"}, "2 workers with one GPU each were asked for, .* has 0 GPUs"),
    ],
)
def test_resources_that_can_never_be_had_are_refused(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ResourceError, match=message):
        check_resources(make_spec("m", Path("f"), **settings), [{"CPU": 2.0}])


def test_workers_must_fit_on_nodes_one_by_one() -> None:
    spec = make_spec("m", Path("f"), num_workers=4, cpus_per_worker=0.75)
    with pytest.raises(ResourceError, match="the cluster has 3, at most 1 on one node"):
        check_resources(spec, [{"CPU": 1.0}] * 3)
    check_resources(spec, [{"CPU": 1.0}] * 4)


def test_what_serving_holds_is_not_to_be_had() -> None:
    spec = make_spec("m", Path("f"), num_workers=2, cpus_per_worker=0.8)
    check_resources(spec, [{"CPU": 2.0}])
    with pytest.raises(ResourceError, match="has 1.3 besides the 0.7 that serving holds"):
        check_resources(spec, [{"CPU": 2.0}], reserved_cpus=0.7)


def test_a_row_is_shown_token_by_token(tokenizer: PreTrainedTokenizerBase) -> None:
    messages = (
        {"role": "user", "content": "你好?"},
        {"role": "assistant", "content": "Grüße 🚀"},
    )
    pieces = split_tokens(encode_row(Row(1, messages), tokenizer, 128), tokenizer)
    assert "".join(text for text, _ in pieces) == (
        "<|im_start|>user\n你好?<|im_end|>\n<|im_start|>assistant\nGrüße 🚀<|im_end|>\n"
    )
    assert "".join(text for text, learned in pieces if learned) == "Grüße 🚀<|im_end|>"
