"""Names, labels and values of the training settings' fields; values are parsed strictly.

An invalid value is refused with the name of its setting; no value is changed silently.
"""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

LABELS = {
    "micro_batch_tokens": "Tokens per micro batch",
    "micro_batch_size": "Rows per micro batch",
    "num_workers": "Workers",
    "lr_schedule": "Learning rate schedule",
    "cpus_per_worker": "CPUs per worker",
}
TASK_SETTINGS = "task_settings"
_PREFIX = f"{TASK_SETTINGS}."
_NAME = "suffix"
_BRACKETS = {"{": "object", "[": "array"}


class FieldError(ValueError):
    """The text of a field cannot be read; `key` is the flat name of its setting."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def find_elem_id(key: str) -> str:
    """Return the id of the element of a setting's field, or of the name of the result."""
    if key == _NAME:
        return "run-name"
    return f"setting-{key.removeprefix(_PREFIX).replace('_', '-')}"


def label_setting(key: str) -> str:
    """Return the label of a setting on the page."""
    name = key.removeprefix(_PREFIX)
    return LABELS.get(name, name.replace("_", " ").capitalize())


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with those of the task among them, as 'task_settings.NAME'."""
    own = values.get(TASK_SETTINGS) or {}
    others = {key: value for key, value in values.items() if key != TASK_SETTINGS}
    return {**{f"{_PREFIX}{name}": value for name, value in own.items()}, **others}


def flatten_schemas(schemas: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the schema of each setting that `flatten` returns."""
    own = schemas.get(TASK_SETTINGS, {}).get("properties", {})
    return flatten({**schemas, TASK_SETTINGS: own})


def unflatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `flatten`."""
    others = {key: value for key, value in settings.items() if not key.startswith(_PREFIX)}
    own = {
        key.removeprefix(_PREFIX): value
        for key, value in settings.items()
        if key.startswith(_PREFIX)
    }
    return {**others, TASK_SETTINGS: own} if own else others


def write_value(value: Any) -> str | None:
    """Return the text of a field for a value, lists and objects as JSON; None if it is not set."""
    if _is_empty(value):
        return None
    return value if isinstance(value, str) else json.dumps(value)


def select_entered(
    entered: Mapping[str, Any], schemas: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what was entered for settings of these schemas, without choices they do not have."""
    return {
        key: entered[key]
        for key, schema in schemas.items()
        if key in entered and ("enum" not in schema or entered[key] in schema["enum"])
    }


def collect_changes(
    defaults: Mapping[str, Any],
    schemas: Mapping[str, Mapping[str, Any]],
    values: Mapping[str, Any],
) -> dict[str, object]:
    """Return the settings that differ from the defaults; raises `ValueError` as `read_setting`."""
    read = {
        key: read_setting(key, schemas[key], defaults[key], value) for key, value in values.items()
    }
    return {key: value for key, value in read.items() if value != defaults[key]}


def read_setting(key: str, schema: Mapping[str, Any], default: Any, value: Any) -> Any:
    """Return the value of a field; text is parsed as JSON unless the setting takes only strings.

    An empty field means "not set". Raises `FieldError` for an empty field that must be set, and for
    a list or an object that is not valid JSON; the API refuses all other invalid values.
    """
    if isinstance(value, str):
        value = value.strip()
    if value is None or value == "":
        return _read_empty(key, schema, default)
    kinds = list_kinds(schema)
    if not isinstance(value, str) or "enum" in schema or kinds == {"string"}:
        return value
    try:
        parsed = json.loads(value, parse_constant=_refuse_constant)
    except ValueError as exc:
        if _BRACKETS.get(value[0]) in kinds:
            raise FieldError(
                key,
                f"{label_setting(key)} is not JSON: {exc}. Texts and names need double quotes, as "
                'in {"name": "value"} or ["one", "two"].',
            ) from exc
        return value
    # Text that parses as true, null or a string is passed on: the API refuses it with its message.
    return parsed if isinstance(parsed, (int, float, list, dict)) and parsed is not True else value


def _read_empty(key: str, schema: Mapping[str, Any], default: Any) -> Any:
    if _is_empty(default):
        return default
    if "null" in list_kinds(schema):
        return None
    raise FieldError(
        key, f"{label_setting(key)} is empty: enter a value; the default is {write_value(default)}."
    )


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or value in ({}, [], ())


def list_kinds(schema: Mapping[str, Any]) -> set[str]:
    """Return the JSON types that a setting accepts; an empty text for one that has no name."""
    parts = schema.get("anyOf", (schema,))
    return {str(part.get("type", "")) for part in parts}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")
