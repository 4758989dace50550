"""The serving throughput over HTTP, compared with the bare engine and two peers.

    python -m benchmarks.serve

A random Llama of 110 million parameters in bf16, prompts of mixed length, greedy answers of a fixed
number of tokens, and 1, 4, 16 and 64 concurrent requests. The four contenders have the same number
of model threads and the same cache and batch sizes:

engine         transformers' continuous batching in one process, without Serve or HTTP: the limit
ours           the application as `deploy.yaml` starts it, including the page, over HTTP
transformers   `transformers serve --continuous-batching`
pipeline       the pattern of Ray's tutorial: a `pipeline` in a deployment, one request at a time

The first three run at the same time and are measured in turn for each load, while the others are
suspended by signal: a machine's speed drifts within minutes by more than the differences measured.
The pipeline, on a Ray cluster of its own, runs before or after them in every round.

Output tokens per second count the tokens that the clients received. The time to first token starts
with sending the request; the time per output token is measured between the first and the last event
of an answer; both are of streamed answers. Last line: one JSON object; each ratio is our tokens per
second at 16 requests divided by those of the other contender in the same turn; `ttft_extra_ms` is
our median time to first token minus the engine's, at one request; all are medians over the turns.
"""

import argparse
import json
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, islice, product
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.serve_peers.contenders import Contender, make_contenders
from benchmarks.serve_peers.load import Load, read_prompts
from benchmarks.serve_peers.model import build_model
from benchmarks.workbench import DEMO_ROWS

CONCURRENCY = (1, 4, 16, 64)
REQUESTS = {1: 6, 4: 12, 16: 32, 64: 64}
RATIOS_AT = 16
TOGETHER = (("engine", "ours", "transformers"), ("pipeline",))  # one Ray cluster at a time

Figures = dict[str, list[dict[str, Any]]]  # by the name of the contender


def main() -> int:
    """Measure and print the figures."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped
    options = _parse_arguments()
    figures: Figures = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="benchmark-serve-") as folder:
        model = options.model or build_model(Path(folder) / "model", dtype=options.dtype)
        contenders = make_contenders(model, Path(folder), options.threads, options.output_tokens)
        numbers = count()  # prompt numbers, which make every prompt different
        for number in range(options.rounds):
            for names in TOGETHER if number % 2 == 0 else TOGETHER[::-1]:
                chosen = {name: contenders[name] for name in names if name in options.contenders}
                _measure_together(chosen, options, numbers, figures)
    result = {
        **_compare(figures),
        "figures": {name: _summarise(found) for name, found in figures.items()},
        "settings": {
            "model": str(options.model or f"random Llama, 110M, {options.dtype}"),
            "threads": options.threads,
            "output_tokens": options.output_tokens,
            "rounds": options.rounds,
            "turns": options.turns,
        },
        **describe_machine(),
    }
    print(json.dumps(result))
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="folder of a model, instead of a random one")
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="of the random model; a CPU without instructions for bf16 is faster in fp32",
    )
    parser.add_argument(
        "--prompts", type=Path, default=DEMO_ROWS, help="text file whose words make the prompts"
    )
    parser.add_argument("--threads", type=int, default=2, help="of torch, for each contender")
    parser.add_argument("--output-tokens", type=int, default=64, help="tokens of every answer")
    parser.add_argument("--rounds", type=int, default=2, help="times that all are started")
    parser.add_argument("--turns", type=int, default=2, help="that each has with a kind of load")
    names = [name for group in TOGETHER for name in group]
    parser.add_argument("--contenders", nargs="+", choices=names, default=names, help="only these")
    parser.add_argument(
        "--concurrency", type=int, nargs="+", default=CONCURRENCY, choices=CONCURRENCY
    )
    return parser.parse_args()


def _measure_together(
    contenders: dict[str, Contender],
    options: argparse.Namespace,
    numbers: Iterator[int],
    figures: Figures,
) -> None:
    """Start the contenders and measure them in turn for every load, every second turn reversed."""
    with ExitStack() as stack:
        running = {name: stack.enter_context(one.run()) for name, one in contenders.items()}
        for concurrency, turn in product(options.concurrency, range(options.turns)):
            order = list(product((False, True), running))
            for is_streamed, name in order if turn % 2 == 0 else order[::-1]:
                if is_streamed and not contenders[name].can_stream:
                    continue
                num_requests = REQUESTS[concurrency]
                if not contenders[name].is_batching:  # slow; fewer requests are enough
                    num_requests = min(num_requests, 16)
                prompts = read_prompts(options.prompts, islice(numbers, num_requests))
                load = Load(prompts, concurrency, options.output_tokens, is_streamed)
                figure = running[name].measure(load)
                print(json.dumps({"contender": name, **figure}), file=sys.stderr, flush=True)
                figures[name].append(figure)


def _summarise(figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the medians over rounds and turns."""
    groups: dict[tuple[int, bool], list[dict[str, Any]]] = defaultdict(list)
    for figure in figures:
        groups[figure["concurrency"], figure["streamed"]].append(figure)
    return [
        {
            "concurrency": concurrency,
            "streamed": streamed,
            **{
                name: round(median(figure[name] for figure in group), 2)
                for name in group[0]
                if name not in ("concurrency", "streamed")
            },
        }
        for (concurrency, streamed), group in sorted(groups.items())
    ]


def _compare(figures: Figures) -> dict[str, float]:
    def find(name: str, concurrency: int, key: str, *, streamed: bool) -> list[float]:
        """Return one value per turn."""
        return [
            figure[key]
            for figure in figures[name]
            if (figure["concurrency"], figure["streamed"]) == (concurrency, streamed)
        ]

    def divide(name: str, *, streamed: bool = False) -> list[float]:
        ours = find("ours", RATIOS_AT, "tokens_per_s", streamed=streamed)
        # The divisor is never streamed: the engine's limit is its speed without per-token events.
        others = find(name, RATIOS_AT, "tokens_per_s", streamed=False)
        return [own / other for own, other in zip(ours, others, strict=False)]

    first_tokens = [find(name, 1, "ttft_p50_ms", streamed=True) for name in ("ours", "engine")]
    compared = {
        "ratio_engine": divide("engine"),
        "ratio_engine_streamed": divide("engine", streamed=True),
        "ratio_transformers_serve": divide("transformers"),
        "ratio_pipeline": divide("pipeline"),
        "ttft_extra_ms": [own - limit for own, limit in zip(*first_tokens, strict=False)],
    }
    return {name: round(median(found), 3) for name, found in compared.items() if found}


if __name__ == "__main__":
    sys.exit(main())
