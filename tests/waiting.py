"""Waiting for conditions instead of sleeping.

Time limits of tests are for a machine that runs one test. Where several processes of tests share
the processors, the environment variable `TEST_PATIENCE` is the factor by which they are longer.
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))


def wait_until(condition: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """Wait until a condition is true and return its result; fail after `timeout_s` seconds.

    The limit is multiplied by `PATIENCE`.
    """
    timeout_s *= PATIENCE
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.2)
    return result


async def wait_for(condition: Callable[[], Any], timeout_s: float, what: str) -> None:
    """Let the event loop run until a condition is true; fail after `timeout_s` seconds.

    The limit is multiplied by `PATIENCE`.
    """
    timeout_s *= PATIENCE
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        await asyncio.sleep(0.01)
