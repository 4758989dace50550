"""The time and memory of consolidation, compared with DeepSpeed's own converter.

    python -m benchmarks.consolidate --params 360M --params 720M

For each size two workers train a random Llama with tied embeddings for one step at ZeRO-3 in bf16
and save it; the checkpoint is a real one. Then, in separate processes and alternating order:

ours   shards to bf16 safetensors with configuration and tokenizer, a check of keys, shapes and
       values, and the manifest with the hash of every file. Loading the model and comparing its
       logits, which the product also does, is measured separately (`verify_s`), because the peer
       has no such step.
peer   DeepSpeed's `convert_zero_checkpoint_to_state_dict` to bf16 files of the same size: as
       safetensors if it can (`safetensors`), else as pickles

Both read files from the page cache, and have imported their libraries before the clock starts.
Ours ends with its files on disk (fsync); those of the peer may still be in the page cache. Memory
is anonymous memory (without mapped files) in excess of the amount before the call, sampled every
5 ms. Last line: one JSON object; `ratio_time` is our median time divided by the peer's,
`anonymous_over_shard_mb` is our peak minus one output file; both are those of the worst size.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from apps.bundled import find_demonstration_model
from benchmarks.machine import describe_machine
from benchmarks.workbench import call_contender

CONTENDERS = ("ours", "peer")
NUM_WORKERS = 2
_UNITS = {"K": 10**3, "M": 10**6, "B": 10**9}
_HEAD_SIZE = 64
_VOCABULARY = 32_000
_TIMEOUT_S = 1800.0


def main() -> int:
    """Measure and print the figures."""
    options = _parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also ends the contender that runs
    sizes = []
    for params in options.params:
        with tempfile.TemporaryDirectory(prefix="benchmark-consolidate-") as folder:
            sizes.append(_measure_size(Path(folder), params, options))
    result = {
        "ratio_time": max(size["ratio_time"] for size in sizes),
        "anonymous_over_shard_mb": max(size["anonymous_over_shard_mb"] for size in sizes),
        "loads": all(size["loads"] for size in sizes),
        "sizes": sizes,
        "settings": {
            "precision": "bf16",
            "zero_stage": 3,
            "workers": NUM_WORKERS,
            "experts": options.experts,
            "shard_mb": options.shard_mb,
            "rounds": options.rounds,
        },
        **describe_machine(),
    }
    print(json.dumps(result))
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--params",
        type=_parse_size,
        action="append",
        required=True,
        help="parameters of a model, such as 360M; may be given several times",
    )
    parser.add_argument(
        "--experts", type=int, default=0, help="experts of every layer: a Mixtral, not a Llama"
    )
    parser.add_argument("--shard-mb", type=int, default=500, help="size of the files written")
    parser.add_argument("--rounds", type=int, default=5, help="times that each is measured")
    return parser.parse_args()


def _parse_size(text: str) -> int:
    number, unit = text[:-1], text[-1:].upper()
    try:
        return int(float(number) * _UNITS[unit])
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; expected 360M or 1.5B") from None


def _measure_size(folder: Path, params: int, options: argparse.Namespace) -> dict[str, Any]:
    model, checkpoint = folder / "model", folder / "checkpoint"
    num_parameters = _build_model(model, params, options.experts)
    _call("make", folder, "--model", str(model), "--checkpoint", str(checkpoint))
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTENDERS}
    for number in range(options.rounds):
        for name in CONTENDERS if number % 2 == 0 else reversed(CONTENDERS):
            os.sync()  # write out the dirty pages of the previous contender
            _fill_page_cache(checkpoint)
            report = _call(
                name,
                folder,
                *("--model", str(model), "--checkpoint", str(checkpoint)),
                *("--shard-mb", str(options.shard_mb)),
            )
            reports[name].append(report)
            print(f"{num_parameters:,} parameters: {name}: {report}", file=sys.stderr, flush=True)
    times = {name: median(report["took_s"] for report in reports[name]) for name in CONTENDERS}
    peaks = {name: max(report["anonymous_mb"] for report in reports[name]) for name in CONTENDERS}
    return {
        "params": num_parameters,
        "ratio_time": round(times["ours"] / times["peer"], 3),
        "anonymous_over_shard_mb": round(peaks["ours"] - options.shard_mb, 1),
        "loads": all(report["loads"] for report in reports["ours"]),
        "took_s": times,
        "anonymous_mb": peaks,
        "rounds": reports,
    }


def _build_model(folder: Path, params: int, num_experts: int) -> int:
    """Write a random Llama or Mixtral of about `params` parameters; returns the exact number."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, MixtralConfig

    hidden = 1024 if params < 500_000_000 else 1536
    inner = hidden * 8 // 3 // 64 * 64  # grouped matrix products require multiples of 8
    of_layer = 4 * hidden * hidden + 3 * hidden * inner * max(1, num_experts)
    num_layers = max(1, round((params - _VOCABULARY * hidden) / of_layer))
    sizes: dict[str, Any] = {
        "vocab_size": _VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": num_layers,
        "num_attention_heads": hidden // _HEAD_SIZE,
        "num_key_value_heads": hidden // _HEAD_SIZE,
        "tie_word_embeddings": True,
    }
    if num_experts:
        config: Any = MixtralConfig(num_local_experts=num_experts, num_experts_per_tok=2, **sizes)
    else:
        config = LlamaConfig(**sizes)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(find_demonstration_model()).save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def _fill_page_cache(checkpoint: Path) -> None:
    for path in checkpoint.rglob("*.pt"):
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


def _call(name: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """Run one contender in a separate process; returns the JSON line that it prints."""
    command = ["-m", "benchmarks.consolidate_peers", name, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    return call_contender(name, command, environment, folder / f"{name}.log", _TIMEOUT_S)


if __name__ == "__main__":
    sys.exit(main())
