"""The check of an imported model in a separate process with limits on time and memory.

`python -m serving.store.import_check DIRECTORY` prints JSON objects, one per line. Before each
step it prints `{"step": ...}`, so that the reader knows which step ended the process. The last line
is `{"memory": ...}` as `ModelMemory` for a model that may be imported, `{"refusal": "..."}` for one
that may not, or `{"error": "..."}` if it could not be checked. With `--clean` the settings in the
directory are reduced to those known to be harmless; with `--convert-tokenizer` they are too, and a
tokenizer.json is written if there are only files in an older format. With `--base` the directory is
that of an adapter, for the model in the directory that the option names.
`serving.store.import_process` starts it; only this process imports torch and parses the JSON files
of the model.
"""

import argparse
import errno
import json
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from model_files.cleaning import clean_directory
from model_files.json_files import read_object
from model_files.tokenizer_settings import TOKENIZER_NAME
from model_files.weight_headers import ADAPTER_WEIGHTS_NAME
from serving.loading.model_memory import ModelMemory
from serving.served_task import DEFAULT_TASK, find_model_task, find_served_task
from serving.store.adapter_validation import (
    check_adapter_directory,
    clean_adapter_settings,
    read_layer_shapes,
)
from serving.store.import_steps import CheckStep
from serving.store.validation import (
    check_model_directory,
    find_cache_repository,
    find_companion,
)
from system.machine_faults import is_machine_fault
from system.process_limits import lift_memory_limit, limit_cpu, limit_memory
from templating.trial import try_chat_template

logger = logging.getLogger(__name__)

_NICENESS = 10
_CONFIG_NAME = "config.json"


def check_directory(
    directory: Path,
    report_step: Callable[[CheckStep], None],
    *,
    base: Path | None = None,
    cleans: bool = False,
    converts_tokenizer: bool = False,
) -> dict[str, Any]:
    """Check a model under limits; return the last JSON object of the module docstring.

    `base` is the directory of the base model of an adapter.
    """
    weights = directory.glob("*.safetensors")
    mapped_bytes = sum(path.stat().st_size for path in weights if path.is_file())
    step: CheckStep = "files"

    def start_step(new: CheckStep) -> None:
        nonlocal step
        step = new
        report_step(step)

    limit_cpu()
    try:
        limit_memory(mapped_bytes)
        start_step("files")
        links_stay_in = find_cache_repository(directory)
        cleans = cleans or converts_tokenizer
        if base is not None:
            check_adapter_directory(directory, base, links_stay_in=links_stay_in)
            if cleans:
                clean_directory(directory)
                clean_adapter_settings(directory, base)
        else:
            check_model_directory(
                directory, links_stay_in=links_stay_in, converts_tokenizer=converts_tokenizer
            )
            if cleans:
                clean_directory(directory, keeps=find_companion(directory))
        # The libraries are trusted, and importing them maps more memory than the model's limit.
        lift_memory_limit()
        from transformers.utils import logging as transformers_logging

        import serving.loading.inspection  # noqa: F401 - slow to import

        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        limit_memory(mapped_bytes)
        if base is not None:
            memory = _try_adapter(directory, base, mapped_bytes, start_step)
            has_template = (directory / TOKENIZER_NAME).is_file()
        else:
            memory, has_template = _try_model(directory, start_step, converts_tokenizer)
        if has_template:
            start_step("chat template")
            if (fault := _try_template(directory)) is not None:
                return {"error": fault}
    except KeyboardInterrupt:  # a signal to this process is no fault of the model
        raise
    # Any failure here is caused by the model's content or by the machine. A panic in a Rust library
    # is not an `Exception`.
    except BaseException as exc:  # noqa: BLE001 - logged there
        return _explain_failure([directory, *filter(None, [base])], step, exc)
    return {"memory": memory.model_dump()}


def _try_model(
    directory: Path, start_step: Callable[[CheckStep], None], converts_tokenizer: bool
) -> tuple[ModelMemory, bool]:
    """Inspect a complete model and try its companion; return also whether it may have templates."""
    from serving.loading.inspection import convert_tokenizer, inspect_model

    start_step("model")
    name = find_model_task(read_object(directory / _CONFIG_NAME))
    task = find_served_task(name)
    memory = inspect_model(directory, name)
    has_tokenizer = task.companion == TOKENIZER_NAME
    start_step("tokenizer" if has_tokenizer else "image processor")
    if has_tokenizer and converts_tokenizer and not (directory / TOKENIZER_NAME).is_file():
        convert_tokenizer(directory)
    tokenizer_bytes = task.try_companion(directory)
    memory = memory.model_copy(update={"tokenizer_bytes": tokenizer_bytes})
    return memory, task.answers == "text"


def _try_adapter(
    directory: Path, base: Path, weight_bytes: int, start_step: Callable[[CheckStep], None]
) -> ModelMemory:
    """Check that an adapter's layers are served, and try its tokenizer, if it has one.

    The base model's configuration is used for both.
    """
    from serving.loading.adapted_layers import check_adapted_layers, check_finite_values

    start_step("model")
    check_adapted_layers(base, read_layer_shapes(directory / ADAPTER_WEIGHTS_NAME))
    check_finite_values(directory)
    tokenizer_bytes = 0
    if (directory / TOKENIZER_NAME).is_file():
        start_step("tokenizer")
        with tempfile.TemporaryDirectory(prefix="tuneserve-adapter-") as scratch:
            links = Path(scratch)
            for path in directory.iterdir():
                if path.is_file() and not path.name.startswith("adapter_"):
                    (links / path.name).symlink_to(path.resolve())
            (links / _CONFIG_NAME).symlink_to((base / _CONFIG_NAME).resolve())
            tokenizer_bytes = find_served_task(DEFAULT_TASK).try_companion(links)
    return ModelMemory(
        weight_bytes=weight_bytes,
        tied_head_bytes=0,
        cache_token_bytes=0,
        tokenizer_bytes=tokenizer_bytes,
    )


def _explain_failure(
    directories: Sequence[Path], step: CheckStep, exc: BaseException
) -> dict[str, Any]:
    """Return the last JSON object for a failed check: a refusal, or an error of the machine.

    Paths in `directories` are shortened. Libraries raise `OSError` without an errno for content
    that they cannot use, and with ENOMEM if the model needs more than the memory limit.
    """
    is_short_of_memory = isinstance(exc, OSError) and exc.errno == errno.ENOMEM
    if is_short_of_memory or isinstance(exc, MemoryError):
        return {"refusal": f"checking its {step} takes more memory than is allowed"}
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None and is_machine_fault(cause):
            logger.error("the check of the model failed", exc_info=exc)
            return {"error": f"checking its {step} failed: {cause.strerror}"}
        cause = cause.__cause__
    logger.info("the model is refused", exc_info=exc)
    reason = str(exc) or type(exc).__name__
    for directory in directories:
        reason = reason.replace(str(directory), directory.name)
    return {"refusal": reason}


def _try_template(directory: Path) -> str | None:
    """Try the chat templates; return the reason if a machine fault prevented that, else None."""
    try:
        try_chat_template(directory)
    except OSError as exc:
        return str(exc)
    return None


def main() -> None:
    """Check the directory that the command line names and print the result."""
    parser = argparse.ArgumentParser(prog="python -m serving.store.import_check")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--clean", action="store_true")
    parser.add_argument("--convert-tokenizer", action="store_true")
    parser.add_argument("--base", type=Path)
    options = parser.parse_args()
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)  # the output of libraries must not mix with the result

        def report_step(step: CheckStep) -> None:
            print(json.dumps({"step": step}), file=output, flush=True)

        os.nice(_NICENESS)  # serving has priority
        found = check_directory(
            options.directory,
            report_step,
            base=options.base,
            cleans=options.clean,
            converts_tokenizer=options.convert_tokenizer,
        )
        json.dump(found, output)
    os._exit(0)  # skip the interpreter's shutdown: the end of the process frees everything


if __name__ == "__main__":
    main()
