"""`python -m training` on a real Ray cluster: two ZeRO-3 workers against a plain PyTorch loop."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from storage import durable
from tests.tiny_model import build_tiny_model
from training.batching import BatchLimits, collate_rows, plan_epoch
from training.launch import encode_data
from training.loop import sum_loss
from training.optimizer import build_optimizer, learning_rate_at
from training.spec import TrainingSpec, load_spec

pytestmark = pytest.mark.e2e

ROWS = [
    {
        "messages": [
            {"role": "user", "content": f"What comes after {number}{' please' * (number % 5)}?"},
            {"role": "assistant", "content": f"After {number} comes {number + 1}."},
        ]
    }
    for number in range(24)
]


def run_training(spec: dict[str, Any], folder: Path) -> "subprocess.CompletedProcess[str]":
    (folder / "spec.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "training", "spec.json", "--output", "run"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    build_tiny_model(folder / "tiny")
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    spec = {
        "base_model": "tiny",
        "train_file": "rows.jsonl",
        "epochs": 2,
        "learning_rate": 0.01,
        "micro_batch_tokens": 128,
        "gradient_accumulation_steps": 2,
        "precision": "fp32",
        "keep_checkpoints": 1,
    }
    done = run_training(spec, folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(folder / "run" / "model")
    return folder


def train_plainly(spec: TrainingSpec) -> tuple[torch.nn.Module, list[float]]:
    """The same rows in the same order, in one process, with nothing but PyTorch."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(spec.base_model, dtype=torch.float32)
    optimizer = build_optimizer(model, spec)
    rows = encode_data(spec).rows
    limits = BatchLimits(spec.micro_batch_tokens, spec.micro_batch_size)
    steps = [
        step
        for epoch in range(spec.epochs)
        for step in plan_epoch(
            [len(row.input_ids) for row in rows],
            limits,
            world_size=spec.num_workers,
            accumulation=spec.gradient_accumulation_steps,
            seed=spec.seed,
            epoch=epoch,
        )
    ]
    losses = []
    for number, step in enumerate(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(number, len(steps), spec)
        batch = collate_rows([(rows[i].input_ids, rows[i].learned) for i in step.rows])
        loss = sum_loss(model, batch, torch.device("cpu")) / sum(
            rows[i].num_learned for i in step.rows
        )
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return model, losses


def test_two_zero3_workers_learn_what_one_plain_loop_learns(folder: Path) -> None:
    model, losses = train_plainly(load_spec(folder / "spec.json"))
    metrics = durable.read_json_lines(folder / "run" / "metrics.jsonl")
    assert len(losses) == len(metrics) > 4
    assert [line["loss"] for line in metrics] == pytest.approx(losses, rel=1e-4)
    assert losses[-1] < losses[0]
    weights = load_file(folder / "run" / "model" / "model.safetensors")
    expected = model.state_dict()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-4)


def test_the_result_is_a_complete_model(folder: Path) -> None:
    directory = folder / "run" / "model"
    model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(info.values()), info
    assert "lm_head.weight" not in load_file(directory / "model.safetensors"), "tied, kept once"
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    base = AutoTokenizer.from_pretrained(folder / "tiny")
    assert AutoTokenizer.from_pretrained(directory).chat_template == base.chat_template
    assert model.generation_config.eos_token_id == base.eos_token_id
    saved = folder / "saved"
    AutoModelForCausalLM.from_pretrained(folder / "tiny").save_pretrained(saved)
    assert set(load_file(directory / "model.safetensors")) == set(
        load_file(saved / "model.safetensors")
    )


def test_the_run_tells_what_it_did(folder: Path) -> None:
    run = folder / "run"
    record = durable.read_json(run / "run.json")
    assert record["status"] == "succeeded"
    assert record["trained_tokens"] == 2 * sum(
        len(row.input_ids) for row in encode_data(load_spec(folder / "spec.json")).rows
    )
    messages = [event["message"] for event in durable.read_json_lines(run / "events.jsonl")]
    assert messages[0].startswith("24 rows (chat)")
    assert messages[-1] == "The fine-tune succeeded"
    last = durable.read_json_lines(run / "metrics.jsonl")[-1]
    assert last["step"] == last["num_steps"]
    assert last["remaining_s"] == 0
    assert "Epoch 2 of 2" in (run / "log.txt").read_text()


def test_the_lineage_tells_where_the_model_came_from(folder: Path) -> None:
    lineage = durable.read_json(folder / "run" / "model" / "lineage.json")
    assert lineage["base_model"] == "tiny"
    assert lineage["data"]["num_rows"] == 24
    assert lineage["data"]["sha256"] == durable.hash_file(folder / "rows.jsonl")
    assert str(folder) not in json.dumps(lineage), "no path of this machine is published"
    assert "base_model: tiny" in (folder / "run" / "model" / "README.md").read_text()


def test_only_the_checkpoints_asked_for_are_kept(folder: Path) -> None:
    checkpoints = [path for path in (folder / "run" / "ray").glob("checkpoint_*") if path.is_dir()]
    assert len(checkpoints) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0}, "learning_rate is 0: it should be greater than 0"),
        ({"train_file": "gone.jsonl"}, "no file at"),
        ({"base_model": "no/such-model"}, "base_model 'no/such-model' is neither"),
        ({"num_workers": 512}, "512 workers × 0.5 CPUs = 256 CPUs were asked for"),
        ({"max_length": 4096, "micro_batch_tokens": 4096}, "a context of 128 tokens"),
    ],
)
def test_bad_input_is_one_clear_sentence(
    folder: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    spec = {"base_model": str(folder / "tiny"), "train_file": str(folder / "rows.jsonl"), **change}
    done = run_training(spec, tmp_path)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert message in said
    assert "Traceback" not in said


def test_a_folder_with_something_in_it_is_left_alone(folder: Path) -> None:
    spec = json.loads((folder / "spec.json").read_text())
    before = (folder / "run" / "run.json").read_text()
    done = run_training(spec, folder)
    assert done.returncode == 2
    assert "is not empty" in " ".join(done.stderr.split())
    assert (folder / "run" / "run.json").read_text() == before
