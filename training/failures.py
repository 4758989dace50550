"""Tells a run's user when workers were lost and are being replaced."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.train import UserCallback

from training.runs import RunFolder

_MAX_CHARACTERS = 300
# What gloo and NCCL say in one worker when it was another that ended.
_ENDS_OF_OTHERS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL")
# What Ray says at length of processes that ended without a word of their own.
_DEATHS = {
    "its worker process has died": "its process was killed, perhaps because memory ran out",
    "its node has died": "its node is gone",
}


def summarise_exception(exception: BaseException) -> str:
    """The last line of what Ray says of a worker's failure: its text may be a whole traceback."""
    text = str(exception)
    for words, meaning in _DEATHS.items():
        if words in text:
            return meaning
    lines = text.strip().splitlines()
    return lines[-1][:_MAX_CHARACTERS] if lines else type(exception).__name__


def choose_failure(failures: Mapping[int, BaseException]) -> tuple[int, BaseException]:
    """Choose the failure to tell of, with its rank: one that is no consequence, if there is one."""

    def rate(failure: tuple[int, BaseException]) -> tuple[bool, int]:
        rank, exception = failure
        return any(words in str(exception) for words in _ENDS_OF_OTHERS), rank

    return min(failures.items(), key=rate)


class TellOfFailures(UserCallback):
    """Writes an event for every failure of workers; Ray Train calls it in its controller."""

    def __init__(self, run: str) -> None:
        self._run = run

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:  # noqa: ARG002 - Ray calls it so
        """Name the worker that failed, and why."""
        rank, exception = choose_failure(worker_exceptions)
        reason = summarise_exception(exception)
        RunFolder(Path(self._run)).add_event(
            f"Worker {rank} was lost: {reason}",
            level="warn",
            data={"ranks": sorted(worker_exceptions)},
        )
