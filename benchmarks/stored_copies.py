"""Copies of what is stored, so that a benchmark has many runs, files or models."""

import json
import shutil
from pathlib import Path

from storage import durable


def copy_entry(source: Path, name: str, record_name: str | None = None) -> Path:
    """Copy a folder of the storage beside itself under another name; return the copy.

    It is hidden until it is complete. Weights are hard links. `record_name` is the file that
    contains the id of the entry, if there is one: in the copy the id is the new name.
    """
    hidden, copy = source.with_name(f".{name}"), source.with_name(name)
    shutil.copytree(source, hidden, copy_function=_copy_file)
    if record_name is not None:
        record = durable.read_json(source / record_name)
        (hidden / record_name).write_text(json.dumps({**record, "id": name}))
    hidden.rename(copy)
    return copy


def _copy_file(source: str, target: str) -> None:
    if source.endswith(".safetensors"):
        Path(target).hardlink_to(source)
    else:
        shutil.copyfile(source, target)
