"""How much of an engine's speed is left once it stands behind HTTP, beside two peers.

    python -m benchmarks.serve

A random Llama of 110 million parameters in bf16, prompts of mixed length, greedy answers of a fixed
number of tokens, 1, 4, 16 and 64 requests at a time. In turn, each alone on the machine, with the
same threads for the model and the same sizes of cache and batch:

engine         transformers' continuous batching in one process, without Serve or HTTP: the limit
ours           the application as `deploy.yaml` starts it, page and all, over HTTP
transformers   `transformers serve --continuous-batching`
pipeline       what Ray's tutorial shows: a `pipeline` in a deployment, one request at a time

Output tokens per second count what the clients got. The time to the first token is from sending
the request, the time per output token between the first and the last event of an answer; both of
streamed answers. Last line: one JSON object; ratios are of our tokens per second at 16 requests by
those of the other, medians over the rounds; `ttft_extra_ms` is our median time to the first token
less the engine's, at one request.
"""

import argparse
import json
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.serve_peers.contenders import Contender, make_contenders
from benchmarks.serve_peers.load import Load, measure, read_prompts
from benchmarks.serve_peers.model import build_model
from benchmarks.workbench import DEMO_ROWS

CONCURRENCY = (1, 4, 16, 64)
REQUESTS = {1: 6, 4: 12, 16: 32, 64: 64}
RATIOS_AT = 16


def main() -> int:
    """Measure and print the figures."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the servers have to be stopped
    options = _parse_arguments()
    with tempfile.TemporaryDirectory(prefix="benchmark-serve-") as folder:
        model = options.model or build_model(Path(folder) / "model", dtype=options.dtype)
        contenders = make_contenders(model, Path(folder), options.threads, options.output_tokens)
        chosen = {name: contenders[name] for name in options.contenders or contenders}
        figures: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for number in range(options.rounds):
            order = list(chosen) if number % 2 == 0 else list(reversed(chosen))
            for name in order:
                for figure in _measure_contender(chosen[name], options):
                    line = {"contender": name, "round": number, **figure}
                    print(json.dumps(line), file=sys.stderr, flush=True)
                    figures[name].append(figure)
    result = {
        **_compare(figures),
        "figures": {name: _summarise(found) for name, found in figures.items()},
        "settings": {
            "model": str(options.model or f"random Llama, 110M, {options.dtype}"),
            "threads": options.threads,
            "output_tokens": options.output_tokens,
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
    parser.add_argument("--rounds", type=int, default=3, help="times that each is measured")
    parser.add_argument(
        "--contenders",
        nargs="+",
        choices=("engine", "ours", "transformers", "pipeline"),
        help="only these",
    )
    parser.add_argument(
        "--concurrency", type=int, nargs="+", default=CONCURRENCY, choices=CONCURRENCY
    )
    return parser.parse_args()


def _measure_contender(
    contender: Contender, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    num_asked = 0
    with contender.run() as connect:
        for concurrency in options.concurrency:
            for is_streamed in (False, True) if contender.can_stream else (False,):
                num_requests = REQUESTS[concurrency]
                if not contender.is_batching:  # slow; so many say as much
                    num_requests = min(num_requests, 16)
                prompts = read_prompts(options.prompts, num_requests, num_asked)
                num_asked += num_requests
                load = Load(prompts, concurrency, is_streamed)
                yield measure(connect, load, options.output_tokens)


def _summarise(figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Take the medians over the rounds."""
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


def _compare(figures: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    def find(name: str, concurrency: int, key: str, *, streamed: bool) -> float | None:
        found = [
            figure[key]
            for figure in figures[name]
            if (figure["concurrency"], figure["streamed"]) == (concurrency, streamed)
        ]
        return median(found) if found else None

    def divide(name: str, *, streamed: bool, by_streamed: bool) -> float | None:
        ours = find("ours", RATIOS_AT, "tokens_per_s", streamed=streamed)
        other = find(name, RATIOS_AT, "tokens_per_s", streamed=by_streamed)
        return round(ours / other, 3) if ours and other else None

    own, limit = (find(name, 1, "ttft_p50_ms", streamed=True) for name in ("ours", "engine"))
    compared = {
        "ratio_engine": divide("engine", streamed=False, by_streamed=False),
        # The limit is the same: what the engine can do when it need not tell of every token.
        "ratio_engine_streamed": divide("engine", streamed=True, by_streamed=False),
        "ratio_transformers_serve": divide("transformers", streamed=False, by_streamed=False),
        "ratio_pipeline": divide("pipeline", streamed=False, by_streamed=False),
        "ttft_extra_ms": round(own - limit, 1) if own and limit else None,
    }
    return {name: value for name, value in compared.items() if value is not None}


if __name__ == "__main__":
    sys.exit(main())
