"""The common basis of the training benchmarks: a random model, a set of rows, and runs of our CLI.

A workbench is a folder with these files:

model/          a random Llama of 21 million parameters with the demonstration model's tokenizer
rows.jsonl      the rows in the user's format
spec.yaml       the spec of the fine-tune, for `python -m training`
data/           the rows as tokens, as that command prepares them
tokens.jsonl    the same tokens with labels, for transformers' Trainer
texts.jsonl     the same rows as text, rendered by the chat template, for the guide's loop
deepspeed.json  the DeepSpeed configuration of the fine-tune
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml

from system.free_resources import measure_size
from training.base_model import load_tokenizer
from training.batching import BatchLayout, BatchPlan, EpochPlan, plan_epoch
from training.checkpoint.format import list_checkpoints
from training.cluster.ray_train import CPU_WORKER_ENV
from training.data.faults import RowFault
from training.data.prepare import prepare_data
from training.data.readers import RowFile
from training.data.row_table import RowTable
from training.data.run_tables import link_data
from training.data.text.formats import KNOWN_KEYS, Row, choose_parser
from training.data.text.token_layout import TOKEN_LAYOUT
from training.deepspeed.config import build_deepspeed_config
from training.deepspeed.cpu_op import ensure_cpu_op
from training.launch import disable_progress_bars
from training.losses.next_token import IGNORED_LABEL
from training.model import DTYPES, choose_layout, find_hidden_size
from training.run.folder import RunFolder
from training.spec import TrainingSpec, load_spec

ROOT = Path(__file__).parent.parent
DEMO_MODEL = ROOT / "examples" / "tuneserve-demo"
DEMO_ROWS = ROOT / "examples" / "handbook" / "train.jsonl"
CONTEXT_LENGTH = 1024
NUM_WORKERS = 2
LEARNING_RATE = 1e-4

# Settings of our runs, the same in every benchmark: no row limit, no gradient accumulation, one
# thread per worker, and a constant learning rate, so that every peer can use the same settings.
SETTINGS: dict[str, Any] = {
    "epochs": 1,
    "learning_rate": LEARNING_RATE,
    "lr_schedule": "constant",
    "warmup_ratio": 0.0,
    "micro_batch_tokens": 2048,
    "gradient_accumulation_steps": 1,
    "zero_stage": 3,
    "num_workers": NUM_WORKERS,
    "accelerator": "cpu",
    "cpus_per_worker": 0.5,
    "threads_per_worker": 1,
    "seed": 0,
}


@dataclass(frozen=True)
class Workbench:
    """The files of one benchmark; see the module's docstring."""

    path: Path

    @property
    def model(self) -> Path:
        """The model to train."""
        return self.path / "model"

    @property
    def rows_file(self) -> Path:
        """The rows to train on."""
        return self.path / "rows.jsonl"

    @property
    def spec_file(self) -> Path:
        """The spec of the fine-tune."""
        return self.path / "spec.yaml"

    @property
    def tokens_file(self) -> Path:
        """The rows as tokens and labels."""
        return self.path / "tokens.jsonl"

    @property
    def texts_file(self) -> Path:
        """The rows as text."""
        return self.path / "texts.jsonl"

    @property
    def deepspeed_file(self) -> Path:
        """The DeepSpeed configuration."""
        return self.path / "deepspeed.json"

    def read_spec(self) -> TrainingSpec:
        """Read the spec of the fine-tune."""
        return load_spec(self.spec_file)

    def read_deepspeed_config(self) -> dict[str, Any]:
        """Read the DeepSpeed configuration."""
        config: dict[str, Any] = json.loads(self.deepspeed_file.read_text())
        return config

    def open_tokens(self) -> RowTable:
        """Open the rows as tokens."""
        return RowTable(self.path / "data" / "train.arrow", TOKEN_LAYOUT)

    def choose_layout(self) -> BatchLayout:
        """Return the layout in which the product trains these rows."""
        spec = self.read_spec()
        device = torch.device("cuda" if spec.accelerator == "gpu" else "cpu")
        return choose_layout(spec, device)

    def plan_epoch(self, layout: BatchLayout | None = None) -> EpochPlan:
        """Plan the batches of the first epoch, in the layout of the product unless it is given."""
        spec = self.read_spec()
        plan = BatchPlan.from_spec(spec, layout or self.choose_layout(), spec.num_workers)
        return plan_epoch(self.open_tokens().lengths, plan, epoch=0)

    def count_rows_per_batch(self, layout: BatchLayout | None = None) -> int:
        """Return the average number of rows in the micro batches of that plan."""
        num_batches = len(self.plan_epoch(layout)) * self.read_spec().num_workers
        return max(1, round(len(self.open_tokens()) / num_batches))


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Make a parser with the options that all training benchmarks share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=DEMO_ROWS, help="rows to train on: JSON, JSONL or CSV"
    )
    parser.add_argument("--rows", type=int, help="how many of them, from the first; default: all")
    parser.add_argument(
        "--precision", choices=["bf16", "fp32"], default="bf16", help="arithmetic (default: bf16)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="times that each is measured")
    return parser


def build_workbench(
    path: Path,
    rows: Iterable[Any],
    precision: str,
    build_model: Callable[[Path, str], None] | None = None,
    **changes: Any,
) -> Workbench:
    """Build a workbench for these rows under `path`, a new folder.

    `build_model` writes another model for a folder and a precision. `changes` override settings in
    `SETTINGS`.
    """
    disable_progress_bars()
    if changes.get("accelerator") != "gpu":
        ensure_cpu_op()  # compile now, so that no contender's first step waits for the compiler
    bench = Workbench(path)
    path.mkdir(parents=True)
    (build_model or _build_model)(bench.model, precision)
    _write_lines(bench.rows_file, rows)
    write_spec(bench, bench.spec_file, precision=precision, **changes)
    spec = bench.read_spec()
    link_data(prepare_data(spec, path / "cache"), path / "data")
    config = build_deepspeed_config(
        spec, spec.num_workers, hidden_size=find_hidden_size(spec.base_model)
    )
    bench.deepspeed_file.write_text(json.dumps(config, indent=2))
    _write_lines(bench.tokens_file, _label_rows(bench.open_tokens()))
    _write_lines(bench.texts_file, _render_rows(bench))
    return bench


def write_spec(bench: Workbench, path: Path, **changes: Any) -> Path:
    """Write the spec of a workbench's fine-tune; `changes` override its settings."""
    spec = {"base_model": str(bench.model), "train_file": str(bench.rows_file), **SETTINGS}
    path.write_text(yaml.safe_dump({**spec, **changes}))
    return path


def read_rows(path: Path, num_rows: int | None) -> list[Any]:
    """Read the first `num_rows` rows of a file in any format that we support; None means all.

    Raises `ValueError` if a row cannot be read.
    """
    rows = [record for _, record in islice(RowFile(path, KNOWN_KEYS).read(), num_rows)]
    for place, row in enumerate(rows, 1):
        if isinstance(row, RowFault):
            raise ValueError(f"row {place} of {path.name!r} cannot be read: {row}")
    return rows


@contextmanager
def start_run(bench: Workbench, spec_file: Path, output: Path) -> Iterator["Run"]:
    """Start `python -m training`, as a user would, with a Ray cluster of its own.

    On exit the process is stopped if it still runs, and the folder of the run is removed.
    """
    command = [sys.executable, "-m", "training", str(spec_file), "--output", str(output)]
    log = bench.path / f"{output.name}.log"
    with log.open("w") as file:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [*command, "--cache", str(bench.path / "cache")],
            cwd=ROOT,
            env=make_environment(bench),
            stdout=file,
            stderr=file,
        )
    try:
        yield Run(process, RunFolder(output), log)
    finally:
        _end(process)
        shutil.rmtree(output, ignore_errors=True)


@dataclass(frozen=True)
class Run:
    """A fine-tune that runs in a separate process."""

    process: subprocess.Popen[bytes]
    folder: RunFolder
    log: Path

    def wait(self, *, expected_status: int = 0) -> None:
        """Wait for the process to end.

        Raises `RuntimeError` with the end of its log if its status is not `expected_status`.
        """
        if self.process.wait() != expected_status:
            raise RuntimeError(f"{describe_end(self.process.returncode, self.log)}")

    def check_alive(self) -> None:
        """Raise `RuntimeError` with the end of its log if the process has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(describe_end(self.process.returncode, self.log))


class FinishedRun(NamedTuple):
    """The metrics of the steps of a fine-tune, and the bytes of its last checkpoint."""

    metrics: list[dict[str, float]]
    checkpoint_bytes: int


def run_product(bench: Workbench, spec_file: Path, output: Path) -> FinishedRun:
    """Run a fine-tune to its end."""
    with start_run(bench, spec_file, output) as run:
        run.wait()
        num_shards = len(list(run.folder.checkpoints.glob("*/state/*_optim_states.pt")))
        assert num_shards >= NUM_WORKERS, "DeepSpeed did not shard the optimizer's state"
        last = list_checkpoints(run.folder.checkpoints)[0]
        return FinishedRun(run.folder.metrics.read(), measure_size(last.path))


def call_contender(
    name: str,
    command: Sequence[str | Path],
    environment: dict[str, str],
    log: Path,
    timeout_s: float,
) -> dict[str, Any]:
    """Run Python with a contender's command in a separate process; returns its last JSON line.

    Raises `RuntimeError` with the end of its log if it fails or prints no such line.
    """
    with log.open("w") as file:
        done = subprocess.run(  # noqa: S603 - our own modules
            [sys.executable, *command],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"')]
    if done.returncode or not lines:
        raise RuntimeError(f"{name}: {describe_end(done.returncode, log)}")
    report: dict[str, Any] = json.loads(lines[-1])
    return report


def describe_end(status: int, log: Path) -> str:
    """Describe the exit status of a process and the end of its log."""
    return f"it ended with status {status}; the end of its output:\n{log.read_text()[-4000:]}"


def make_environment(bench: Workbench) -> dict[str, str]:
    """Make the environment of every contender.

    It sets no network and no existing Ray cluster; on CPUs one thread, and the allocator settings
    of our workers.
    """
    inherited = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    on_cpu = {**CPU_WORKER_ENV, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **inherited,
        **(on_cpu if bench.read_spec().accelerator == "cpu" else {}),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # for ninja
        "PYTHONPATH": os.pathsep.join(paths),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(bench.path / "datasets"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop a process if it still runs; a Ray cluster that it started ends with it."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _build_model(folder: Path, precision: str) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = load_tokenizer(str(DEMO_MODEL))
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(DTYPES[precision]).save_pretrained(folder)


def _label_rows(rows: RowTable) -> Iterator[dict[str, list[int]]]:
    for ids, learned in rows.read(range(len(rows))):
        labels = np.where(learned, ids, IGNORED_LABEL)
        yield {"input_ids": ids.tolist(), "labels": labels.tolist()}


def _render_rows(bench: Workbench) -> Iterator[dict[str, str]]:
    """Render the rows that are in the token table; rows that preparation dropped are skipped."""
    tokenizer = load_tokenizer(str(bench.model))
    table = bench.open_tokens()
    kept = set(table.find_lines(range(len(table))))
    parser = None
    for line, record in RowFile(bench.rows_file, KNOWN_KEYS).read():
        parser = parser or choose_parser(record, "auto", {})
        if line in kept:
            yield {"text": _render(parser.parse(line, record), tokenizer)}


def _render(row: Row, tokenizer: Any) -> str:
    if row.text is not None:
        return row.text
    return str(tokenizer.apply_chat_template(list(row.messages), tokenize=False))


def _write_lines(path: Path, rows: Iterable[Any]) -> None:
    with path.open("w") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows)
