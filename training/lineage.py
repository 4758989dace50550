"""Where a model came from, written into its directory."""

import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from storage import versioned
from storage.lineage_file import (
    LINEAGE_NAME,
    ORIGIN_KEYS,
    PARENT_KEY,
    ROOT_KEY,
    read_lineage_file,
)
from training.model_card import render_model_card
from training.runs import RunFolder
from training.spec import TrainingSpec, name_source

_RECORDED_PACKAGES = ("ray", "deepspeed", "torch", "transformers", "tokenizers", "safetensors")
_PARENT_KEYS = ("run_id", "base_model", "base_model_revision")
_PARENT_DATA_KEYS = ("name", "fingerprint", "sha256")
_MAX_CHARACTERS = 1_000  # of what is taken over from a lineage that others may have written


def write_lineage(
    directory: Path, run: RunFolder, spec: TrainingSpec, metrics: Mapping[str, Any]
) -> None:
    """Write `lineage.json` and the model card into the directory of a run's model.

    A base model that was itself tuned is described in `parent`, by its run, step and data, and the
    model that its own lineage leads back to in `root`. So the file has the same size however many
    fine-tunes a model has behind it. Raises `DamagedFileError`, `NewerFormatError` among them, if
    the base model has a lineage that cannot be read.
    """
    record = run.read_record()
    origin = {
        "base_model": name_source(spec.base_model),
        "base_model_revision": record.base_revision,
    }
    base = read_lineage_file(Path(spec.base_model))
    lineage = {
        "run_id": run.path.name,
        **origin,
        PARENT_KEY: _describe_parent(base) if base else None,
        ROOT_KEY: _find_root(base) or origin,
        "extends": [end.model_dump() for end in record.extends],
        "checkpoint_step": metrics["step"],
        "metrics": dict(metrics),
        "data": run.read_data_summary(),
        "spec": spec.describe(),
        "packages": {name: _find_version(name) for name in _RECORDED_PACKAGES},
        "created_at": int(time.time()),
    }
    versioned.write_object(directory / LINEAGE_NAME, lineage)
    (directory / "README.md").write_text(render_model_card(lineage))


@cache
def _find_version(package: str) -> str:
    return version(package)


def _describe_parent(lineage: Mapping[str, Any]) -> dict[str, Any]:
    """Return what identifies a model by its lineage, without the models before it."""
    data, step = lineage.get("data"), lineage.get("checkpoint_step")
    return {
        **_pick_texts(lineage, _PARENT_KEYS),
        "checkpoint_step": step if isinstance(step, int) else None,
        "data": _pick_texts(data if isinstance(data, Mapping) else {}, _PARENT_DATA_KEYS),
    }


def _find_root(lineage: Mapping[str, Any]) -> dict[str, str | None] | None:
    """Return the model that a lineage leads back to; None if it names none."""
    root = lineage.get(ROOT_KEY)
    found = _pick_texts(root if isinstance(root, Mapping) else lineage, ORIGIN_KEYS)
    return found if found["base_model"] else None


def _pick_texts(values: Mapping[str, Any], keys: Sequence[str]) -> dict[str, str | None]:
    """Return some of a mapping's values: None for what is no text, or a long one."""
    picked = {key: values.get(key) for key in keys}
    return {
        key: value if isinstance(value, str) and len(value) <= _MAX_CHARACTERS else None
        for key, value in picked.items()
    }
