"""The tasks that a model can learn, and the default settings of a fine-tuning job."""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from apps.bundled import DEMONSTRATION_MODEL, read_demonstration_settings
from apps.errors import InvalidInputError, invalid_input
from apps.fine_tuning.job_requests import SERVER_SETTINGS
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from system.library_imports import import_transformers
from training.settings.adapter_settings import AdapterSettings
from training.spec import SettingError, TrainingSpec
from training.task import find_task, list_tasks


class DefaultsObject(TypedDict):
    """The default settings of a job for a model and a task, and their schema.

    `tasks` are those that the model can learn; settings without a meaning for `task` are absent.
    """

    object: Literal["fine_tuning.defaults"]
    model: str
    task: str
    tasks: list[str]
    training: Mapping[str, Any]
    schema: Mapping[str, Any]


def list_learnable_tasks(model: StoredModel) -> list[str]:
    """Return the tasks that a model can learn, the most likely one first.

    Raises `InvalidInputError` if its configuration cannot be read.
    """
    import_transformers()
    from training.base_model import load_config

    with invalid_input("model", only=SettingError):
        config = load_config(str(model.path))
    found = []
    for name in list_tasks():
        try:
            find_task(name).check_config(config, model.id)
        except ValueError:
            continue
        found.append(name)
    return sorted(found, key=lambda name: name != model.task)


def build_default_spec(
    models: ModelStore, model: StoredModel, train_file: str, task: str | None = None
) -> TrainingSpec:
    """Build the default spec of a fine-tuning job for `model`, with the task that suits it best.

    Raises `InvalidInputError` for an unknown task.
    """
    if task is None:
        task = next(iter(list_learnable_tasks(model)), TrainingSpec.model_fields["task"].default)
    elif task not in list_tasks():
        known = ", ".join(map(repr, list_tasks()))
        raise InvalidInputError(f"task is {task!r}, expected one of {known}", param="task")
    settings: dict[str, Any] = {}
    if models.reader.find_root(model) == DEMONSTRATION_MODEL:
        settings = read_demonstration_settings()
    for name in find_task(task).unused_settings:
        settings.pop(name, None)
    return TrainingSpec.model_validate(
        {**settings, "task": task, "base_model": str(model.path), "train_file": train_file}
    )


def describe_defaults(models: ModelStore, name: str, task: str | None) -> DefaultsObject:
    """Return the default settings of a job for the model with an id or alias, and their schema.

    Raises `InvalidInputError` for an unknown task.
    """
    model = models.resolve(name)
    tasks = list_learnable_tasks(model)
    spec = build_default_spec(models, model, "-", task or next(iter(tasks), None))
    chosen = find_task(spec.task)
    hidden = {*SERVER_SETTINGS, *chosen.unused_settings}
    own = chosen.settings.model_validate(spec.task_settings)
    schema = TrainingSpec.model_json_schema()["properties"]
    own_schema = chosen.settings.model_json_schema()
    schema["task_settings"] = {**schema["task_settings"], **own_schema}
    schema["adapter"]["anyOf"] = [AdapterSettings.model_json_schema(), {"type": "null"}]
    return {
        "object": "fine_tuning.defaults",
        "model": name,
        "task": spec.task,
        "tasks": tasks,
        "training": {
            **spec.model_dump(mode="json", exclude=hidden),
            "task_settings": own.model_dump(mode="json"),
        },
        "schema": {key: value for key, value in schema.items() if key not in hidden},
    }
