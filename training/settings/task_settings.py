"""Checks of the settings of a spec that depend on its task."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import ValidationError

from training.settings.fault_messages import describe_faults
from training.task import find_task

if TYPE_CHECKING:
    from training.spec import TrainingSpec

DEFAULT_TASK = "causal_lm"
PREFERENCE_TASK = "preference"


def check_task(name: str) -> str:
    """Return the name of a task unchanged; raises `ValueError` for an unknown one."""
    find_task(name)
    return name


def check_task_settings(spec: "TrainingSpec") -> None:
    """Raise `ValueError` for settings that do not match the spec's task."""
    task = find_task(spec.task)
    try:
        task.settings.model_validate(spec.task_settings)
    except ValidationError as exc:
        known = ", ".join(task.settings.model_fields) or "none"
        faults = describe_faults(exc.errors(), known)
        raise ValueError(f"task_settings of task {spec.task!r}: {faults}") from exc
    _refuse_settings(spec, task.unused_settings)
    task.check_spec(spec)
    names = ("loss", *task.list_metrics(spec))
    if spec.best_metric not in names:
        known = ", ".join(repr(name) for name in names)
        raise ValueError(
            f"best_metric is {spec.best_metric!r}, expected one of the figures of task "
            f"{spec.task!r}: {known}"
        )


def _refuse_settings(spec: "TrainingSpec", names: Sequence[str]) -> None:
    """Raise `ValueError` for a setting that is not the default and means nothing to the task."""
    for name in names:
        value = getattr(spec, name)
        if value != type(spec).model_fields[name].get_default(call_default_factory=True):
            raise ValueError(
                f"{name} is {value!r}, which means nothing to task {spec.task!r}: remove it"
            )
