"""A load of concurrent requests, and the figures that its clients measure."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

SHORTEST_WORDS, LONGEST_WORDS = 5, 35

# Sends one prompt; yields the number of tokens of each event, or of the whole answer.
Ask = Callable[[str, bool], AsyncIterator[int]]
# Opens a connection for the duration of a load.
Connect = Callable[[], AbstractAsyncContextManager[Ask]]


@dataclass(frozen=True)
class Load:
    """The prompts, the number of concurrent requests, and the length and kind of the answers."""

    prompts: list[str]
    concurrency: int
    output_tokens: int
    is_streamed: bool


def read_prompts(file: Path, numbers: Iterable[int]) -> list[str]:
    """Make prompts of mixed length from the words of a file.

    Each begins with its number, so that no two prompts share pages of the KV cache.
    """
    words = file.read_text(errors="replace").split()
    generator = random.Random(0)  # noqa: S311 - the same lengths and words every time
    prompts = []
    for number in numbers:
        start = generator.randrange(max(1, len(words) - LONGEST_WORDS))
        length = generator.randint(SHORTEST_WORDS, LONGEST_WORDS)
        prompts.append(f"{number}. {' '.join(words[start : start + length])}")
    return prompts


def measure(connect: Connect, load: Load) -> dict[str, Any]:
    """Send a load and return its figures; raises `RuntimeError` if an answer is incomplete."""
    return asyncio.run(_measure(connect, load))


async def _measure(connect: Connect, load: Load) -> dict[str, Any]:
    waiting = load.prompts[::-1]
    firsts_s, gaps_s = [], []

    async def keep_asking(ask: Ask) -> None:
        while waiting:
            prompt = waiting.pop()
            started = time.perf_counter()
            first = last = None
            num_tokens = 0
            async for num_new in ask(prompt, load.is_streamed):
                last = time.perf_counter()
                first = first or last
                num_tokens += num_new
            if num_tokens != load.output_tokens or first is None or last is None:
                raise RuntimeError(f"{num_tokens} tokens came, {load.output_tokens} expected")
            firsts_s.append(first - started)
            gaps_s.append((last - first) / max(1, num_tokens - 1))

    async with connect() as ask:
        started = time.perf_counter()
        await asyncio.gather(*(keep_asking(ask) for _ in range(load.concurrency)))
        took_s = time.perf_counter() - started
    figures = {
        "concurrency": load.concurrency,
        "streamed": load.is_streamed,
        "tokens_per_s": round(len(load.prompts) * load.output_tokens / took_s, 1),
        "took_s": round(took_s, 2),
    }
    if load.is_streamed:
        percentiles = quantiles(firsts_s, n=100, method="inclusive")
        figures["ttft_p50_ms"] = round(percentiles[49] * 1000, 1)
        figures["ttft_p99_ms"] = round(percentiles[98] * 1000, 1)
        figures["time_per_token_ms"] = round(mean(gaps_s) * 1000, 2)
    return figures
