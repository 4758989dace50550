"""Descriptions of worker failures."""

import re
from collections.abc import Mapping

_MAX_CHARACTERS = 300
# What gloo and NCCL report in one worker when another worker has ended.
_ENDS_OF_OTHERS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL")
# Ray's description of a process that ended without an exception of its own (`WorkerExitType` in
# src/ray/protobuf/common.proto); it records no signal.
_EXIT_TYPE = re.compile(r"[Ww]orker exit type: (\w+)")
_KILLED = re.compile(r"[Tt]he actor (?:is dead|died) because (it was .+?)\.?$", re.MULTILINE)
_EXIT_CODE = re.compile(r"exit code (-?\d+)")
_OUT_OF_MEMORY_WORDS = ("killed due to the node running low on memory", "NODE_OUT_OF_MEMORY")
_DIED_WORDS = ("worker process has died", "worker died unexpectedly", "actor died unexpectedly")
_SILENT = re.compile(r"health check has been hanging for (\d+)")
_UNAVAILABLE_WORDS = "The actor is temporarily unavailable"
_NODE_WORDS = ("its node has died", "node is dead", "node died")


def summarise_exception(exception: BaseException) -> str:
    """Return why a worker failed in one line; Ray's text may be a whole traceback.

    For a process that ended without an exception, only what Ray recorded is reported: Ray's own
    text lists common causes, none of which need apply.
    """
    text = str(exception)
    if any(words in text for words in _OUT_OF_MEMORY_WORDS):
        return "Ray's memory monitor killed its process, because its node ran low on memory"
    if any(words in text for words in _NODE_WORDS):
        return "its node has left the cluster"
    if silent := _SILENT.search(text):
        return f"it did not answer for {silent[1]} s"
    if _UNAVAILABLE_WORDS in text:  # Ray does not know yet whether the process or its node ended
        return "the connection to its process was lost"
    if killed := _KILLED.search(text):
        return killed[1]
    if (exit_type := _EXIT_TYPE.search(text)) or any(words in text for words in _DIED_WORDS):
        code = _EXIT_CODE.search(text)
        if code:
            return f"its process ended with exit status {code[1]}"
        recorded = f" (Ray records {exit_type[1]})" if exit_type else ""
        return f"its process ended without a reason being recorded{recorded}"
    lines = text.strip().splitlines()
    return lines[-1][:_MAX_CHARACTERS] if lines else type(exception).__name__


def choose_failure(failures: Mapping[int, BaseException]) -> tuple[int, BaseException]:
    """Choose the failure to report, with its rank: if possible, not a consequence of another."""

    def rate(failure: tuple[int, BaseException]) -> tuple[bool, int]:
        rank, exception = failure
        return any(words in str(exception) for words in _ENDS_OF_OTHERS), rank

    return min(failures.items(), key=rate)
