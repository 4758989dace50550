"""Preference tuning by `python -m training`: an adapter, with the same losses by ZeRO and ddp."""

from pathlib import Path
from typing import Any

import pytest

from model_files.weight_headers import ADAPTER_WEIGHTS_NAME
from storage import durable
from tests.tiny_model import build_tiny_model
from tests.training.tasks.test_preference import write_rows
from tests.training_process import finish, read_steps, start

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.trains,
    pytest.mark.usefixtures("forked_workers"),
]

SETTINGS: dict[str, Any] = {
    "task": "preference",
    "adapter": {"rank": 4},
    "precision": "fp32",
    "epochs": 2,
    "micro_batch_tokens": 512,
    "micro_batch_size": 4,
    "validation_fraction": 0.25,
}


def test_run_by_zero_equals_run_by_ddp_and_prefers_the_better_answers(tmp_path: Path) -> None:
    build_tiny_model(tmp_path / "tiny")
    write_rows(tmp_path / "rows.jsonl")
    strategies: dict[str, dict[str, Any]] = {"zero": {"zero_stage": 3}, "ddp": {"strategy": "ddp"}}
    for name, strategy in strategies.items():
        with start(tmp_path, name, **SETTINGS, **strategy) as process:
            assert finish(process) == 0, (tmp_path / f"{name}.log").read_text()[-4000:]
        run = tmp_path / name
        assert (run / "data" / "references-validation.safetensors").is_file()
        last = durable.read_json_lines(run / "metrics.jsonl")[-1]
        print(name, {key: value for key, value in last.items() if key.startswith("eval_")})
        assert last["eval_reward_accuracy"] >= 0.9
        assert last["eval_reward_margin"] > 0
        assert durable.read_json(run / "model" / "verification.json")["passed"]
        assert (run / "model" / ADAPTER_WEIGHTS_NAME).is_file()
    expected, found = (read_steps(tmp_path, name) for name in strategies)
    assert len(found) > 5
    for name in ("loss", "grad_norm", "eval_loss"):
        values = [step[name] for step in expected if name in step]
        assert [step[name] for step in found if name in step] == pytest.approx(values, rel=1e-4)
