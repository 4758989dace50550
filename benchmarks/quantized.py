"""LoRA over base weights of 4 bits on one GPU, compared with PEFT and transformers' Trainer.

    python -m benchmarks.quantized --data rows.json --shape 7b

A random model of the shape of Llama 3.2 1B or 3B or Llama 2 7B, with bitsandbytes' nf4 and adapters
of the same layers and rank in all contenders, one epoch over the same rows, without activation
checkpointing unless noted:

ours             `python -m training`, the product's own command; figures from its metrics.jsonl
trainer          Trainer with its default batch of 8 rows, with PEFT's adapter
trainer_sized    Trainer with rows grouped by length, as many in a batch as ours have on average
trainer_recipe   trainer_sized after PEFT's `prepare_model_for_kbit_training`, with its defaults:
                 the other weights in fp32, activation checkpointing
unsloth          trainer_sized with Unsloth's model, if `--unsloth` names a folder of packages with
                 it (`pip install --target`), because it needs other versions than ours

The clock runs from the end of the third optimizer step to the end of the last. Tokens are those of
prompts and answers without padding. `peak_memory_mb` is the most that torch has allocated on the
GPU at once. Last line: one JSON object, in which ratio_X is our speed divided by that of X.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.train_peers.report import NUM_WARMUP_STEPS, summarise_steps
from benchmarks.workbench import (
    CONTEXT_LENGTH,
    DEMO_MODEL,
    SETTINGS,
    Workbench,
    build_workbench,
    call_contender,
    make_environment,
    make_parser,
    read_rows,
    start_run,
)
from system.free_resources import measure_size
from training.base_model import load_tokenizer
from training.checkpoint.format import list_checkpoints

TRAINERS: Mapping[str, list[str]] = {
    "trainer": [],
    "trainer_sized": ["--sized"],
    "trainer_recipe": ["--sized", "--recipe"],
    "unsloth": ["--sized", "--unsloth"],
}
SHAPES: Mapping[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 512,
        "vocab_size": 8_192,
        "tie_word_embeddings": True,
    },
    "1b": {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 128_256,
        "tie_word_embeddings": True,
    },
    "3b": {
        "hidden_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 128_256,
        "tie_word_embeddings": True,
    },
    "7b": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "intermediate_size": 11_008,
        "vocab_size": 32_000,
        "tie_word_embeddings": False,
    },
}
_TIMEOUT_S = 1200.0
_PATHS = ("data", "unsloth")


def main() -> int:
    """Measure and print the figures."""
    options = _parse_arguments()
    with tempfile.TemporaryDirectory(prefix="benchmark-quantized-") as folder:
        bench = build_workbench(
            Path(folder) / "bench",
            read_rows(options.data, options.rows),
            "bf16",
            partial(_build_model, SHAPES[options.shape]),
            num_workers=1,
            accelerator="gpu",
            cpus_per_worker=options.threads,
            threads_per_worker=options.threads,
            zero_stage=0,
            micro_batch_tokens=options.micro_batch_tokens,
            quantization="nf4",
            adapter={"rank": options.rank},
        )
        reports = _measure(bench, options)
    medians = {
        name: median(float(report["tokens_per_s"]) for report in of_rounds)
        for name, of_rounds in reports.items()
    }
    result = {
        **{
            f"ratio_{name}": round(medians["ours"] / speed, 3)
            for name, speed in medians.items()
            if name != "ours"
        },
        "tokens_per_s": medians,
        "rounds": reports,
        "settings": {
            **{name: value for name, value in vars(options).items() if name not in _PATHS},
            "data": options.data.name,
            "warmup_steps": NUM_WARMUP_STEPS,
            "learning_rate": SETTINGS["learning_rate"],
        },
        **describe_machine(),
    }
    print(json.dumps(result))
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="1b", help="of the model (default: 1b)")
    parser.add_argument("--rank", type=int, default=8, help="of the adapter (default: 8)")
    parser.add_argument("--micro-batch-tokens", type=int, default=4096, help="padded, of a batch")
    parser.add_argument("--threads", type=int, default=4, help="of each contender (default: 4)")
    parser.add_argument("--unsloth", type=Path, help="folder of packages with Unsloth")
    parser.add_argument(
        "--peers", nargs="*", choices=TRAINERS, help="peers to compare with (default: all)"
    )
    options = parser.parse_args()
    if options.peers is None:
        options.peers = [name for name in TRAINERS if name != "unsloth" or options.unsloth]
    return options


def _build_model(shape: Mapping[str, Any], folder: Path, precision: str) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from training.model import DTYPES

    tokenizer = load_tokenizer(str(DEMO_MODEL))
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        **shape,
        max_position_embeddings=CONTEXT_LENGTH,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype=DTYPES[precision],
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = LlamaForCausalLM._from_config(config, dtype=DTYPES[precision])
    model.save_pretrained(folder)
    del model
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _measure(bench: Workbench, options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    names = ["ours", *options.peers]
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(options.rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            started = time.monotonic()
            if name == "ours":
                report = _run_ours(bench)
            else:
                report = _call_peer(name, bench, options.unsloth)
            reports[name].append({**report, "process_s": round(time.monotonic() - started, 1)})
            _tell(f"round {number + 1} of {options.rounds}: {name}: {json.dumps(report)}")
    return reports


def _run_ours(bench: Workbench) -> dict[str, Any]:
    with start_run(bench, bench.spec_file, bench.path / "ours") as run:
        run.wait()
        metrics = run.folder.metrics.read()
        last_event = run.folder.events.read()[-1]["message"]
        checkpoint = list_checkpoints(run.folder.checkpoints)[0].path
        size = measure_size(checkpoint)
    ends_s = [line["elapsed_s"] for line in metrics]
    return {
        **summarise_steps(ends_s, [int(line["tokens"]) for line in metrics]),
        "first_loss": round(metrics[0]["loss"], 4),
        "last_loss": round(metrics[-1]["loss"], 4),
        "peak_memory_mb": int(max(line["peak_memory_bytes"] for line in metrics)) >> 20,
        "checkpoint_mb": round(size / 2**20, 2),
        "last_event": last_event,
    }


def _call_peer(name: str, bench: Workbench, unsloth: Path | None) -> dict[str, Any]:
    module = "benchmarks.train_peers.quantized"
    command: list[str | Path] = ["-m", module, bench.path, *TRAINERS[name]]
    environment = make_environment(bench)
    if name == "unsloth":
        environment["PYTHONPATH"] = os.pathsep.join([str(unsloth), environment["PYTHONPATH"]])
    log = bench.path / f"{name}.log"
    return call_contender(name, command, environment, log, _TIMEOUT_S)


def _tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
