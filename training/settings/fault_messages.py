"""Messages for the validation errors that pydantic finds in settings."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_MAX_FAULTS = 8
"""Errors beyond this number are counted, not described."""
_SHOWN_CHARACTERS = 80


def describe_faults(faults: Sequence[Any], known: str = "") -> str:
    """Describe pydantic's list of errors; `known` lists the existing keys."""
    described = [_describe_fault(fault, known) for fault in faults[:_MAX_FAULTS]]
    if (num_more := len(faults) - _MAX_FAULTS) > 0:
        described.append(f"and {num_more} more")
    return "; ".join(described)


def _describe_fault(fault: Any, known: str) -> str:
    key = ".".join(str(part)[:_SHOWN_CHARACTERS] for part in fault["loc"])
    if fault["type"] == "missing":
        return f"{key} is missing"
    if fault["type"] == "extra_forbidden":
        there_are = f"the settings are: {known}" if known else "look for a misspelt name"
        return f"{key!r} is not a setting; {there_are}"
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    if fault["type"] == "json_invalid":
        return f"the body is not JSON: {fault['ctx']['error']}"
    message = fault["msg"].replace("Input should", "it should")
    return f"{key} is {show_value(fault['input'])}: {message}"


def show_value(value: Any) -> str:
    """Return the beginning of a value as JSON, in time independent of the value's size."""
    if isinstance(value, str):
        value = value[:_SHOWN_CHARACTERS]
    if isinstance(value, Mapping | Sequence) and len(value) > _SHOWN_CHARACTERS:
        return f"a {'list' if isinstance(value, Sequence) else 'mapping'} of {len(value)} items"
    return json.dumps(value, default=str)[:_SHOWN_CHARACTERS]
