"""Settings as YAML, curl, Python or a command; and settings that are filled in from YAML."""

from collections.abc import Mapping
from typing import Any

from apps.ui.fine_tune.setting_fields import flatten, flatten_schemas
from apps.ui.fine_tune.setting_texts import (
    PlannedJob,
    read_spec,
    write_command,
    write_curl,
    write_python,
    write_spec,
)

FORMS = (("YAML", "yaml"), ("curl", "curl"), ("Python", "python"), ("Terminal", "command"))


def write_text(form: str, job: PlannedJob, defaults: Mapping[str, Any], origin: str) -> str:
    """Write a job in one of the forms; `defaults` are those of its model and task."""
    if form == "curl":
        return write_curl(job, origin)
    if form == "python":
        return write_python(job, origin)
    if form == "command":
        return write_command(job, origin)
    return write_spec(job, defaults["training"], defaults["schema"])


def read_changes(text: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a spec that differ from the defaults, as entered.

    Raises `ValueError` for text that is not a spec of these settings.
    """
    settings = read_spec(text, defaults["training"], defaults["task"])
    _check_task_settings(settings, defaults["training"])
    schemas = flatten_schemas(defaults["schema"])
    changes = list_changes(defaults, settings)
    return {key: _read_number(key, schemas.get(key, {}), value) for key, value in changes.items()}


def _read_number(key: str, schema: Mapping[str, Any], value: Any) -> Any:
    """Return the value of a number, which YAML reads as text if it is written like 1e-4."""
    if schema.get("type") not in ("integer", "number") or isinstance(value, int | float):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{key} is {str(value)[:60]!r}, expected a number.") from None
    return int(number) if number.is_integer() and schema["type"] == "integer" else number


def list_changes(defaults: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the defaults by their flat names, as entered."""
    known = flatten(defaults["training"])
    given = flatten(settings)
    return {key: value for key, value in given.items() if key in known and value != known[key]}


def _check_task_settings(settings: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raise `ValueError` for settings of the task that it does not have."""
    own, possible = settings.get("task_settings") or {}, known.get("task_settings")
    if not isinstance(own, Mapping):
        raise ValueError("Expected a mapping as task_settings, as in: {labels: [a, b]}")
    if unknown := [name for name in own if name not in (possible or {})]:
        names = ", ".join(repr(str(name)[:60]) for name in unknown[:5])
        raise ValueError(f"These are no settings of this task: {names}.")
