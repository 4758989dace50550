"""Where a model came from, as far as its `lineage.json` says and serving has to know.

Training writes the file and puts more into it; a model from elsewhere may have one too, of which
nothing is believed but its shape.
"""

import logging
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

logger = logging.getLogger(__name__)

LINEAGE_NAME = "lineage.json"
_MAX_BYTES = 1 << 20  # every listing of models reads it


class DataOrigin(BaseModel):
    """What a model was tuned on."""

    model_config = ConfigDict(frozen=True, extra="allow")

    sha256: str | None = Field(None, description="Hash of the file of rows.")


class Lineage(BaseModel):
    """Empty where nothing is known; what else the file has is kept as it is."""

    model_config = ConfigDict(frozen=True, extra="allow")

    run_id: str | None = Field(None, description="The run that made the model.")
    base_model: str | None = Field(None, description="Name of the model that it started from.")
    checkpoint_step: int | None = Field(None, description="Optimizer steps of its training.")
    created_at: int | None = Field(None, ge=0, lt=2**32, description="Unix seconds.")
    data: DataOrigin | None = None


def check_lineage(directory: Path) -> None:
    """Raise `ValueError` if a model directory has a lineage that is none."""
    try:
        _parse(directory)
    except ValidationError as exc:
        fault = exc.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise ValueError(
            f"{LINEAGE_NAME} is not one of ours: {place or 'the file'}: {fault['msg']}; remove it"
        ) from exc


def read_lineage(directory: Path) -> Lineage:
    """Read a model directory's lineage; empty if it has none, or none that can be read."""
    try:
        return _parse(directory)
    except (OSError, ValueError) as exc:  # a lineage is optional, the model is not to blame
        logger.warning("the lineage of model %s cannot be read: %s", directory.name, exc)
        return Lineage()


def _parse(directory: Path) -> Lineage:
    try:
        with (directory / LINEAGE_NAME).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return Lineage()
    if len(content) > _MAX_BYTES:
        raise ValueError(f"{LINEAGE_NAME} has more than {_MAX_BYTES:,} bytes")
    return Lineage.model_validate_json(content)
