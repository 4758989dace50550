"""Settings as text: the YAML reads back the same, and the programs create the same job."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from apps.ui.fine_tune.setting_texts import (
    DEFAULT_ORIGIN,
    PlannedJob,
    clean_origin,
    read_spec,
    write_command,
    write_curl,
    write_python,
    write_spec,
)
from tests.apps.stub_api import StubApi
from training.spec import TrainingSpec, load_spec

ROOT = Path(__file__).parents[4]
SCHEMAS = TrainingSpec.model_json_schema()["properties"]
TRAINING: dict[str, Any] = {
    "epochs": 5,
    "learning_rate": 1e-05,
    "max_length": None,
    "overlong": "drop",
    "offload_optimizer": True,
    "columns": {"prompt": 'it\'s a "question" $HOME', "completion": "3"},
    "adam_betas": [0.9, 0.99],
}
JOB = PlannedJob("base", "file-handbook", "handbook.jsonl", "mine", TRAINING)


def list_defaults(**changes: Any) -> dict[str, Any]:
    spec = TrainingSpec.model_validate({"base_model": "-", "train_file": "-", **changes})
    hidden = {name for name in SCHEMAS if "train_" in name or "validation_" in name}
    return spec.model_dump(mode="json", exclude={"base_model", "base_adapter", "task", *hidden})


def test_yaml_is_a_spec_and_reads_back(tmp_path: Path) -> None:
    defaults = list_defaults(warmup_ratio=0.1, max_length=64)  # of the model
    values = {**defaults, **TRAINING}
    text = write_spec(JOB, values, SCHEMAS)
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    spec = load_spec(path)
    assert spec.model_dump(mode="json", include=set(values)) == values
    assert spec.train_file == str(tmp_path / "handbook.jsonl")
    assert "weight_decay" not in text  # the default of the spec and of the model
    assert {**defaults, **read_spec(text, defaults, "causal_lm")} == values


def test_python_creates_the_job(api: StubApi, tmp_path: Path) -> None:
    program = tmp_path / "create.py"
    program.write_text(write_python(JOB, api.url))
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ftjob-new\n"
    assert api.bodies == [JOB.to_body()]


def test_command_creates_the_job(api: StubApi) -> None:
    words = shlex.split(write_command(JOB, api.url))
    assert words[0] == "tuneserve"
    done = subprocess.run(
        [sys.executable, "-c", "from apps.cli.main import main; main()", *words[1:]],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert api.bodies == [{**JOB.to_body(), "priority": 0}]


def test_curl_sends_the_job(api: StubApi) -> None:
    text = write_curl(JOB, api.url)
    words = shlex.split(text.replace("\\\n", " "))
    assert words[:2] == ["curl", f"{api.url}/v1/fine_tuning/jobs"]
    assert json.loads(words[words.index("-d") + 1]) == JOB.to_body()


def test_command_for_this_machine_needs_no_address() -> None:
    assert "--url" not in write_command(JOB, DEFAULT_ORIGIN)


@pytest.mark.parametrize("origin", ["", "javascript:alert(1)", 'http://x" -d "y', "http://a/b"])
def test_other_text_is_no_address(origin: str) -> None:
    assert clean_origin(origin) == DEFAULT_ORIGIN


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "Expected settings"),
        ("a: [", "not YAML"),
        ("epochs: 3\ntrain_everything: yes", "no settings of this model and task"),
        ("task: preference", "for the task 'preference'"),
        ("columns: &a {prompt: x}\ncolumns: *a", "aliases"),
        ("epochs: 2020-01-01", "not JSON"),
        ("epochs: !!python/object:os.system x", "not YAML"),
        ("x" * 60_000, "60,000 characters"),
    ],
)
def test_text_that_is_no_spec_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_spec(text, {"epochs": 3, "columns": {}}, "causal_lm")
