"""Messages for invalid requests: the value found and the value expected."""

import re
import reprlib
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from serving.errors import InvalidRequestError

_SHOWN_KEYS = 3
_SHOWN_CHARACTERS = 60

_UNION_OPTION = re.compile(r"literal\[.*\]|constrained-\w+|int|float|str|dict\[.*\]|function-.*")
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxlong = _repr.maxother = _SHOWN_CHARACTERS
_repr.maxlevel, _repr.maxlist, _repr.maxdict = 2, 3, 3


class RequestFault(ValueError):  # noqa: N818 - reported with others, as pydantic collects them
    """A fault that a validator found; `key` is the faulty key of the validated object, if any."""

    def __init__(self, message: str, *, key: str | None, code: str) -> None:
        super().__init__(message)
        self.message, self.key, self.code = message, key, code


def describe_unknown_keys(keys: Sequence[str]) -> RequestFault:
    """Return the fault for unknown keys of a request."""
    named = ", ".join(map(shorten, keys[:_SHOWN_KEYS]))
    if len(keys) == 1:
        message = f"{named} is not a known parameter"
    elif len(keys) <= _SHOWN_KEYS:
        message = f"{named} are not known parameters"
    else:
        message = f"{named} and {len(keys) - _SHOWN_KEYS} more are not known parameters"
    return RequestFault(message, key=keys[0][:_SHOWN_CHARACTERS], code="unknown_parameter")


def describe_unsupported(key: str, value: Any) -> RequestFault:
    """Return the fault for an unsupported parameter of OpenAI's API."""
    message = f"{key!r} is not supported yet (found {shorten(value)}); leave it out"
    return RequestFault(message, key=key, code="unsupported_parameter")


def describe_boolean(key: str, value: Any) -> RequestFault:
    """Return the fault for a boolean in place of another type, or the reverse."""
    expected = "found a boolean" if isinstance(value, bool) else "expected true or false, found"
    message = f"{key!r}: {expected} {shorten(value)}"
    return RequestFault(message, key=key, code="invalid_value")


def translate_validation_error(exc: ValidationError) -> InvalidRequestError:
    """Return the first fault that pydantic found in a request as an `InvalidRequestError`."""
    errors = exc.errors(include_url=False)
    error, param = errors[0], _name_field(errors[0]["loc"])
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, RequestFault):
        where = f"{param!r}: " if param else ""
        if cause.key is not None:
            param = f"{param}.{cause.key}" if param else cause.key
        return InvalidRequestError(where + cause.message, param=param or None, code=cause.code)
    if error["type"] == "missing":
        return InvalidRequestError(
            f"{param!r} is required", param=param, code="missing_required_parameter"
        )
    options = [other for other in errors if _name_field(other["loc"]) == param]
    if len(options) > 1 and _UNION_OPTION.fullmatch(str(error["loc"][-1])):
        expected = " or ".join(filter(None, map(_find_expected, options)))
        message = f"expected {expected}, found {shorten(error['input'])}"
    else:
        message = _describe(error)
    if not param:
        return InvalidRequestError(message, code="invalid_value")
    return InvalidRequestError(f"{param!r}: {message}", param=param, code="invalid_value")


def shorten(value: Any) -> str:
    """Return a short representation of a value, in a time that does not depend on its size."""
    return _repr.repr(value)


_EXPECTED = {
    "greater_than_equal": "a number of at least {ge}",
    "greater_than": "a number greater than {gt}",
    "less_than_equal": "a number of at most {le}",
    "less_than": "a number less than {lt}",
    "finite_number": "a finite number",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "a string that matches {pattern}",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "at least {min_length} characters",
    "none_required": "null, or nothing",
}
_KINDS = {
    "int": "an integer",
    "float": "a number",
    "string": "a string",
    "bool": "true or false",
    "dict": "an object",
    "model": "an object",
    "tuple": "an array",
    "list": "an array",
}


def _name_field(location: Sequence[int | str]) -> str:
    """Format the location of a fault, as in `messages[0].content`, without union options."""
    name = ""
    for part in location:
        if isinstance(part, int):
            name += f"[{part}]"
        elif not _UNION_OPTION.fullmatch(part):
            name += f".{part}" if name else part
    return name


def _find_expected(error: Any) -> str | None:
    """Describe what pydantic expected; None for error types that are not in the tables."""
    kind, context = str(error["type"]), error.get("ctx", {})
    return _EXPECTED.get(kind, "").format(**context) or _KINDS.get(kind.partition("_")[0])


def _describe(error: Any) -> str:
    """Describe what was expected in place of a value, and what was found."""
    kind, context = str(error["type"]), error.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind in ("string_too_long", "string_too_short"):
        return f"expected {_EXPECTED[kind].format(**context)}, got {len(error['input'])}"
    expected = _find_expected(error)
    found = shorten(error["input"])
    if expected is None:
        return f"{error['msg']} (found {found})"
    return f"expected {expected}, found {found}"
