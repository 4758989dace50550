"""Checks before any worker of a run starts; they take seconds and start nothing.

The base model's task, the format of its weights, their names and shapes, and the keys of a
DeepSpeed configuration are checked without reading a weight. `training.preflight.disk_and_memory`
compares disk space and memory with what is free.
"""

from functools import lru_cache
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from model_files import loading
from model_files.trainable import check_unquantised, drop_head
from model_files.weight_headers import (
    INDEX_NAME,
    WEIGHTS_NAME,
    name_some,
    read_weight_headers,
)
from storage import durable
from training.base_model import load_config
from training.deepspeed.validation import check_deepspeed_keys
from training.pipeline.architecture import check_architecture
from training.preflight.adapter_check import count_learned_parameters
from training.preflight.requirements import ModelSize
from training.spec import SettingError, TrainingSpec, name_source
from training.task import Task, find_task

_KINDS = {
    "missing_keys": "missing",
    "unexpected_keys": "not part of it",
    "mismatched_keys": "of another shape",
    "error_msgs": "errors",
}


class UnfitModelError(SettingError):
    """The base model cannot be fine-tuned; the message contains the reason and what to do."""


def check_settings(spec: TrainingSpec) -> ModelSize | None:
    """Check everything that depends only on the settings and the base model.

    Returns the size of the model; None if its weights are not downloaded yet. Raises
    `UnfitModelError`, `UnknownModelError`, `DeepSpeedSettingError`, or `SettingError` for an
    adapter or a pipeline that does not fit the base model.
    """
    check_base_model(spec.base_model, find_task(spec.task))
    if spec.strategy == "zero":
        check_deepspeed_keys(spec)
    check_architecture(spec)
    return find_model_size(spec)  # checks the adapter


def check_base_model(base_model: str, task: Task) -> None:
    """Check that a base model can learn a task and that its weights can be loaded and match it.

    A model in a store was compared with its architecture when it was imported or published, so
    only its configuration and the headers of its files are read. Weights on the hub that are not in
    the cache yet are not checked. Raises `UnfitModelError`, or `UnknownModelError` if there is no
    such model.
    """
    config = load_config(base_model)
    name = name_source(base_model)
    folder = _find_weights(base_model)
    try:
        task.check_config(config, name)
        check_unquantised(config, name)
        _refuse_adapter(base_model)
        if folder is None:
            return
        read_weight_headers(folder)
    except ValueError as exc:
        raise UnfitModelError(f"base_model {name!r} cannot be fine-tuned: {exc}") from exc
    if not durable.is_published(folder):
        files = sorted(folder.glob("*.safetensors*"))
        found = tuple((path.name, (s := path.stat()).st_size, s.st_mtime_ns) for path in files)
        _compare_weights(base_model, folder, task.model_class, task.adds_head, found)


def _refuse_adapter(base_model: str) -> None:
    """Raise `ValueError` for a model with an adapter, which transformers would load with it.

    On the hub, too: one small request, also if the weights are in the cache.
    """
    from transformers.utils.peft_utils import find_adapter_config_file

    if find_adapter_config_file(base_model):
        raise ValueError(
            "it has an adapter of PEFT (adapter_config.json); merge it with its base model "
            "(merge_and_unload) and save the result"
        )


def find_model_size(spec: TrainingSpec) -> ModelSize | None:
    """Return the size of the base model, and of what is learned; None if its files are not here.

    Raises `SettingError` for files that cannot be read, or an adapter that does not fit.
    """
    num_learned = count_learned_parameters(spec)
    num_parameters = count_parameters(spec.base_model)
    if num_parameters is None:
        return None
    return ModelSize(num_parameters, num_parameters if num_learned is None else num_learned)


def count_parameters(base_model: str) -> int | None:
    """Count the parameters in a base model's files, tied ones once; None without files.

    Raises `UnfitModelError` for files that cannot be read.
    """
    folder = _find_weights(base_model)
    if folder is None:
        return None
    try:
        return sum(header.num_elements for header in read_weight_headers(folder).values())
    except ValueError as exc:
        raise UnfitModelError(str(exc)) from exc


def _find_weights(base_model: str) -> Path | None:
    """Find the folder of a base model's files; None if its weights are not downloaded yet.

    `load_config` must have downloaded the configuration of a model on the hub before.
    """
    folder = Path(base_model)
    if folder.is_dir():
        return folder
    cached = try_to_load_from_cache(base_model, loading.CONFIG_NAME)
    if not isinstance(cached, str):
        return None
    folder = Path(cached).parent
    is_fetched = (folder / WEIGHTS_NAME).is_file() or (folder / INDEX_NAME).is_file()
    return folder if is_fetched else None


@lru_cache(maxsize=8)  # checked by a command before it reads rows, and again by its run
def _compare_weights(
    base_model: str,
    folder: Path,
    model_class: str,
    has_new_head: bool,
    files: tuple[object, ...],  # noqa: ARG001 - a key
) -> None:
    """Raise `UnfitModelError` if the weights in the files differ from those of the architecture.

    `files` identifies the content of the folder, as a key of the cache.
    """
    from model_files.architecture import load_on_meta, make_meta_tensors  # torch is slow to import

    config = load_config(base_model)
    name = name_source(base_model)
    try:
        tensors = make_meta_tensors(read_weight_headers(folder))
        model, report = load_on_meta(config, tensors, model_class)
    except Exception as exc:  # whatever transformers raises for a configuration
        raise UnfitModelError(
            f"base_model {name!r} cannot be fine-tuned: transformers cannot build it: {exc}"
        ) from exc
    if has_new_head:
        report = drop_head(report, model.base_model_prefix)
    faults = [
        f"{words}: {name_some(map(_name_weight, report[kind]))}"
        for kind, words in _KINDS.items()
        if report.get(kind)
    ]
    if faults:
        raise UnfitModelError(
            f"the weights of base_model {name!r} do not fit its architecture "
            f"{type(model).__name__}: {'; '.join(faults)}. Training would start from random values "
            "in their place; correct config.json, or copy the files again"
        )


def _name_weight(found: object) -> str:
    """Name a weight of transformers' report, with both shapes if they differ."""
    if isinstance(found, tuple) and len(found) == 3:
        name, in_file, expected = found
        return f"{name} is {list(in_file)}, expected {list(expected)}"
    return str(found)
