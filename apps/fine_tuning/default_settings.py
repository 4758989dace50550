"""The tasks that a model can learn, and the default settings of a fine-tuning job.

A preset is a set of settings that replace several defaults together.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypedDict

from apps.bundled import (
    DEMONSTRATION_MODEL,
    read_adapter_settings,
    read_demonstration_settings,
)
from apps.errors import InvalidInputError, invalid_input
from apps.fine_tuning.job_requests import SERVER_SETTINGS
from serving.errors import EngineDeadError
from serving.served_task import list_served_tasks
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from system.library_imports import import_transformers
from training.settings.adapter_settings import AdapterSettings
from training.settings.continued_adapter import continue_settings
from training.settings.task_settings import DEFAULT_TASK, PREFERENCE_TASK
from training.spec import SettingError, TrainingSpec
from training.task import find_task, list_tasks

_SERVED_ADAPTER_TASKS = frozenset({DEFAULT_TASK, PREFERENCE_TASK})
_ADAPTER_TASKS = _SERVED_ADAPTER_TASKS | {"sequence_classification"}
_MAX_EPOCHS = 1000
PRESET_DESCRIPTIONS = {
    "quick": "At most 20 steps on the first 200 rows: shows that the data and the settings work. "
    "The result has learned little.",
    "balanced": "The default settings of this model.",
    "thorough": "Twice as many passes. A tenth of the rows is held out: training ends when the "
    "model answers them worse, and the best checkpoint becomes the result.",
    "adapter": "Learns a small addition to the model (LoRA) and leaves its weights as they are: "
    "less memory, and a result of a few megabytes.",
}
_RATE_FACTOR = 10
"""Ratio of learning rates of an adapter and of all weights, from "LoRA without regret" (2025)."""


class DefaultsObject(TypedDict):
    """The default settings of a job for a model and a task, and their schema.

    `tasks` are those that the model can learn; settings without a meaning for `task` are absent.
    `presets` has what each preset changes in `training`, and `preset_descriptions` what it is for.
    """

    object: Literal["fine_tuning.defaults"]
    model: str
    task: str
    tasks: list[str]
    training: Mapping[str, Any]
    presets: Mapping[str, Mapping[str, Any]]
    preset_descriptions: Mapping[str, str]
    schema: Mapping[str, Any]


def list_offered_tasks() -> list[str]:
    """Return the tasks whose models are served; all that generate text are."""
    served = list_served_tasks()
    return [name for name in list_tasks() if name in served or find_task(name).generates]


def list_learnable_tasks(models: ModelStore, model: StoredModel) -> list[str]:
    """Return the offered tasks that a model or adapter can learn, the most likely one first.

    Raises `InvalidInputError` if its configuration cannot be read, or its base model is unknown.
    """
    import_transformers()
    from training.base_model import load_config

    with invalid_input("model", only=SettingError):
        config = load_config(str(find_base(models, model).path))
    found = []
    for name in list_offered_tasks():
        if model.is_adapter and name not in _SERVED_ADAPTER_TASKS:
            continue
        try:
            find_task(name).check_config(config, model.id)
        except ValueError:
            continue
        found.append(name)
    return sorted(found, key=lambda name: name != model.task)


def find_base(models: ModelStore, model: StoredModel) -> StoredModel:
    """Return the complete model whose weights a job from `model` loads: an adapter's base model.

    Raises `InvalidInputError` if it is not in the store.
    """
    if not model.is_adapter:
        return model
    try:
        return models.get_base(model)
    except EngineDeadError as exc:
        raise InvalidInputError(str(exc), param="model") from exc


def build_default_spec(
    models: ModelStore,
    model: StoredModel,
    train_file: str,
    task: str | None = None,
) -> TrainingSpec:
    """Build the default spec of a fine-tuning job for `model`, with the task that suits it best.

    A job from an adapter continues it. Raises `InvalidInputError` for an unknown task.
    """
    if task is None:
        learnable = list_learnable_tasks(models, model)
        task = next(iter(learnable), TrainingSpec.model_fields["task"].default)
    elif task not in list_tasks():
        known = ", ".join(map(repr, list_tasks()))
        raise InvalidInputError(f"task is {task!r}, expected one of {known}", param="task")
    root = models.reader.find_root(model)
    settings = read_demonstration_settings(task) if root == DEMONSTRATION_MODEL else {}
    for name in find_task(task).unused_settings:
        settings.pop(name, None)
    base_model = str(find_base(models, model).path)
    spec = TrainingSpec.model_validate(
        {**settings, "task": task, "base_model": base_model, "train_file": train_file}
    )
    if not model.is_adapter:
        return spec
    presets = list_presets(spec, root)
    preset: Mapping[str, Any] = presets.get("adapter", {})
    export = preset.get("adapter", {}).get("export", "merged")
    with invalid_input("model", only=ValueError):
        adapter = continue_settings(model.path, {"export": export})
        return TrainingSpec.model_validate(
            {**spec.model_dump(), **preset, "base_adapter": str(model.path), "adapter": adapter}
        )


def describe_defaults(models: ModelStore, name: str, task: str | None = None) -> DefaultsObject:
    """Return the default settings of a job for the model with an id or alias, and their schema.

    Without a task, they are for the one that suits the model best. Raises `InvalidInputError` for
    an unknown task.
    """
    model = models.resolve(name)
    tasks = list_learnable_tasks(models, model)
    task = task or next(iter(tasks), None)
    spec = build_default_spec(models, model, "-", task)
    chosen = find_task(spec.task)
    hidden = {*SERVER_SETTINGS, *chosen.unused_settings}
    own = chosen.settings.model_validate(spec.task_settings)
    schema = _describe_settings(spec.task)
    presets = list_presets(spec, models.reader.find_root(model))
    return {
        "object": "fine_tuning.defaults",
        "model": name,
        "task": spec.task,
        "tasks": tasks,
        "training": {
            **spec.model_dump(mode="json", exclude=hidden),
            "task_settings": own.model_dump(mode="json"),
        },
        "presets": presets,
        "preset_descriptions": {name: PRESET_DESCRIPTIONS[name] for name in presets},
        "schema": {key: value for key, value in schema.items() if key not in hidden},
    }


@cache
def _describe_settings(task: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the JSON schema of each setting; pydantic takes several milliseconds for it."""
    schema: dict[str, dict[str, Any]] = TrainingSpec.model_json_schema()["properties"]
    schema["task_settings"] |= find_task(task).settings.model_json_schema()
    schema["adapter"]["anyOf"] = [AdapterSettings.model_json_schema(), {"type": "null"}]
    return schema


def list_presets(defaults: TrainingSpec, root: str) -> dict[str, Mapping[str, Any]]:
    """Return, by its id, what each preset of a job changes in its default settings.

    `root` is the base model that the job's model descends from. There is no preset 'adapter' for a
    task that learns none, nor where the defaults have an adapter.
    """
    presets: dict[str, Mapping[str, Any]] = {
        "quick": {"epochs": 1, "max_steps": 20, "max_rows": 200},
        "balanced": {},
        "thorough": {
            "epochs": min(2 * defaults.epochs, _MAX_EPOCHS),
            "validation_fraction": 0.1,
            "keep": "best",
            "early_stopping_patience": 2,
        },
    }
    if defaults.task in _ADAPTER_TASKS and defaults.adapter is None:
        presets["adapter"] = _choose_adapter(defaults, root)
    return presets


def _choose_adapter(defaults: TrainingSpec, root: str) -> dict[str, Any]:
    if root == DEMONSTRATION_MODEL and defaults.task == DEFAULT_TASK:
        preset = _select_changes(defaults, read_adapter_settings())
    else:
        rate = min(_RATE_FACTOR * defaults.learning_rate, 1.0)
        preset = {"adapter": {"method": "lora", "rank": 16}, "learning_rate": rate}
    export = "adapter" if defaults.task in _SERVED_ADAPTER_TASKS else "merged"
    return {**preset, "adapter": {**preset["adapter"], "export": export}}


def _select_changes(defaults: TrainingSpec, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in which a fine-tune with `settings` differs from `defaults`."""
    same = {"base_model", "train_file", "task"}
    kept = defaults.model_dump(include=same)
    changed = TrainingSpec.model_validate({**kept, **settings}).model_dump(mode="json")
    before = defaults.model_dump(mode="json")
    found = {name: value for name, value in changed.items() if value != before[name]}
    return {name: settings.get(name, value) for name, value in found.items()}
