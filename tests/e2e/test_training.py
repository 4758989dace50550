"""`python -m training` on a real Ray cluster: a complete fine-tune with two ZeRO-3 workers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, OPTConfig

from storage import durable
from tests.tiny_model import build_tiny_model
from tests.waiting import PATIENCE
from training.batching import BatchLayout, BatchPlan, plan_epoch
from training.data.row_table import RowTable
from training.data.text.token_layout import TOKEN_LAYOUT
from training.spec import load_spec

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.trains,
    pytest.mark.usefixtures("forked_workers"),
]

ROWS: list[dict[str, Any]] = [
    {
        "messages": [
            {"role": "user", "content": f"What comes after {number}{' please' * (number % 5)}?"},
            {"role": "assistant", "content": f"After {number} comes {number + 1}."},
        ]
    }
    for number in range(24)
]
SPEC: dict[str, Any] = {
    "base_model": "tiny",
    "train_file": "rows.jsonl",
    "epochs": 2,
    "learning_rate": 0.01,
    "micro_batch_tokens": 128,
    "gradient_accumulation_steps": 2,
    "precision": "fp32",
    "keep_checkpoints": 1,
}


def run_training(spec: dict[str, Any], folder: Path) -> "subprocess.CompletedProcess[str]":
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    (folder / "spec.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "training", "spec.json", "--output", "run", "--cache", "cache"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=240 * PATIENCE, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    build_tiny_model(folder / "tiny")
    done = run_training(SPEC, folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(folder / "run" / "model")
    return folder


def check_first_loss(folder: Path, layout: BatchLayout = "packed") -> None:
    """Recompute the first loss: chat template, answer-only labels, and transformers' own loss."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "tiny")
    model = AutoModelForCausalLM.from_pretrained(folder / "tiny", dtype=torch.float32)
    spec = load_spec(folder / "spec.json")
    table = RowTable(folder / "run" / "data" / "train.arrow", TOKEN_LAYOUT)
    plan = BatchPlan.from_spec(spec, layout, spec.num_workers)
    loss_sum = num_learned = 0.0
    for line in table.find_lines(plan_epoch(table.lengths, plan, 0)[0].rows):
        encoded = tokenizer.apply_chat_template(
            ROWS[line - 1]["messages"], return_dict=True, return_assistant_tokens_mask=True
        )
        ids = torch.tensor([encoded["input_ids"]])
        labels = torch.where(torch.tensor([encoded["assistant_masks"]]) == 1, ids, -100)
        with torch.no_grad():
            mean = float(model(input_ids=ids, labels=labels).loss)
        count = int((labels[:, 1:] != -100).sum())
        loss_sum += mean * count
        num_learned += count
    first = durable.read_json_lines(folder / "run" / "metrics.jsonl")[0]
    assert first["learned_tokens"] == num_learned
    assert first["loss"] == pytest.approx(loss_sum / num_learned, rel=1e-5)


def test_first_loss_equals_manual_computation(folder: Path) -> None:
    check_first_loss(folder)


def test_dependent_rows_are_padded(tmp_path: Path) -> None:
    """OPT continues its positions across rows, so flattened batches change its losses."""
    tokenizer = AutoTokenizer.from_pretrained(build_tiny_model(tmp_path / "tiny"))
    torch.manual_seed(0)
    config = OPTConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=48,
        word_embed_proj_dim=32,
        max_position_embeddings=128,
        init_std=0.2,
        dropout=0.0,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "tiny")
    done = run_training({**SPEC, "batch_layout": "flattened", "max_steps": 2}, tmp_path)
    assert done.returncode == 0, done.stderr
    events = durable.read_json_lines(tmp_path / "run" / "events.jsonl")
    switch = "Rows are padded, not flattened: in this model a row changes"
    assert sum(event["message"].startswith(switch) for event in events) == 1
    check_first_loss(tmp_path, "padded")


def test_result_is_complete_model(folder: Path) -> None:
    directory = folder / "run" / "model"
    model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(info.values()), info
    assert "lm_head.weight" not in load_file(directory / "model.safetensors"), (
        "tied weights are stored once"
    )
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    base = AutoTokenizer.from_pretrained(folder / "tiny")
    assert AutoTokenizer.from_pretrained(directory).chat_template == base.chat_template
    assert model.generation_config.eos_token_id == base.eos_token_id
    saved = folder / "saved"
    AutoModelForCausalLM.from_pretrained(folder / "tiny").save_pretrained(saved)
    assert set(load_file(directory / "model.safetensors")) == set(
        load_file(saved / "model.safetensors")
    )


def test_run_has_record_events_metrics_and_log(folder: Path) -> None:
    run = folder / "run"
    record = durable.read_json(run / "run.json")
    assert record["status"] == "succeeded"
    table = RowTable(run / "data" / "train.arrow", TOKEN_LAYOUT)
    messages = [event["message"] for event in durable.read_json_lines(run / "events.jsonl")]
    assert messages[0].startswith("24 rows (chat)")
    assert messages[-1] == "The fine-tune succeeded"
    last = durable.read_json_lines(run / "metrics.jsonl")[-1]
    assert last["step"] == last["num_steps"]
    assert last["remaining_s"] == 0
    assert last["trained_tokens"] == 2 * table.lengths.sum()
    assert "Epoch 2 of 2" in (run / "log.txt").read_text()


def test_lineage_names_base_model_and_data(folder: Path) -> None:
    lineage = durable.read_json(folder / "run" / "model" / "lineage.json")
    assert lineage["base_model"] == "tiny"
    assert lineage["data"]["num_rows"] == 24
    assert lineage["data"]["sha256"] == durable.hash_file(folder / "rows.jsonl")
    assert str(folder) not in json.dumps(lineage), "no path of this machine is published"
    assert "base_model: tiny" in (folder / "run" / "model" / "README.md").read_text()


def test_only_keep_checkpoints_are_kept(folder: Path) -> None:
    kept = (folder / "run" / "ray" / "checkpoints").iterdir()
    assert len([path for path in kept if path.is_dir()]) == 1


def test_too_many_workers_are_refused_in_one_sentence(folder: Path, tmp_path: Path) -> None:
    """Other refusals, before a cluster exists, are in `tests/training/test_main.py`."""
    spec = {"base_model": str(folder / "tiny"), "train_file": str(folder / "rows.jsonl")}
    done = run_training({**spec, "num_workers": 512}, tmp_path)
    assert done.returncode == 2
    error_output = " ".join(done.stderr.split())
    assert "512 workers × 0.5 CPUs = 256 CPUs were asked for" in error_output
    assert "Traceback" not in error_output


def test_succeeded_run_is_not_changed(folder: Path) -> None:
    before = (folder / "run" / "run.json").read_text()
    done = run_training(json.loads((folder / "spec.json").read_text()), folder)
    assert done.returncode == 2
    assert "has succeeded already, with 2 epochs; raise epochs" in " ".join(done.stderr.split())
    assert (folder / "run" / "run.json").read_text() == before
