"""The throughput of requests spread over adapters of one model, compared with the model alone.

    python -m benchmarks.adapters

A random Llama of 110 million parameters and random adapters of rank 8 of all linear layers of its
blocks, in a generator replica without HTTP, with the settings of `deploy.yaml` but for the threads,
and a cache of 160 pages, all of which are in memory before it is measured.
Clients send prompts of mixed length one after the other and wait for a greedy answer of a fixed
number of tokens; in turn, all of them ask the model itself, or each asks its own adapter. The
replica is the same for both, so both have the same process, cache and batch.

`equal` counts the answers that have the same tokens as `generate` of transformers with the adapter
loaded by PEFT. Memory is the unique memory of the model's process, on a GPU all that is used there,
before the first adapter and with all of them. Last line: one JSON object; `ratio` is the median
over the turns of the tokens per second with adapters divided by those of the model alone.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.machine import describe_machine
from benchmarks.serve_peers.load import read_prompts
from benchmarks.serve_peers.model import build_model
from benchmarks.workbench import DEMO_ROWS

MODEL_NAME = "base"
NUM_PAGES = 160
NUM_WARMUP_TURNS = 2


def main() -> int:
    """Measure and print the figures."""
    options = _parse_arguments()
    with tempfile.TemporaryDirectory(prefix="benchmark-adapters-") as folder:
        model = build_model(Path(folder) / "model", dtype=options.dtype)
        adapters = _write_adapters(model, Path(folder), options.adapters, options.rank)
        figures = asyncio.run(_measure(model, adapters, Path(folder) / "storage", options))
    print(json.dumps({**figures, "settings": vars(options), **describe_machine()}))
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters")
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=64, help="requests of a turn")
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--checked", type=int, default=16, help="answers compared with PEFT's")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--cuda-graphs", choices=["on", "off"], help="default: as transformers chooses"
    )
    return parser.parse_args()


def _write_adapters(model: Path, folder: Path, number: int, rank: int) -> dict[str, Path]:
    """Write adapters whose values are as large as those of trained ones, by their ids."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    paths = {}
    for index in range(number):
        torch.manual_seed(index)
        config = LoraConfig(
            r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(model), config)
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(0, 0.02)
        paths[f"adapter-{index}"] = folder / f"adapter-{index}"
        adapted.save_pretrained(paths[f"adapter-{index}"])
    return paths


async def _measure(
    model: Path, adapters: dict[str, Path], storage: Path, options: argparse.Namespace
) -> dict[str, Any]:
    from serving.generator import GeneratorReplica, GeneratorSettings
    from serving.store.model_store import ModelStore
    from storage.layout import open_storage

    store = ModelStore(open_storage(storage))
    store.add(model, MODEL_NAME)
    for model_id, path in adapters.items():
        store.add(path, model_id, base_id=MODEL_NAME)
    settings: dict[str, Any] = {"num_threads": options.threads, "num_cache_blocks": NUM_PAGES}
    if options.cuda_graphs:
        settings["cuda_graphs"] = options.cuda_graphs == "on"
    replica = GeneratorReplica(GeneratorSettings(storage=str(storage), engine=settings))
    numbers = count()
    try:
        for _ in range(NUM_WARMUP_TURNS):
            await _ask_all(replica, [MODEL_NAME], numbers, options)
        before_mb = _find_memory_mb()
        loads_s = [await _time_first_answer(replica, model_id, numbers) for model_id in adapters]
        await _ask_all(replica, list(adapters), numbers, options)
        with_adapters_mb = _find_memory_mb()
        turns = []
        for number in range(options.turns):
            asked = {"base": [MODEL_NAME], "adapters": list(adapters)}
            order = list(asked) if number % 2 == 0 else list(asked)[::-1]
            turn = {name: await _ask_all(replica, asked[name], numbers, options) for name in order}
            print(f"turn {number + 1} of {options.turns}: {turn}", file=sys.stderr, flush=True)
            turns.append(turn)
        equal = await _count_equal(replica, model, adapters, numbers, options)
    finally:
        replica.close()
    return {
        "ratio": round(median(turn["adapters"] / turn["base"] for turn in turns), 3),
        "tokens_per_s": {
            name: round(median(turn[name] for turn in turns), 1) for name in ("base", "adapters")
        },
        "turns": turns,
        "equal": equal,
        "load_s": round(median(loads_s), 3),
        "base_mb": round(before_mb, 1),
        "adapter_mb": round((with_adapters_mb - before_mb) / len(adapters), 2),
        "adapter_file_mb": round(_find_size_mb(next(iter(adapters.values()))), 2),
    }


async def _ask_all(
    replica: Any, names: Sequence[str], numbers: Any, options: argparse.Namespace
) -> float:
    """Send the requests of one turn; return the tokens per second."""
    prompts = read_prompts(DEMO_ROWS, islice(numbers, options.requests))
    started = time.perf_counter()

    async def keep_asking(client: int) -> None:
        for prompt in prompts[client :: options.clients]:
            name = names[client % len(names)]
            await _ask(replica, name, prompt, options.output_tokens)

    await asyncio.gather(*(keep_asking(client) for client in range(options.clients)))
    num_tokens: int = len(prompts) * options.output_tokens
    return num_tokens / (time.perf_counter() - started)


async def _ask(replica: Any, model: str, prompt: str, num_tokens: int) -> str:
    from serving.openai.completion import parse_completion_request
    from serving.wire import TextRequest

    body = {"model": model, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0}
    answer = await replica.answer(TextRequest("benchmark", parse_completion_request(body), ""))
    (choice,) = answer.choices
    if choice.num_completion_tokens != num_tokens:
        raise RuntimeError(f"an answer has {choice.num_completion_tokens} tokens")
    return str(choice.text)


async def _time_first_answer(replica: Any, model: str, numbers: Any) -> float:
    """Return the seconds from a request for an adapter that is not loaded to its first token."""
    (prompt,) = read_prompts(DEMO_ROWS, islice(numbers, 1))
    started = time.perf_counter()
    await _ask(replica, model, prompt, 1)
    return time.perf_counter() - started


async def _count_equal(
    replica: Any,
    model: Path,
    adapters: dict[str, Path],
    numbers: Any,
    options: argparse.Namespace,
) -> str:
    """Compare answers of a batch over all adapters with those of PEFT; return 'equal of all'."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    prompts = read_prompts(DEMO_ROWS, islice(numbers, options.checked))
    names = [list(adapters)[number % len(adapters)] for number in range(len(prompts))]
    answers = await asyncio.gather(
        *(
            _ask(replica, name, prompt, options.output_tokens)
            for name, prompt in zip(names, prompts, strict=True)
        )
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = AutoTokenizer.from_pretrained(model)
    num_equal = 0
    for name, prompt, answer in zip(names, prompts, answers, strict=True):
        plain = AutoModelForCausalLM.from_pretrained(model)
        adapted = PeftModel.from_pretrained(plain, str(adapters[name])).to(device).eval()
        ids = tokenizer(prompt, return_tensors="pt").to(device)
        with torch.no_grad():
            out = adapted.generate(**ids, max_new_tokens=options.output_tokens, do_sample=False)
        num_equal += tokenizer.decode(out[0, ids["input_ids"].size(1) :]) == answer
    return f"{num_equal} of {len(prompts)}"


def _find_memory_mb() -> float:
    """Return the unique memory of the model's process in MB; with a GPU, what is used there."""
    import torch

    if torch.cuda.is_available():
        query = "import torch; free, total = torch.cuda.mem_get_info(); print(total - free)"
        return int(subprocess.check_output([sys.executable, "-c", query])) / 1e6  # noqa: S603
    (process,) = [
        child
        for child in psutil.Process().children(recursive=True)
        if "serving.engine.worker" in child.cmdline() and child.parent() != psutil.Process()
    ]
    return float(process.memory_full_info().uss) / 1e6


def _find_size_mb(adapter: Path) -> float:
    size_bytes = (adapter / "adapter_model.safetensors").stat().st_size
    return float(size_bytes) / 1e6


if __name__ == "__main__":
    raise SystemExit(main())
