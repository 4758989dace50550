"""Starts the check of an imported model; for the process that serves HTTP, without torch."""

import json
import logging
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from serving.loading.model_memory import ModelMemory
from serving.store.import_steps import CAUSES, CheckStep
from system.child_environment import build_child_environment

logger = logging.getLogger(__name__)

_TIMEOUT_S = 180.0
_MAX_REASON_CHARACTERS = 1_000
_OURS_TO_KILL = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT}


class ModelRefusedError(ValueError):
    """A model cannot be imported because of the content of its files."""


class ImportCheckError(RuntimeError):
    """A model could not be checked, for a reason other than its content."""


def check_import(
    directory: Path,
    *,
    cleans: bool = False,
    converts_tokenizer: bool = False,
    base: Path | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> ModelMemory:
    """Check a model directory in a process with limits; return its memory when loaded.

    With `cleans` the process reduces the settings in the directory to those known to be harmless;
    with `converts_tokenizer` it does so too, and writes a tokenizer.json if there are only files in
    an older format. With `base`, the directory of its base model, an adapter is checked; the memory
    is that of the adapter alone. Raises `ModelRefusedError` with the reason if the model cannot be
    imported, and `ImportCheckError` if it could not be checked.
    """
    started = time.monotonic()
    command = [sys.executable, "-m", "serving.store.import_check", str(directory.resolve())]
    command += ["--base", str(base.resolve())] if base is not None else []
    command += ["--clean"] * cleans + ["--convert-tokenizer"] * converts_tokenizer
    try:
        ended = subprocess.run(  # noqa: S603 - our own command
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=timeout_s,
            env=build_child_environment(
                {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
            ),
        )
    except subprocess.TimeoutExpired as exc:
        raise ModelRefusedError(
            f"checking {_name_step(exc.stdout)} took longer than {timeout_s:g} s; "
            f"{CAUSES[_find_step(exc.stdout)]}"
        ) from None
    memory = _read_result(ended.returncode, ended.stdout)
    logger.info("checked model %s in %.1f s", directory.name, time.monotonic() - started)
    return memory


def _read_result(code: int, output: bytes) -> ModelMemory:
    if code < 0:
        if -code in _OURS_TO_KILL:  # the system was out of memory, or the process was stopped
            raise ImportCheckError(f"the check of a model was ended by signal {-code}")
        reason = "time" if -code == signal.SIGXCPU else "memory"
        raise ModelRefusedError(
            f"checking {_name_step(output)} takes more {reason} than allowed (ended by signal "
            f"{-code}); {CAUSES[_find_step(output)]}"
        )
    try:
        result = json.loads(output.splitlines()[-1])
        if "memory" in result:
            return ModelMemory.model_validate(result["memory"])
        error, refusal = result.get("error"), result.get("refusal")
    except (ValueError, LookupError, TypeError, AttributeError, ValidationError) as exc:
        raise ImportCheckError(
            f"the check of a model ended with code {code} and no result; the log says why"
        ) from exc
    if refusal is not None:
        raise ModelRefusedError(str(refusal)[:_MAX_REASON_CHARACTERS])
    raise ImportCheckError(
        f"the check of a model ended with code {code}: "
        f"{str(error or 'no result')[:_MAX_REASON_CHARACTERS]}"
    )


def _find_step(output: bytes | None) -> CheckStep:
    """Return the step in which a check ended, from the lines that it printed."""
    for line in reversed((output or b"").splitlines()):
        with suppress(ValueError, LookupError, TypeError):
            if (step := json.loads(line)["step"]) in CAUSES:
                return cast("CheckStep", step)
    return "files"


def _name_step(output: bytes | None) -> str:
    step = _find_step(output)
    return "the model" if step == "model" else f"the model's {step}"
