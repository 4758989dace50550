"""The throughput of `POST /v1/classify`, compared with the model alone and a plain deployment.

    python -m benchmarks.classify --texts FILE --size base

A random BERT with a WordPiece vocabulary of the texts: with the layers of BERT-base, or a small one
(4 layers, 256 wide), which takes less time for a text than any server does for a request. Texts of
at most 128 tokens, one per request, from 1, 16 and 64 clients. Each contender has one process with
the model and one model thread, as the classifier has:

model      forward passes over batches of the same texts, tokenised before: the limit
ours       the application as `deploy.yaml` starts it, with one replica of the classifier, over HTTP
pipeline   the pattern of Ray's tutorial: a `pipeline` in a deployment with `serve.batch`, over HTTP

The model alone is measured before each load of a server, which is suspended meanwhile: a machine's
speed drifts within minutes. The servers have a Ray cluster each and run one after the other, in
every round in another order. The clients share the machine with the servers.

Last line: one JSON object; the ratios are our texts per second at 64 clients divided by those of
the other contender, medians over the turns: of the model in the same turn, of the pipeline in all.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.application import find_free_port, write_deploy_file
from benchmarks.classify_peers import model_process
from benchmarks.classify_peers.client import measure_server
from benchmarks.encoder import Size, build_encoder
from benchmarks.machine import describe_machine
from benchmarks.serve_peers.processes import awake, paused, wait_until_quiet
from benchmarks.serve_peers.server import Server
from benchmarks.workbench import DEMO_ROWS, ROOT

CLIENTS = (1, 16, 64)
NUM_TEXTS: Mapping[Size, Mapping[int, int]] = {
    "small": {1: 128, 16: 768, 64: 1536},
    "base": {1: 16, 16: 128, 64: 320},
}
RATIOS_AT = 64
NUM_THREADS = 1
SERVERS = ("ours", "pipeline")
MODEL_NAME = "measured"
LEAST_WORDS = 5
BIN = Path(sys.executable).parent

Figures = dict[str, list[dict[str, Any]]]  # by the name of the contender


def main() -> int:
    """Measure and print the figures."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped
    options = _parse_arguments()
    texts = read_texts(options.texts)
    figures: Figures = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="benchmark-classify-") as place:
        folder = Path(place)
        build_encoder(folder / "model", texts, ("different", "same"), 0, options.size)
        with _run_model(folder / "model", texts) as alone:
            for number in range(options.rounds):
                for name in options.servers if number % 2 == 0 else options.servers[::-1]:
                    _measure_beside(alone, name, folder, options, texts, figures)
            batch_size = alone.batch_size
    result = {
        **_compare(figures),
        "figures": {name: _summarise(found) for name, found in figures.items()},
        "settings": {
            "size": options.size,
            "threads": NUM_THREADS,
            "rounds": options.rounds,
            "turns": options.turns,
            "batch_size_of_the_model": batch_size,
            "mean_words": round(sum(len(text.split()) for text in texts) / len(texts), 1),
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
        "--texts", type=Path, default=DEMO_ROWS, help="file whose lines, divided by tabs, are texts"
    )
    parser.add_argument("--size", choices=NUM_TEXTS, default="base", help="size of the model")
    parser.add_argument("--rounds", type=int, default=2, help="times that each server is started")
    parser.add_argument("--turns", type=int, default=2, help="that each has with a kind of load")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=SERVERS)
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS, choices=CLIENTS)
    return parser.parse_args()


def read_texts(file: Path) -> list[str]:
    """Read the parts of lines between tabs that have at least `LEAST_WORDS` words, shuffled."""
    lines = file.read_text(errors="replace").splitlines()
    parts = [part.strip() for line in lines for part in line.split("\t")]
    texts = [part for part in parts if len(part.split()) >= LEAST_WORDS]
    random.Random(0).shuffle(texts)  # noqa: S311 - the same order every time
    return texts


class RunningModel:
    """The process of the model alone, which is paused between loads."""

    def __init__(self, process: psutil.Process, connection: Any, batch_size: int) -> None:
        self.process = process
        self.batch_size = batch_size
        self._connection = connection

    def measure(self, texts: Sequence[str]) -> float:
        """Resume the process, send it texts, and pause it again; return its texts per second."""
        with awake(self.process):
            self._connection.send(texts)
            found: float = self._connection.recv()
            return found


@contextmanager
def _run_model(model: Path, texts: Sequence[str]) -> Iterator[RunningModel]:
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    arguments = (theirs, model, NUM_THREADS, texts[:256])
    process = spawning.Process(target=model_process.main, args=arguments)
    process.start()
    theirs.close()
    try:
        running = RunningModel(psutil.Process(process.pid), ours, ours.recv())
        with paused(running.process):
            yield running
    finally:
        ours.close()
        process.join()


def _measure_beside(
    alone: RunningModel,
    name: str,
    folder: Path,
    options: argparse.Namespace,
    texts: Sequence[str],
    figures: Figures,
) -> None:
    """Start a server, and measure it and the model in turn for every load."""
    server = _describe(name, folder)
    with server.start() as started:
        process = psutil.Process(started.pid)
        asyncio.run(measure_server(server.url, server.body, texts[:8], 1))
        with paused(process):
            for num_clients in options.clients:
                chosen = [
                    texts[i % len(texts)] for i in range(NUM_TEXTS[options.size][num_clients])
                ]
                for _ in range(options.turns):
                    model_rate = alone.measure(chosen)
                    with awake(process):
                        asyncio.run(
                            measure_server(server.url, server.body, texts[:64], num_clients)
                        )
                        wait_until_quiet(process)
                        found = asyncio.run(
                            measure_server(server.url, server.body, chosen, num_clients)
                        )
                    ratio = found["texts_per_s"] / model_rate
                    figure = {"clients": num_clients, **found, "ratio_model": round(ratio, 3)}
                    print(json.dumps({"contender": name, **figure}), file=sys.stderr, flush=True)
                    figures[name].append(figure)
                    model_figure = {"clients": num_clients, "texts_per_s": round(model_rate, 1)}
                    figures["model"].append(model_figure)


def _describe(name: str, folder: Path) -> Server:
    port = find_free_port()
    if name == "pipeline":
        return Server(
            log=folder / "pipeline.log",
            command=[
                *(BIN / "serve", "run", "--working-dir", ROOT),
                *("benchmarks.classify_peers.pipeline_app:build_app", f"model={folder / 'model'}"),
                *(f"threads={NUM_THREADS}", f"port={port}"),
            ],
            environment={"OMP_NUM_THREADS": str(NUM_THREADS)},
            ready=f"http://127.0.0.1:{port}/-/healthz",
            url=f"http://127.0.0.1:{port}/",
            body={},
        )
    storage = folder / "ours"
    storage.mkdir(exist_ok=True)
    deploy = write_deploy_file(
        ROOT / "deploy.yaml",
        storage,
        port,
        base_models={"tuneserve-demo": "bundled", MODEL_NAME: str(folder / "model")},
        classifier={"min_replicas": 1, "max_replicas": 1},
    )
    return Server(
        log=folder / "ours.log",
        command=[BIN / "tuneserve", "run", deploy],
        environment={},
        ready=f"http://127.0.0.1:{port}/healthz",
        url=f"http://127.0.0.1:{port}/v1/classify",
        body={"model": MODEL_NAME, "truncate": True},
    )


def _summarise(figures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the medians over rounds and turns."""
    groups: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for figure in figures:
        groups[figure["clients"]].append(figure)
    return [
        {
            name: num_clients
            if name == "clients"
            else round(median(figure[name] for figure in group), 3)
            for name in group[0]
        }
        for num_clients, group in sorted(groups.items())
    ]


def _compare(figures: Figures) -> dict[str, float]:
    def find(name: str, key: str) -> list[float]:
        return [one[key] for one in figures.get(name, []) if one["clients"] == RATIOS_AT]

    ours, pipeline = find("ours", "texts_per_s"), find("pipeline", "texts_per_s")
    compared: dict[str, float] = {}
    if ours:
        compared["ratio_model"] = round(median(find("ours", "ratio_model")), 3)
    if ours and pipeline:
        compared["ratio_pipeline"] = round(median(ours) / median(pipeline), 3)
    return compared


if __name__ == "__main__":
    sys.exit(main())
