"""The lineage of a model: the fields of `lineage.json` that serving needs.

Training writes the file, with further fields. An imported model may have one too; only its format
is validated.
"""

import math
import re
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from storage.durable import DamagedFileError
from storage.lineage_file import (
    LINEAGE_NAME,
    MAX_LINEAGE_BYTES,
    ORIGIN_KEYS,
    ROOT_KEY,
    read_lineage_file,
)
from storage.versioned_json import NewerFormatError, explain_invalid, write_object

_MAX_IMPORTED_BYTES = 1 << 20
_MAX_NAME_CHARACTERS = 200
_MAX_METRICS = 100
_METRIC_NAME = re.compile(r"loss|eval_\w{1,40}")


class DataOrigin(BaseModel):
    """The data that a model was fine-tuned on."""

    model_config = ConfigDict(frozen=True, extra="allow")

    sha256: str | None = Field(None, description="Hash of the file of rows.")


class ModelOrigin(BaseModel):
    """A model, identified by its id and the hash of its content."""

    model_config = ConfigDict(frozen=True, extra="allow")

    base_model: str | None = Field(None, description="Its id when it was tuned.")
    base_model_revision: str | None = Field(None, description="Hash of its content.")


class ParentLineage(BaseModel):
    """The lineage of the model that another model was fine-tuned from, without its own parent."""

    model_config = ConfigDict(frozen=True, extra="allow")

    run_id: str | None = Field(None, description="The run that made the parent.")
    base_model: str | None = Field(None, description="Name of the model that it started from.")
    checkpoint_step: int | None = Field(None, description="Optimizer steps of its training.")
    data: DataOrigin | None = None


class Lineage(BaseModel):
    """The content of `lineage.json`; unknown fields are None, additional keys are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    run_id: str | None = Field(None, description="The run that made the model.")
    base_model: str | None = Field(None, description="Name of the model that it started from.")
    base_model_revision: str | None = Field(None, description="Hash of that one's content.")
    parent: ParentLineage | None = Field(
        None, description="Lineage of the model that it started from, if that was tuned as well."
    )
    root: ModelOrigin | None = Field(
        None, description="The model at the beginning of the chain of fine-tunes."
    )
    checkpoint_step: int | None = Field(None, description="Optimizer steps of its training.")
    created_at: int | None = Field(None, ge=0, lt=2**32, description="Unix seconds.")
    data: DataOrigin | None = None

    def find_origin(self) -> str | None:
        """Return the earliest ancestor that the file names; None if it names none."""
        root = self.root.base_model if self.root else None
        return root or self.base_model

    def find_data_name(self) -> str | None:
        """Return the name of the data, in at most `_MAX_NAME_CHARACTERS`; None if it has none."""
        name = (self.data.model_extra or {}).get("name") if self.data else None
        return name[:_MAX_NAME_CHARACTERS] if isinstance(name, str) else None

    def list_metrics(self) -> dict[str, float]:
        """Return the loss and the evaluation of the training, without those of single classes."""
        found = (self.model_extra or {}).get("metrics")
        if not isinstance(found, dict):
            return {}
        return {
            name: number
            for name, value in list(found.items())[:_MAX_METRICS]
            if _METRIC_NAME.fullmatch(name) and (number := read_finite(value)) is not None
        }


def read_finite(value: object) -> float | None:
    """Return a JSON number as a float; None for anything else, and for one that is too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON's integers have no limit
        return None
    return number if math.isfinite(number) else None


def check_lineage(directory: Path) -> None:
    """Raise `ValueError` if a model directory's lineage is invalid or has a newer format."""
    try:
        read_lineage(directory, max_bytes=_MAX_IMPORTED_BYTES)
    except NewerFormatError as exc:
        raise ValueError(
            f"{LINEAGE_NAME} needs a newer version of Tuneserve: {exc.reason}; import the model "
            "there, or remove the file"
        ) from exc
    except DamagedFileError as exc:
        raise ValueError(f"{LINEAGE_NAME} is not one of ours: {exc.reason}; remove it") from exc


def read_lineage(directory: Path, max_bytes: int = MAX_LINEAGE_BYTES) -> Lineage:
    """Read a model directory's lineage; return an empty one if there is no file.

    Raises `NewerFormatError` for a file of a newer major version, `DamagedFileError` for a file
    that is not a lineage or has more than `max_bytes`, and `OSError` for an unreadable file.
    """
    value = read_lineage_file(directory, max_bytes)
    try:
        return Lineage.model_validate(value)
    except ValidationError as exc:
        fault = exc.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        reason = f"{place}: {fault['msg']}"
        raise explain_invalid(directory / LINEAGE_NAME, value, reason) from exc


def write_base(directory: Path, base_id: str, revision: str) -> bool:
    """Name the base model of an adapter in its lineage; return whether the file was changed.

    All else that the lineage has is kept. Raises the errors of `read_lineage`.
    """
    value = read_lineage_file(directory)
    before = {key: value.get(key) for key in ORIGIN_KEYS}
    origin = dict(zip(ORIGIN_KEYS, (base_id, revision), strict=True))
    if before == origin:
        return False
    if value.get(ROOT_KEY) == before:
        value[ROOT_KEY] = origin
    write_object(directory / LINEAGE_NAME, {**value, **origin})
    return True


def trace_root(name: str, find: Callable[[str], Lineage | None], roots: dict[str, str]) -> str:
    """Return the root of a model's chain of ancestors.

    `find` returns the lineage of a model; None if there is no such model. `roots` caches the
    results of all calls, so that each model of a chain is read once.
    """
    passed = []
    while name not in roots:
        passed.append(name)
        roots[name] = name  # ends the loop at a root or in a cycle
        lineage = find(name)
        name = (lineage.find_origin() if lineage is not None else None) or name
    root = roots[name]
    roots.update(dict.fromkeys(passed, root))
    return root
