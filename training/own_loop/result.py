"""The model of a loop: a Hugging Face directory in a checkpoint, or DeepSpeed's shards."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from model_files import loading
from storage import durable
from storage.scratch import build_in_scratch
from training.base_model import load_config
from training.checkpoint.format import LATEST_NAMES
from training.export.companions import copy_text_companions
from training.export.consolidate import consolidate_checkpoint
from training.export.model_settings import check_settings
from training.export.plan import ConsolidationError
from training.export.verification import Verification, check_model, check_values, reject_model
from training.spec import TrainingSpec
from training.task import Task, find_task

MODEL_FOLDER = "model"
"""The folder of a checkpoint in which a loop saves its model, unless that is the checkpoint."""

# Files of a model directory; a checkpoint may have others, such as the state of an optimizer.
_COPIED_SUFFIXES = (".json", ".safetensors", ".jinja", ".txt", ".model")
_LABEL_KEYS = ("id2label", "label2id", "problem_type")


class NoModelError(ConsolidationError):
    """A checkpoint of a loop has no model; the message says what was expected."""


def build_loop_model(
    spec: TrainingSpec, checkpoint: Path, output: Path, add_files: Callable[[Path], None]
) -> Verification:
    """Write the model in a loop's checkpoint as a verified directory.

    A model directory is copied; DeepSpeed's shards are consolidated in fp32 with the configuration
    of the base model. Tokenizer or image processor come from the base model if they are missing.
    Raises `NoModelError` if there is neither, and otherwise as `consolidate_checkpoint` does.
    """
    task = find_task(spec.task)
    if (folder := find_model(checkpoint)) is not None:
        return _copy_model(spec, task, folder, output, add_files)
    if not any((checkpoint / name).is_file() for name in LATEST_NAMES):
        raise NoModelError(
            f"its checkpoint {checkpoint.name!r} has no model: expected a Hugging Face model "
            f"directory in {MODEL_FOLDER!r} (config.json and *.safetensors, as "
            "'save_pretrained' writes them), or a checkpoint of DeepSpeed with its file 'latest'"
        )
    objective: Any = _LoopObjective(task, checkpoint)
    return consolidate_checkpoint(
        checkpoint,
        spec.base_model,
        output,
        dtype=torch.float32,
        add_files=add_files,
        objective=objective,
    )


def find_model(checkpoint: Path) -> Path | None:
    """Return the model directory in a checkpoint; None if there is none."""
    for folder in (checkpoint / MODEL_FOLDER, checkpoint):
        if (folder / loading.CONFIG_NAME).is_file() and any(folder.glob("*.safetensors")):
            return folder
    return None


class _LoopObjective:
    """The part of an objective that a consolidation needs.

    The classes are those of a `config.json` that the loop saved beside the shards, if it did.
    """

    def __init__(self, task: Task, checkpoint: Path) -> None:
        self.task = task
        self._config = checkpoint / loading.CONFIG_NAME

    def adapt_config(self, config: Any) -> None:
        """Set the classes in the configuration of the base model."""
        if self._config.is_file():
            saved = json.loads(self._config.read_text())
            for name in _LABEL_KEYS:
                if name in saved:
                    value = saved[name]
                    is_by_number = name == "id2label"
                    setattr(config, name, _number_keys(value) if is_by_number else value)


def _number_keys(labels: dict[str, str]) -> dict[int, str]:
    return {int(number): label for number, label in labels.items()}


def _copy_model(
    spec: TrainingSpec,
    task: Task,
    folder: Path,
    output: Path,
    add_files: Callable[[Path], None],
) -> Verification:
    if output.exists():
        raise ConsolidationError(f"{str(output)!r} already exists; it was not changed")
    with build_in_scratch(output.parent, f".{output.name}.building-") as building:
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.suffix in _COPIED_SUFFIXES and not _is_ours(path.name):
                shutil.copyfile(path, building / path.name)
        _add_companions(spec, task, building)
        values = check_values(*_find_non_finite(building))
        checks = (values, check_settings(building), *_check_loads(building, task))
        add_files(building)
        verification = Verification(checks=checks)
        verification.write(building)
        if not verification.passed:
            raise reject_model(building, output, verification)
        durable.publish_directory(building, output)
    return verification


def _is_ours(name: str) -> bool:
    """Return whether a file is of the checkpoint, where the checkpoint itself is the model."""
    return name.startswith("manifest-") or name == durable.MANIFEST_NAME


def _add_companions(spec: TrainingSpec, task: Task, directory: Path) -> None:
    """Add the base model's tokenizer, settings of generation or image processor, if missing."""
    names = ("tokenizer_config.json", "preprocessor_config.json", "tokenizer.json")
    if any((directory / name).is_file() for name in names):
        return
    if task.generates:
        copy_text_companions(spec.base_model, load_config(spec.base_model), {}, directory)
    else:
        task.save_companions(spec.base_model, directory)


def _find_non_finite(directory: Path) -> tuple[list[str], list[str], int]:
    """Return the tensors with values that are not finite, none of zeros, and their number."""
    tensors = list(_read_tensors(directory))
    return [name for name, is_finite in tensors if not is_finite], [], len(tensors)


def _read_tensors(directory: Path) -> Iterator[tuple[str, bool]]:
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - it is no mapping
                yield name, bool(torch.isfinite(weights.get_tensor(name)).all())


def _check_loads(directory: Path, task: Task) -> list[Any]:
    return check_model(directory, None, torch.float32, task.model_class)
