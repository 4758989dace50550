import io
import json
import random
from typing import Any

import pytest

from training.data.faults import RowFault
from training.data.files import json_array
from training.data.files.json_rows import make_object

_CHARACTERS = 'aä🦊\n"\\[]{},:'


def make_value(source: random.Random, depth: int = 0) -> Any:
    kind = source.randrange(4 if depth == 3 else 6)
    if kind == 0:
        return source.choice([None, True, False, 0, -17, 1.5e300, 25069.0257394217])
    if kind <= 3:
        return "".join(source.choices(_CHARACTERS, k=source.randrange(30)))
    values = [make_value(source, depth + 1) for _ in range(source.randrange(4))]
    return values if kind == 4 else {f"key {index}": value for index, value in enumerate(values)}


def read(content: bytes) -> list[Any]:
    return [value for _, value in json_array.read_array(io.BytesIO(content), make_object, 10**6)]


@pytest.mark.parametrize("chunk_bytes", [3, 7, 20, 64, 1 << 16])
def test_read_array_agrees_with_standard_library(
    monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    """Arrays are read identically for any chunk size, and damaged arrays are never accepted."""
    monkeypatch.setattr(json_array, "_CHUNK_BYTES", chunk_bytes)
    source = random.Random(chunk_bytes)
    for _ in range(200):
        values = [make_value(source) for _ in range(source.randrange(6))]
        indent = source.choice([None, 1])
        content = json.dumps(values, ensure_ascii=source.random() < 0.5, indent=indent).encode()
        assert read(content) == values
        index = source.randrange(len(content))
        damaged = content[:index] + source.choice([b"", b"\xff", b"x"]) + content[index + 1 :]
        try:
            expected = json.loads(damaged.decode(), object_pairs_hook=make_object)
        except ValueError:
            expected = None
        if isinstance(expected, list):
            assert read(damaged) == expected
        else:
            assert any(isinstance(value, RowFault) for value in read(damaged)), damaged
