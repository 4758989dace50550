"""Clients that send texts to a server, one after the other, and the figures that they measure."""

import asyncio
import time
from collections.abc import Sequence
from statistics import quantiles
from typing import Any

import aiohttp

_TIMEOUT_S = 120.0


async def measure_server(
    url: str, body: dict[str, Any], texts: Sequence[str], num_clients: int
) -> dict[str, float]:
    """Send each text in a request of its own; raises `RuntimeError` if one is refused."""
    waiting = list(texts[::-1])
    times_s: list[float] = []

    async def keep_asking(session: aiohttp.ClientSession) -> None:
        while waiting:
            text = waiting.pop()
            started = time.perf_counter()
            async with session.post(url, json={**body, "input": [text]}) as response:
                answer = await response.text()
                if response.status != 200 or '"score"' not in answer:
                    raise RuntimeError(f"{response.status}: {answer}")
            times_s.append(time.perf_counter() - started)

    connector = aiohttp.TCPConnector(limit=num_clients)
    timeout = aiohttp.ClientTimeout(_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        started = time.perf_counter()
        await asyncio.gather(*(keep_asking(session) for _ in range(num_clients)))
        took_s = time.perf_counter() - started
    percentiles = quantiles(times_s, n=100, method="inclusive")
    return {
        "texts_per_s": round(len(texts) / took_s, 1),
        "p50_ms": round(percentiles[49] * 1000, 2),
        "p99_ms": round(percentiles[98] * 1000, 2),
    }
