"""Loading of a published model directory, complete or not at all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from model_files import loading
from serving.cpu.packed_linear import pack_linear_layers
from serving.errors import EngineDeadError
from serving.served_task import DEFAULT_TASK, ServedTask, find_served_task

_FAULTS = (OSError, ValueError, RuntimeError, KeyError, SafetensorError)
_PROBLEMS = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")


def load_model(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the weights in the dtype of the file, onto the GPU if there is one, and the tokenizer.

    Downloads nothing, runs no code of the model, and opens no file that the model's settings name.
    Raises `EngineDeadError` if the files cannot be read, or if a weight is missing, unexpected or
    of another shape: transformers would continue with random values for it.
    """
    generation_config = _load_generation_config(path)
    task = find_served_task(DEFAULT_TASK)
    model = _load_weights(path, AutoModelForCausalLM, task, generation_config=generation_config)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return model.to(device), load_tokenizer(path)


def load_predicting_model(path: Path, task: ServedTask) -> Any:
    """Load a model of a task on the CPU, as strictly as `load_model`, with packed layers."""
    model = _load_weights(path, getattr(transformers, task.model_class), task)
    pack_linear_layers(model)
    return model


def _load_weights(path: Path, auto_class: Any, task: ServedTask, **settings: Any) -> Any:
    try:
        model, report = auto_class.from_pretrained(
            path,
            config=loading.load_config(path),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype="auto",
            output_loading_info=True,
            **settings,
        )
    except _FAULTS as exc:
        raise _describe_fault(path, exc) from exc
    check_loading_report(path.name, task.select_mismatches(report, model))
    return model.eval()


def load_own_generation_config(path: Path) -> GenerationConfig | None:
    """Load the generation settings of an adapter's directory; None if it has none.

    Raises `EngineDeadError` for a file that cannot be read.
    """
    return _load_generation_config(path) if (path / loading.GENERATION_NAME).is_file() else None


def _load_generation_config(path: Path) -> GenerationConfig:
    try:
        return loading.load_generation_config(path)
    except _FAULTS as exc:
        raise _describe_fault(path, exc) from exc


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model; raise `EngineDeadError` if it cannot be loaded."""
    try:
        return loading.load_tokenizer(path)
    except _FAULTS as exc:
        raise _describe_fault(path, exc) from exc


def check_loading_report(name: str, report: Mapping[str, Any]) -> None:
    """Raise `EngineDeadError` if transformers reports weights that do not fit the config."""
    found = {problem: sorted(map(str, report[problem])) for problem in _PROBLEMS if report[problem]}
    if found:
        raise EngineDeadError(
            f"model {name!r} is refused because its weights do not fit its config: "
            + "; ".join(
                f"{problem.replace('_', ' ')}: {', '.join(names[:5])}"
                for problem, names in found.items()
            )
        )


def _describe_fault(path: Path, fault: Exception) -> EngineDeadError:
    reason = str(fault).replace(str(path), path.name)
    return EngineDeadError(f"model {path.name!r} cannot be loaded: {reason}")
