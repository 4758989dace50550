"""`lineage.json` of a model directory, converted to its flat form for files of any release.

`parent` is the lineage of the model that this one was fine-tuned from, without its own parent;
`root` names the model at the beginning of the chain. Earlier releases had no `root` and nested the
whole ancestry in `parent`, one level per fine-tune. Such a file is split at the `parent` keys
without recursion.
"""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from storage.durable import DamagedFileError
from storage.regular_file import open_regular
from storage.versioned_json import check_major

LINEAGE_NAME = "lineage.json"
PARENT_KEY = "parent"
ROOT_KEY = "root"
ORIGIN_KEYS = ("base_model", "base_model_revision")
"""The keys that identify a base model in a lineage: its id, and the hash of its content."""

MAX_LINEAGE_BYTES = 16 << 20
"""Earlier releases could nest 1,100 fine-tunes, in 11 MB."""

# An unterminated string matches to the end of the text, so that each character is scanned once.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[{}\[\]]', re.DOTALL)


def read_lineage_file(directory: Path, max_bytes: int = MAX_LINEAGE_BYTES) -> dict[str, Any]:
    """Read the lineage of a model directory in its flat form; return `{}` if there is no file.

    Raises `NewerFormatError` for a newer major version, `DamagedFileError` for a file that has more
    than `max_bytes` or is not a JSON object, and `OSError` for an unreadable file.
    """
    path = directory / LINEAGE_NAME
    try:
        with open_regular(path) as file:
            content = file.read(max_bytes + 1)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    if len(content) > max_bytes:
        raise DamagedFileError(path, f"it has more than {max_bytes:,} bytes")
    texts = _cut_nested(content, PARENT_KEY)
    lineage = _parse(path, texts[0])
    check_major(path, lineage)
    if len(texts) > 1:
        parent = _parse(path, texts[1])
        lineage[PARENT_KEY] = {key: parent[key] for key in parent if key != PARENT_KEY}
        if ROOT_KEY not in lineage:
            oldest = _parse(path, texts[-1])
            lineage[ROOT_KEY] = {key: oldest.get(key) for key in ORIGIN_KEYS}
    return lineage


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        value = from_json(text)
    except ValueError as exc:  # also for more than 200 levels of nesting
        raise DamagedFileError(path, f"it is not valid JSON: {exc}") from exc
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise DamagedFileError(path, f"it contains a JSON {kind}, expected an object")
    return value


def _cut_nested(content: bytes, key: str) -> list[bytes]:
    """Split JSON whose objects are nested under one key into the texts of these objects.

    The outermost object comes first; each has null in place of the nested one. Text that is not
    valid JSON, or has the key twice in one object, is not split.
    """
    spans = [(0, len(content)), *_find_nested(content, key)]
    texts = [
        content[start:inner_start] + b"null" + content[inner_end:end]
        for (start, end), (inner_start, inner_end) in pairwise(spans)
    ]
    start, end = spans[-1]
    return [*texts, content[start:end]]


def _find_nested(content: bytes, key: str) -> list[tuple[int, int]]:
    """Return the start and end of each nested object for `_cut_nested`, outermost first."""
    wanted = f'"{key}"'.encode()
    starts: list[int] = []
    ends: list[int] = []  # innermost object first
    depth = num_open = 0  # open brackets, and how many of them begin an object in `starts`
    before = b""
    for match in _TOKEN.finditer(content):
        token = match[0]
        if token in (b"{", b"["):
            if token == b"{" and depth == num_open and (depth == 0 or before == wanted):
                if len(starts) > num_open:  # a second object at this depth
                    return []
                starts.append(match.start())
                num_open += 1
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
            if depth < num_open:
                num_open -= 1
                ends.append(match.end())
        before = token
    if depth or len(starts) != len(ends):
        return []
    return list(zip(starts, reversed(ends), strict=True))[1:]
