"""Reading of spec files and DeepSpeed configurations, with duplicate keys refused.

YAML and JSON parsers silently keep the last of two equal keys. Here a duplicate key is refused by
name, at any depth, because the user cannot have meant both values.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_MERGE_KEY = "<<"  # keys beside it override the merged keys, as YAML defines


def read_spec_file(path: Path) -> Mapping[str, Any]:
    """Read keys and values from YAML or JSON, and the DeepSpeed configuration that they name.

    Raises `ValueError` that names the file and the error.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise ValueError(f"no spec at {str(path)!r}: expected a YAML or JSON file") from None
    except IsADirectoryError:
        raise ValueError(f"{str(path)!r} is a folder: expected a YAML or JSON file") from None
    except UnicodeDecodeError as exc:
        raise ValueError(f"{str(path)!r} is neither YAML nor JSON: {exc}") from exc
    try:
        _refuse_duplicates(path.name, yaml.compose(text, Loader=yaml.SafeLoader))
        content = yaml.safe_load(text)  # JSON is YAML too
    except (yaml.YAMLError, RecursionError) as exc:
        raise ValueError(f"{str(path)!r} is neither YAML nor JSON: {exc}") from exc
    if not isinstance(content, Mapping):
        raise ValueError(f"{str(path)!r} holds {type(content).__name__}, expected keys and values")
    if isinstance(named := content.get("deepspeed"), str):
        file = path.resolve().parent / Path(named).expanduser()
        return {**content, "deepspeed": read_deepspeed_file(file)}
    return content


def read_deepspeed_file(path: Path) -> Any:
    """Read a DeepSpeed configuration; raises `ValueError` that names the file."""

    def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key, value in pairs:
            if key in built:
                raise _DuplicateKeyError(
                    f"{path.name}: the key {key!r} is there twice, with {built[key]!r} and "
                    f"{value!r}; remove one of them"
                )
            built[key] = value
        return built

    try:
        return json.loads(path.read_text(), object_pairs_hook=build_object)
    except OSError as exc:
        raise ValueError(f"no DeepSpeed configuration at {str(path)!r}: {exc.strerror}") from exc
    except _DuplicateKeyError:
        raise
    except ValueError as exc:
        raise ValueError(f"{str(path)!r} is not JSON: {exc}") from exc


class _DuplicateKeyError(ValueError):
    """An object has two values for one key."""


def _refuse_duplicates(file: str, root: Any) -> None:
    """Raise `ValueError` that names the first duplicate key of a mapping, and both lines."""
    pending: list[tuple[str, Any]] = [("", root)]
    seen: set[int] = set()  # an alias refers to a node again, possibly in a cycle
    while pending:
        prefix, node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending += [(f"{prefix}{at}.", item) for at, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            continue
        lines: dict[str, int] = {}
        for key, value in node.value:
            name = str(key.value)
            line = key.start_mark.line + 1
            if name in lines and name != _MERGE_KEY:
                raise ValueError(
                    f"{file}: the key '{prefix}{name}' is there twice, on lines {lines[name]} and "
                    f"{line}; remove one of them"
                )
            lines[name] = line
            pending.append((f"{prefix}{name}.", value))
