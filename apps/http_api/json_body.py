"""JSON bodies of requests: bounded before they are parsed, and large ones handled in a thread.

Parsing a body costs memory for every value in it, and validating costs more: eight megabytes of
`{}` are two million objects. So the number of values and the depth are counted in the bytes first.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, TypeVar

from fastapi import Depends, Request

from apps.errors import ApiError, InvalidInputError
from system.threads import DedicatedThread

MAX_VALUES = 1_010_000
"""The longest prompt is a million token ids."""
MAX_DEPTH = 32
LARGE_BYTES = 1 << 16
"""Bodies of at least this size are parsed and validated in a thread, one at a time."""

_SLICE_BYTES = 1 << 16
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_LARGE_BODIES = DedicatedThread("json-body")

Checked = TypeVar("Checked")


@dataclass(frozen=True)
class JsonObject:
    """The body of a request, decoded but not validated."""

    value: dict[str, Any]
    is_large: bool = False

    async def check(self, validate: Callable[[dict[str, Any]], Checked]) -> Checked:
        """Validate the body; a large one in a thread, to keep the event loop free."""
        if not self.is_large:
            return validate(self.value)
        return await _LARGE_BODIES.run(validate, self.value)


async def read_json_object(request: Request) -> JsonObject:
    """Read the body, which must be a JSON object; raises `ApiError` 415 or `InvalidInputError`."""
    return await _read(request, is_optional=False)


async def read_optional_json_object(request: Request) -> JsonObject:
    """Read the body like `read_json_object`; an absent body is an empty object."""
    return await _read(request, is_optional=True)


JsonBody = Annotated[JsonObject, Depends(read_json_object)]
OptionalJsonBody = Annotated[JsonObject, Depends(read_optional_json_object)]


async def _read(request: Request, *, is_optional: bool) -> JsonObject:
    body = await request.body()
    if is_optional and not body:
        return JsonObject({})
    _check_content_type(request.headers.get("content-type", ""))
    if len(body) < LARGE_BYTES:
        return JsonObject(parse_json_object(body))
    value = await _LARGE_BODIES.run(parse_json_object, body)
    return JsonObject(value, is_large=True)


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object of bounded depth and number of values; raises `InvalidInputError`."""
    if not body:
        _refuse("the body is empty; expected a JSON object")
    _check_structure(body)
    try:
        value = json.loads(body.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as exc:
        _refuse(f"the body is not UTF-8: {exc.reason} at byte {exc.start}")
    except json.JSONDecodeError as exc:
        _refuse(f"the body is not JSON: {exc.msg} at line {exc.lineno}, column {exc.colno}")
    except ValueError:  # Python's limit on the digits of an integer
        _refuse("the body has an integer of more than 4300 digits")
    if not isinstance(value, dict):
        _refuse(f"the body is {_NAMES[type(value)]}; expected a JSON object")
    if _SURROGATE_ESCAPE.search(body):
        for path, text in _walk_texts(value, ""):
            _check_text(path, text)
    return value


_NAMES: dict[type, str] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def _check_content_type(content_type: str) -> None:
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    found = f"is {content_type[:100]!r}" if content_type else "is missing"
    raise ApiError(
        415,
        f"the header content-type {found}; expected application/json",
        param="content-type",
        code="unsupported_media_type",
    )


def _check_structure(body: bytes) -> None:
    """Check the number of values and the depth in the bytes, without memory for each value."""
    num_values, brackets = 1, bytearray()
    for outside in _drop_strings(body):
        found = outside.translate(None, _NOT_BRACKETS)
        brackets += found
        num_values += outside.count(b",") + found.count(b"[") + found.count(b"{")
        if num_values > MAX_VALUES:
            _refuse(f"the body has too many values; expected at most {MAX_VALUES:,}")
    for _ in range(MAX_DEPTH):  # each pass removes the innermost level at least
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    num_open = brackets.count(b"[") + brackets.count(b"{")
    # A few unbalanced brackets are left to the parser, which reports their position.
    if num_open > MAX_DEPTH or (num_open and 2 * num_open == len(brackets)):
        _refuse(f"the body is nested too deeply; expected at most {MAX_DEPTH} levels")


def _drop_strings(body: bytes) -> Iterator[bytes]:
    """Yield slices of a JSON text without the strings in it."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    is_inside = False
    for begin in range(0, len(plain), _SLICE_BYTES):
        parts = plain[begin : begin + _SLICE_BYTES].split(b'"')
        yield b"".join(parts[is_inside::2])
        is_inside ^= len(parts) % 2 == 0


def _walk_texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield every string and key of a value with its path, as in `messages[0].content`."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _walk_texts(item, f"{path}[{number}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield path, key
            yield from _walk_texts(item, f"{path}.{key}" if path else key)


def _check_text(path: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        half = text[exc.start].encode(errors="backslashreplace").decode()
        raise InvalidInputError(
            f"{path!r} has {half} at character {exc.start}, half of a surrogate pair; expected "
            "whole Unicode characters",
            param=path.encode(errors="backslashreplace").decode() or None,
        ) from None


def _refuse_constant(name: str) -> NoReturn:
    _refuse(f"the body has the number {name}, which JSON does not have")


def _refuse(message: str) -> NoReturn:
    raise InvalidInputError(message, code="invalid_body")
