"""Failed, late and wrongly attributed responses while an alias moves between two models.

    python -m benchmarks.handover

An alias switches between two random models of 21 million parameters in fp32, on one or several
replicas, while clients send requests without pause. Every response must have status 200 and the
text that the model in its `x-model-id` header generates when it is requested by name. `p99_ratio`
is the p99 latency during moves (from the request to move until every replica has the new model,
plus half a second) divided by the p99 latency before the first move. Last line: one JSON object.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import aiohttp

from benchmarks.application import find_free_port, write_deploy_file
from benchmarks.machine import describe_machine
from benchmarks.serve_peers.load import read_prompts
from benchmarks.serve_peers.model import build_model
from benchmarks.serve_peers.server import Server
from benchmarks.workbench import DEMO_ROWS, ROOT

ALIAS = "latest"
MODELS = ("first", "second")
NUM_PROMPTS = 10
OUTPUT_TOKENS = 8
BEFORE_S = 30.0
BEYOND_S = 0.5
REQUESTS_PER_MOVE = 101
PAUSE_S = 1.0
MOVE_TIMEOUT_S = 60.0


@dataclass
class Seen:
    """The responses that the clients got.

    Each answer is its start time (s, monotonic), its latency in seconds and its `x-model-id`.
    """

    answers: list[tuple[float, float, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    num_misattributed: int = 0


def main() -> int:
    """Measure and print the figures."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--moves", type=int, default=20, help="times that the alias moves")
    parser.add_argument("--clients", type=int, default=4, help="requests at a time")
    parser.add_argument("--replicas", type=int, default=1, help="of the generator")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-handover-") as folder:
        result = _measure(Path(folder), options)
    print(json.dumps({**result, **describe_machine()}))
    return 0


def _measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    models = {
        name: build_model(folder / name, seed=seed, hidden_size=384, num_layers=5, dtype="float32")
        for seed, name in enumerate(MODELS)
    }
    port = find_free_port()
    url = f"http://127.0.0.1:{port}"
    deploy = write_deploy_file(
        ROOT / "deploy.yaml",
        folder,
        port,
        base_models={name: str(model) for name, model in models.items()},
        engine={"num_threads": 1},
        replicas={"min": options.replicas, "max": options.replicas},
        # One model stays in memory, so every move loads the other one beside the serving one.
        max_loaded_models=1,
    )
    server = Server(
        log=folder / "server.log",
        command=[Path(sys.executable).parent / "tuneserve", "run", deploy],
        environment={},
        ready=f"{url}/healthz",
        url=f"{url}/v1/chat/completions",
        body={"model": MODELS[0], "max_tokens": 1},
    )
    with server.start():
        return asyncio.run(_drive(url, options))


async def _drive(url: str, options: argparse.Namespace) -> dict[str, Any]:
    prompts = read_prompts(DEMO_ROWS, range(NUM_PROMPTS))
    seen, moves = Seen(), []
    timeout = aiohttp.ClientTimeout(MOVE_TIMEOUT_S)
    async with aiohttp.ClientSession(url, timeout=timeout) as session:
        expected = {
            (name, prompt): (await _ask(session, name, prompt))[1]
            for name in MODELS
            for prompt in prompts
        }
        clients = [
            asyncio.create_task(_keep_asking(session, prompts[i:] + prompts[:i], expected, seen))
            for i in range(options.clients)
        ]
        started = time.monotonic()
        await asyncio.sleep(BEFORE_S)
        for number in range(options.moves):
            moved = time.monotonic()
            name = MODELS[(number + 1) % len(MODELS)]
            await _move(session, name, seen, options.replicas)
            moves.append((moved, time.monotonic() + BEYOND_S))
            print(f"move {number + 1}: {moves[-1][1] - moved:.1f} s", file=sys.stderr, flush=True)
            async with asyncio.timeout(MOVE_TIMEOUT_S * 2):
                while len(seen.answers) < REQUESTS_PER_MOVE * (number + 1):
                    await asyncio.sleep(PAUSE_S)
        for client in clients:
            client.cancel()
        ends = await asyncio.gather(*clients, return_exceptions=True)
        if faults := [end for end in ends if not isinstance(end, asyncio.CancelledError)]:
            raise RuntimeError(f"clients broke off: {faults}")
    before = [took for at, took, _ in seen.answers if at + took < started + BEFORE_S]
    during = [
        took
        for at, took, _ in seen.answers
        if any(at < end and at + took > begin for begin, end in moves)
    ]
    p99_before, p99_during = (quantiles(times, n=100)[98] for times in (before, during))
    return {
        "requests": len(seen.answers) + len(seen.failures),
        "failed": len(seen.failures),
        "misattributed": seen.num_misattributed,
        "p99_ratio": round(p99_during / p99_before, 2),
        "p99_before_ms": round(p99_before * 1000),
        "p99_during_ms": round(p99_during * 1000),
        "move_s": round(median(end - begin - BEYOND_S for begin, end in moves), 2),
        "moves": len(moves),
        "replicas": options.replicas,
        "failures": seen.failures[:5],
    }


async def _keep_asking(
    session: aiohttp.ClientSession,
    prompts: list[str],
    expected: dict[tuple[str, str], str],
    seen: Seen,
) -> None:
    while True:
        for prompt in prompts:
            begin = time.monotonic()
            try:
                model, text = await _ask(session, ALIAS, prompt)
            except (aiohttp.ClientError, RuntimeError, TimeoutError, KeyError, ValueError) as exc:
                seen.failures.append(repr(exc))
                await asyncio.sleep(0.05)
                continue
            seen.answers.append((begin, time.monotonic() - begin, model))
            seen.num_misattributed += text != expected[model, prompt]


async def _ask(session: aiohttp.ClientSession, model: str, prompt: str) -> tuple[str, str]:
    """Send one request; returns the `x-model-id` of the response and its text."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 0,
    }
    async with session.post("/v1/chat/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {await response.text()}")
        answer = await response.json()
        return response.headers["x-model-id"], answer["choices"][0]["message"]["content"]


async def _move(session: aiohttp.ClientSession, model: str, seen: Seen, num_replicas: int) -> None:
    """Move the alias to a model, and wait until every replica has switched to it."""
    num_before = await _count_moves(session)
    async with session.put(f"/v1/aliases/{ALIAS}", json={"model": model}) as response:
        response.raise_for_status()
    deadline = time.monotonic() + MOVE_TIMEOUT_S
    while await _count_moves(session) < num_before + num_replicas:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{ALIAS} did not move to {model}: {seen.failures[-1:]}")
        await asyncio.sleep(0.05)


async def _count_moves(session: aiohttp.ClientSession) -> int:
    async with session.get(f"/v1/aliases/{ALIAS}/events") as response:
        events = (await response.json())["data"]
    return sum(event["outcome"] == "moved" for event in events)


if __name__ == "__main__":
    sys.exit(main())
