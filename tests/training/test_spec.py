import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from training.settings.row_sources import HubDataset
from training.settings.stored_spec import read_stored_spec
from training.spec import TrainingSpec, describe_validation_error, load_spec

MINIMAL = {"base_model": "m", "train_file": "rows.jsonl"}


def describe_refusal(change: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        TrainingSpec.model_validate({**MINIMAL, **change})
    return describe_validation_error(caught.value)


@pytest.mark.parametrize(
    "write", [json.dumps, lambda spec: f"base_model: m\ntrain_file: {spec['train_file']}\n"]
)
def test_yaml_and_json_specs_are_equal(tmp_path: Path, write: Any) -> None:
    file = tmp_path / "spec"
    file.write_text(write(MINIMAL))
    spec = load_spec(file)
    assert spec.train_file == str(tmp_path / "rows.jsonl")
    assert spec.base_model == "m"


def test_paths_are_relative_to_spec(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "spec.yaml").write_text(json.dumps(MINIMAL))
    assert load_spec(tmp_path / "spec.yaml").base_model == str(tmp_path / "m")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0}, "learning_rate is 0: it should be greater than 0"),
        ({"learning_rate": float("nan")}, "learning_rate is NaN"),
        (
            {"micro_batch_size": -4},
            "micro_batch_size is -4: it should be greater than or equal to 1",
        ),
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": "many"}, 'epochs is "many"'),
        ({"num_workers": 0}, "num_workers is 0"),
        ({"learning_rat": 1}, "'learning_rat' is not a setting; the settings are: base_model"),
        ({"format": "xml"}, 'format is "xml"'),
        ({"train_file": 3}, "train_file is 3"),
        ({"train_file": ""}, 'train_file is ""'),
        ({"precision": "fp8"}, "precision is \"fp8\": it should be 'auto', 'bf16'"),
        ({"zero_stage": 4}, "zero_stage is 4"),
        ({"validation_fraction": 0.6}, "validation_fraction is 0.6"),
        ({"overlong": "split"}, 'overlong is "split"'),
        ({"batch_layout": "packed"}, 'batch_layout is "packed"'),
        ({"keep_checkpoints": 0}, "keep_checkpoints is 0"),
        ({"max_failures": -1}, "max_failures is -1"),
        ({"min_workers": 0}, "min_workers is 0"),
        ({"trackers": ["aim"]}, "trackers.0 is \"aim\": it should be 'mlflow' or 'wandb'"),
        ({"columns": {"prompt": 3}}, "columns.prompt is 3"),
        ({"adam_betas": [0.9]}, "adam_betas.1 is missing"),
        ({"epochs": True}, "epochs is true, expected no boolean"),
        ({"max_failures": False}, "max_failures is false, expected no boolean"),
        ({"offload_optimizer": "yes"}, 'offload_optimizer is "yes", expected true or false'),
        ({"adam_betas": [0.9, 1.5]}, "adam_betas"),
        (
            {"max_length": 600, "micro_batch_tokens": 512},
            "micro_batch_tokens is 512, less than max_length 600",
        ),
    ],
)
def test_invalid_value_is_reported_with_expectation(change: dict[str, Any], message: str) -> None:
    assert message in describe_refusal(change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"train_file": None},
            "train_file, train_files or train_dataset, and none of them is set: set one of them",
        ),
        (
            {"train_files": [{"file": "a.jsonl"}]},
            "and train_file and train_files are set: set one of them",
        ),
        (
            {"train_file": None, "train_files": [{"file": "a.jsonl", "weight": 0}]},
            "train_files.0.weight is 0: it should be greater than 0",
        ),
        (
            {"train_file": None, "train_files": [{"file": "a.jsonl", "weight": 11}]},
            "train_files.0.weight is 11: it should be less than or equal to 10",
        ),
        (
            {"train_file": None, "train_files": [{"file": "a.jsonl", "weight": True}]},
            "train_files.0.weight is true: it should be a valid number",
        ),
        (
            {"train_file": None, "train_files": [{"path": "a.jsonl"}]},
            "train_files.0.file is missing; 'train_files.0.path' is not a setting",
        ),
        (
            {"train_file": None, "train_files": [{"file": "a.jsonl"}] * 65},
            "expected at most 64 train_files, got 65",
        ),
        (
            {"max_steps": 10, "warmup_steps": 10},
            "warmup_steps is 10, expected fewer than max_steps 10: the learning rate would never",
        ),
        ({"max_steps": 0}, "max_steps is 0"),
        ({"max_rows": 0}, "max_rows is 0"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
        ({"text_rows": "word"}, "text_rows is \"word\": it should be 'line', 'paragraph' or 'doc"),
        (
            {"train_dataset": {"id": "owner/rows"}},
            "and train_file and train_dataset are set: set one of them",
        ),
        (
            {"validation_file": "v.jsonl", "validation_fraction": 0.1},
            "validation_file and validation_fraction are set: set one of them",
        ),
        (
            {"validation_file": "v.jsonl", "validation_dataset": {"id": "owner/rows"}},
            "validation_file and validation_dataset are set: set one of them",
        ),
        ({"train_file": None, "train_dataset": {"split": "train"}}, "train_dataset.id is missing"),
        ({"train_file": None, "train_dataset": {"id": ""}}, 'train_dataset.id is ""'),
        (
            {"train_file": None, "train_dataset": {"id": "owner/rows", "splt": "test"}},
            "'train_dataset.splt' is not a setting",
        ),
    ],
)
def test_rows_have_exactly_one_source(change: dict[str, Any], message: str) -> None:
    assert message in describe_refusal(change)


@pytest.mark.parametrize("place", ["s3://key:secret@rows/a", "https://key:secret@host/a"])
def test_credentials_of_refused_url_are_not_shown(place: str) -> None:
    with pytest.raises(ValidationError, match="expected a path of the file system") as caught:
        TrainingSpec(base_model="m", train_file=place)
    assert "secret" not in describe_validation_error(caught.value)


def test_rows_may_be_a_hub_data_set() -> None:
    rows = {"id": "owner/rows", "name": "small", "split": "train[:10%]", "revision": "v1"}
    spec = TrainingSpec.model_validate(
        {"base_model": "m", "train_dataset": rows, "validation_dataset": {"id": "owner/rows"}}
    )
    assert spec.train_dataset == HubDataset(**rows)
    assert spec.validation_dataset == HubDataset(
        id="owner/rows", name=None, split="train", revision=None
    )
    assert TrainingSpec.model_validate_json(spec.model_dump_json()) == spec
    assert spec.pin_paths(Path("/specs")) == spec


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ({"keep": "best"}, "keep is 'best'"),
        ({"early_stopping_patience": 2}, "early_stopping_patience is 2"),
        ({"evaluate_every_steps": 10}, "evaluate_every_steps is 10"),
    ],
)
def test_evaluation_settings_require_validation_rows(setting: dict[str, Any], found: str) -> None:
    assert describe_refusal(setting) == (
        f"{found}, which needs rows to evaluate on: set validation_file, validation_dataset or "
        "validation_fraction"
    )
    for source in (
        {"validation_file": "v.jsonl"},
        {"validation_dataset": {"id": "owner/rows"}},
        {"validation_fraction": 0.1},
    ):
        assert TrainingSpec.model_validate({**MINIMAL, **setting, **source}).has_validation
    assert not TrainingSpec.model_validate(MINIMAL).has_validation


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_offloading_requires_sharding(stage: int) -> None:
    optimizer = {"zero_stage": stage, "offload_optimizer": True}
    parameters = {"zero_stage": stage, "offload_parameters": True}
    if stage == 0:
        assert (
            describe_refusal(optimizer) == "offload_optimizer needs zero_stage 1, 2 or 3; it is 0"
        )
    else:
        assert TrainingSpec.model_validate({**MINIMAL, **optimizer}).offload_optimizer
    if stage < 3:
        assert describe_refusal(parameters) == (
            f"offload_parameters needs zero_stage 3, which alone shards parameters; it is {stage}"
        )
    else:
        assert TrainingSpec.model_validate({**MINIMAL, **parameters}).offload_parameters


def test_min_workers_cannot_exceed_num_workers() -> None:
    assert describe_refusal({"num_workers": 2, "min_workers": 3}) == (
        "min_workers is 3, more than num_workers 2"
    )
    for fewest in (None, 1, 4):
        elastic = {"num_workers": 4, "min_workers": fewest, "save_every_steps": 50}
        assert TrainingSpec.model_validate({**MINIMAL, **elastic}).min_workers == fewest


def test_elastic_run_requires_save_every_steps() -> None:
    assert describe_refusal({"num_workers": 2, "min_workers": 1}) == (
        "min_workers is 1, fewer than num_workers 2: whenever the cluster grows or shrinks, "
        "training resumes from the last checkpoint; set save_every_steps to the number of steps "
        "that may be repeated"
    )


def test_precision_defaults_to_auto() -> None:
    assert TrainingSpec.model_validate(MINIMAL).precision == "auto"
    for precision in ("auto", "bf16", "fp16", "fp32"):
        spec = TrainingSpec.model_validate({**MINIMAL, "precision": precision})
        assert spec.precision == precision
        assert TrainingSpec.model_validate_json(spec.model_dump_json()) == spec


def test_max_length_may_equal_micro_batch_tokens() -> None:
    spec = TrainingSpec.model_validate({**MINIMAL, "max_length": 512, "micro_batch_tokens": 512})
    assert spec.max_length == 512


def test_validation_file_is_relative_to_spec_or_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    file = tmp_path / "spec.json"
    file.write_text(json.dumps({**MINIMAL, "train_file": "~/t.jsonl", "validation_file": "v.csv"}))
    spec = load_spec(file)
    assert spec.train_file == "/home/user/t.jsonl"
    assert spec.validation_file == str(tmp_path / "v.csv")


def test_train_files_are_relative_to_spec_or_home_and_not_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    files = [{"file": "~/t.jsonl", "weight": 2}, {"file": "more/*.csv"}]
    (tmp_path / "spec.json").write_text(json.dumps({"base_model": "m", "train_files": files}))
    spec = load_spec(tmp_path / "spec.json")
    assert [(entry.file, entry.weight) for entry in spec.train_files] == [
        ("/home/user/t.jsonl", 2.0),
        (str(tmp_path / "more/*.csv"), 1.0),
    ]
    assert "train_files" not in spec.describe()
    stored = spec.model_dump(mode="json")
    stored["train_files"][0]["sampler"] = "of a newer version"
    assert read_stored_spec(stored, "run") == spec


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        TrainingSpec.model_validate({"train_file": "x", "epochs": 0, "seed": -1})
    description = describe_validation_error(caught.value)
    assert "base_model is missing" in description
    assert "epochs is 0" in description
    assert "seed is -1" in description


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no spec at '.*spec.yaml': expected a YAML or JSON file$"),
        ("- 1\n- 2\n", "'.*spec.yaml' holds list, expected keys and values$"),
        ("a: [", "'.*spec.yaml' is neither YAML nor JSON: "),
        ("epochs: 2", "spec.yaml: base_model is missing"),
    ],
)
def test_invalid_spec_file_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "spec.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=f"^{message}"):
        load_spec(file)


def test_each_setting_has_a_description() -> None:
    undescribed = [
        name for name, field in TrainingSpec.model_fields.items() if not field.description
    ]
    assert undescribed == []


def test_description_of_spec_has_no_local_paths(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    spec = TrainingSpec(
        base_model=str(tmp_path),
        train_dataset=HubDataset(id=str(tmp_path / "rows")),
        validation_dataset=HubDataset(id="owner/rows"),
        learning_rate=0.5,
        deepspeed={"tensorboard": {"enabled": True, "output_path": str(tmp_path)}},
    )
    settings = spec.describe()
    assert settings["deepspeed"] == {"tensorboard": {"enabled": True}}
    assert str(tmp_path) not in json.dumps(settings)
    assert settings["train_dataset"]["id"] == "rows"
    assert settings["validation_dataset"]["id"] == "owner/rows"
    assert settings["learning_rate"] == 0.5


def test_spec_is_immutable() -> None:
    with pytest.raises(ValidationError):
        TrainingSpec.model_validate(MINIMAL).epochs = 5  # type: ignore[misc]
