"""Training functions of users: the examples in plain Ray Train and, unchanged, in Tuneserve."""

import ast
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

from serving.store.model_store import ModelStore
from storage import durable
from storage.layout import open_storage
from tests.e2e.conftest import ALLOWED_LOOP, ROOT, Application
from tests.tiny_encoder import build_tiny_encoder
from tests.tiny_model import build_tiny_model
from tests.tiny_vision import COLOURS, build_tiny_vit, draw_shape
from tests.waiting import PATIENCE, wait_until
from training import launch
from training.checkpoint.format import list_checkpoints
from training.data.prepare import prepare_data
from training.data.run_tables import link_data
from training.deepspeed.cpu_op import ensure_cpu_op
from training.run.folder import RunFolder
from training.run.run_record import RunRecord
from training.spec import TrainingSpec

pytestmark = [pytest.mark.e2e, pytest.mark.long]

LOOPS = ROOT / "examples" / "loops"
MARK = "# tuneserve"
TIMEOUT_S = 240.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """One Ray cluster for all runs; returns its address."""
    ensure_cpu_op()  # plain runs find it too, by the environment that this sets
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of sentences in the format of MRPC, and a BERT."""
    folder = tmp_path_factory.mktemp("pairs")
    build_tiny_encoder(folder / "bert")
    write_pairs(folder / "train.txt", 24)
    write_pairs(folder / "test.txt", 8)
    return folder


def write_pairs(path: Path, num_rows: int) -> Path:
    lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
    for number in range(num_rows):
        noun = "film" if number % 4 < 2 else "book"
        other = noun if number % 2 else ("book" if noun == "film" else "film")
        very = "very " * (number % 3)
        lines.append(f'{number % 2}\t{number}\t0\tthe {noun} was {very}good\tit was "{other}"')
    path.write_text("\n".join(lines) + "\n")
    return path


def run_plainly(
    name: str, folder: Path, cluster: str, arguments: Sequence[str]
) -> dict[str, float]:
    """Run a copy of an example without its lines for Tuneserve; returns the last metrics."""
    lines = (LOOPS / f"{name}.py").read_text().splitlines(keepends=True)
    kept = [line for line in lines if MARK not in line]
    assert 0 < len(lines) - len(kept) <= 5
    path = folder / f"plain_{name}.py"
    path.write_text("".join(kept))
    done = subprocess.run(
        [sys.executable, path, *arguments, "--storage", folder / "plain"],
        env={**os.environ, "RAY_ADDRESS": cluster},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    own = [line for line in done.stderr.splitlines() if "pid=" not in line]  # not of workers
    assert done.returncode == 0, own[-100:]
    (printed,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
    metrics: dict[str, float] = ast.literal_eval(printed)
    return metrics


def run_in_tuneserve(folder: Path, **settings: Any) -> RunFolder:
    """Execute a run of a loop in this process; it must succeed."""
    spec = TrainingSpec.model_validate(settings)
    run = RunFolder(folder / "run")
    link_data(prepare_data(spec, folder / "cache"), run.data)
    run.create(spec, RunRecord(id="run", created_at=0, writer="job"))
    model = launch.execute_run(run, spec)
    assert model == run.model
    launch.succeed_run(run)
    return run


def read_messages(run: RunFolder) -> list[str]:
    return [event["message"] for event in run.events.read()]


@pytest.mark.trains
def test_deepspeed_example(cluster: str, pairs: Path, tmp_path: Path) -> None:
    settings = {"epochs": 2, "learning_rate": 0.003}
    plain = run_plainly(
        "bert_mrpc",
        tmp_path,
        cluster,
        [
            *(str(pairs / "bert"), str(pairs / "train.txt"), str(pairs / "test.txt")),
            *("--epochs", "2", "--learning-rate", "0.003"),
        ],
    )
    run = run_in_tuneserve(
        tmp_path,
        base_model=str(pairs / "bert"),
        task="sequence_classification",
        loop=ALLOWED_LOOP,
        train_file=str(pairs / "train.txt"),
        validation_file=str(pairs / "test.txt"),
        keep="best",
        best_metric="accuracy",
        **settings,
    )
    lines = run.metrics.read()
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[-1]["loss"] == pytest.approx(plain["loss"], abs=1e-4)
    assert lines[-1]["accuracy"] == pytest.approx(plain["accuracy"])
    assert len(list_checkpoints(run.checkpoints)) == 2
    assert any("Step 2: the loop reported a checkpoint" in text for text in read_messages(run))
    # Consolidated from the shards of ZeRO-3, with the names of the classes that the loop saved.
    model = AutoModelForSequenceClassification.from_pretrained(run.model)
    assert model.config.id2label == {0: "different", 1: "equivalent"}
    tokenizer = AutoTokenizer.from_pretrained(run.model)
    inputs = tokenizer("the film was good", "it was film", return_tensors="pt")
    assert torch.isfinite(model(**inputs).logits).all()
    lineage = durable.read_json(run.model / "lineage.json")
    assert lineage["spec"]["loop"] == ALLOWED_LOOP
    assert durable.read_json(run.model / "verification.json")["passed"]


def write_images(path: Path, num_images: int, seed: int) -> Path:
    """Write images of coloured shapes with their labels."""
    rows: dict[str, list[Any]] = {"image": [], "label": []}
    for number in range(num_images):
        for place, colour in enumerate(COLOURS):
            content = io.BytesIO()
            draw_shape(colour, seed + place * 1000 + number).save(content, format="PNG")
            rows["image"].append(content.getvalue())
            rows["label"].append(colour)
    pq.write_table(pa.table(rows), path)
    return path


@pytest.mark.trains
def test_prepare_model_example(cluster: str, tmp_path: Path) -> None:
    vit = str(build_tiny_vit(tmp_path / "vit"))
    train = str(write_images(tmp_path / "train.parquet", 12, seed=0))
    test = str(write_images(tmp_path / "test.parquet", 4, seed=500))
    plain = run_plainly(
        "vit_cifar",
        tmp_path,
        cluster,
        [
            *(vit, train, test, "--classes", *COLOURS),
            *("--epochs", "2", "--learning-rate", "0.003"),
        ],
    )
    run = run_in_tuneserve(
        tmp_path,
        base_model=vit,
        task="image_classification",
        loop="examples.loops.vit_cifar:train_func",
        loop_config={"classes": list(COLOURS)},
        train_file=train,
        validation_file=test,
        epochs=2,
        learning_rate=0.003,
    )
    last = run.metrics.read()[-1]
    assert last["eval_loss"] == pytest.approx(plain["eval_loss"], abs=1e-4)
    model = AutoModelForImageClassification.from_pretrained(run.model)
    assert list(model.config.id2label.values()) == list(COLOURS)
    assert (run.model / "preprocessor_config.json").is_file()
    assert torch.isfinite(model(torch.zeros(1, 3, 32, 32)).logits).all()


@pytest.mark.trains
def test_pipeline_example(cluster: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(build_tiny_model(tmp_path / "llama"))
    torch.manual_seed(0)
    config = LlamaConfig.from_pretrained(tmp_path / "llama", tie_word_embeddings=False)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    rows = [{"text": f"The dog {'sleeps ' * (number % 4)}on."} for number in range(32)]
    (tmp_path / "texts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    plain = run_plainly(
        "llama_pipeline",
        tmp_path,
        cluster,
        [
            *(str(tmp_path / "llama"), str(tmp_path / "texts.jsonl")),
            *("--epochs", "3", "--learning-rate", "0.01"),
        ],
    )
    run = run_in_tuneserve(
        tmp_path,
        base_model=str(tmp_path / "llama"),
        loop="examples.loops.llama_pipeline:train_func",
        loop_split="none",
        train_file=str(tmp_path / "texts.jsonl"),
        epochs=3,
        learning_rate=0.01,
    )
    losses = [line["loss"] for line in run.metrics.read()]
    assert losses[-1] == pytest.approx(plain["loss"], abs=1e-4)
    assert losses[-1] < losses[0]
    model = AutoModelForCausalLM.from_pretrained(run.model)
    inputs = tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    with torch.no_grad():  # the layers of both stages were trained
        assert float(model(**inputs, labels=labels).loss) < losses[-1]


def start_command(folder: Path, cluster: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "training", "spec.json", "--output", "run", "--cache", "cache"]
    command += ["--loop", ALLOWED_LOOP]
    with (folder / "command.log").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "RAY_ADDRESS": cluster, "PYTHONPATH": str(ROOT)},
        )


@pytest.mark.trains
def test_killed_command_resumes_from_the_last_reported_checkpoint(
    cluster: str, pairs: Path, tmp_path: Path
) -> None:
    spec = {
        "base_model": str(pairs / "bert"),
        "task": "sequence_classification",
        "train_file": str(pairs / "train.txt"),
        "validation_file": str(pairs / "test.txt"),
        "epochs": 400,
        "learning_rate": 0.001,
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    run = RunFolder(tmp_path / "run")

    def read_step() -> float:
        last = run.metrics.read_last()
        return last["step"] if last else 0

    def wait_for_step(step: float, process: "subprocess.Popen[bytes]") -> None:
        def has_reached() -> bool:
            assert process.poll() is None, (tmp_path / "command.log").read_text()[-4000:]
            return read_step() >= step

        wait_until(has_reached, TIMEOUT_S, f"step {step}")

    process = start_command(tmp_path, cluster)
    try:
        wait_for_step(3, process)
    finally:
        process.kill()
        process.wait()
    process = start_command(tmp_path, cluster)
    try:
        wait_until(
            lambda: any("resumes after step" in text for text in read_messages(run)),
            TIMEOUT_S,
            "the run resumes",
        )
        resumed = next(text for text in read_messages(run) if "resumes after step" in text)
        step = int(re.findall(r"\d+$", resumed)[0])
        assert step >= 3
        wait_for_step(step + 2, process)
        process.send_signal(signal.SIGTERM)  # pauses at the next checkpoint
        assert process.wait(TIMEOUT_S * PATIENCE) == 75
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    steps = [line["step"] for line in run.metrics.read()]
    assert steps == list(range(1, len(steps) + 1))
    epochs = [line["epoch"] for line in run.metrics.read()]
    assert epochs == [step - 1 for step in steps]
    assert run.read_record().status == "paused"
    assert list_checkpoints(run.checkpoints)[0].step == steps[-1]


def test_job_over_http_runs_an_allowed_loop_and_its_model_answers(
    application: Application, pairs: Path
) -> None:
    store = ModelStore(open_storage(application.storage))
    store.install(pairs / "bert", "bert-of-pairs")
    files = [
        application.client.files.create(
            file=(f"{name}.tsv", (pairs / f"{name}.txt").read_bytes()), purpose="fine-tune"
        ).id
        for name in ("train", "test")
    ]
    settings = {
        "task": "sequence_classification",
        "loop": ALLOWED_LOOP,
        "loop_config": {"zero_stage": 1},
        "epochs": 2,
        "num_workers": 1,
    }
    body = {
        "model": "bert-of-pairs",
        "training_file": files[0],
        "validation_file": files[1],
        "suffix": "pairs",
        "training": settings,
    }
    with httpx.Client(base_url=application.url, timeout=120) as client:
        other = {**body, "training": {**settings, "loop": "os:abort"}}
        refused = client.post("/v1/fine_tuning/jobs", json=other)
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["code"] == "loop_not_allowed"
        assert error["message"].endswith(f"allowed_loops: {ALLOWED_LOOP!r}")
        job = client.post("/v1/fine_tuning/jobs", json=body).json()

        def find_end() -> dict[str, Any] | None:
            found: dict[str, Any] = client.get(f"/v1/fine_tuning/jobs/{job['id']}").json()
            return found if found["status"] in ("succeeded", "failed", "cancelled") else None

        ended = wait_until(find_end, TIMEOUT_S, "the job ends")
        assert ended["status"] == "succeeded", ended
        assert ended["progress"]["step"] == 2
        metrics = client.get(f"/v1/fine_tuning/jobs/{job['id']}/metrics").json()["data"]
        assert [line["epoch"] for line in metrics] == [0, 1]
        found = client.get(f"/v1/fine_tuning/jobs/{job['id']}/checkpoints").json()["data"]
        assert [one["step_number"] for one in found] == [2, 1]
        pair = ["the film was good", 'it was "film"']
        answer = client.post("/v1/classify", json={"model": "pairs", "input": [pair]})
        assert answer.headers["x-run-id"] == job["id"]
        labels = {one["label"] for one in answer.json()["data"][0]["labels"]}
        assert labels == {"different", "equivalent"}
