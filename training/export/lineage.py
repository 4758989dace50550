"""The lineage of a model, written into its directory."""

import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from storage import versioned_json
from storage.lineage_file import (
    LINEAGE_NAME,
    ORIGIN_KEYS,
    PARENT_KEY,
    ROOT_KEY,
    read_lineage_file,
)
from training.export.model_card import render_model_card
from training.run.folder import RunFolder
from training.spec import TrainingSpec, name_source

_RECORDED_PACKAGES = ("ray", "deepspeed", "torch", "transformers", "tokenizers", "safetensors")
_PARENT_KEYS = ("run_id", "base_model", "base_model_revision")
_PARENT_DATA_KEYS = ("name", "fingerprint", "sha256")
_MAX_CHARACTERS = 1_000  # of a text copied from a lineage, which other programs may have written


def write_lineage(
    directory: Path, run: RunFolder, spec: TrainingSpec, metrics: Mapping[str, Any]
) -> None:
    """Write `lineage.json` and the model card into the directory of a run's model.

    If the base model was itself fine-tuned, or an adapter of it is continued, `parent` describes
    that one by its run, step and data, and `root` is the first base model of its lineage. So the
    size of the file does not grow with the number of earlier fine-tunes. Raises `DamagedFileError`,
    or its subclass `NewerFormatError`, if the lineage of the base model cannot be read.
    """
    record = run.read_record()
    origin = {
        "base_model": name_source(spec.base_model),
        "base_model_revision": record.base_revision,
    }
    start = read_lineage_file(Path(spec.base_adapter or spec.base_model))
    lineage = {
        "run_id": run.path.name,
        **origin,
        **({"base_adapter": name_source(spec.base_adapter)} if spec.base_adapter else {}),
        PARENT_KEY: _describe_parent(start) if start else None,
        ROOT_KEY: _find_root(start) or origin,
        **({"extended_from": record.extended_from} if record.extended_from else {}),
        "extends": [end.model_dump() for end in record.extends],
        "checkpoint_step": metrics["step"],
        "metrics": dict(metrics),
        "data": run.read_data_summary(),
        "spec": spec.describe(),
        "packages": {name: _find_version(name) for name in _RECORDED_PACKAGES},
        "created_at": int(time.time()),
    }
    versioned_json.write_object(directory / LINEAGE_NAME, lineage)
    (directory / "README.md").write_text(render_model_card(lineage))


@cache
def _find_version(package: str) -> str:
    return version(package)


def _describe_parent(lineage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identifying part of a model's lineage, without the models before it."""
    data, step = lineage.get("data"), lineage.get("checkpoint_step")
    return {
        **_pick_texts(lineage, _PARENT_KEYS),
        "checkpoint_step": step if isinstance(step, int) else None,
        "data": _pick_texts(data if isinstance(data, Mapping) else {}, _PARENT_DATA_KEYS),
    }


def _find_root(lineage: Mapping[str, Any]) -> dict[str, str | None] | None:
    """Return the first base model of a lineage; None if it names none."""
    root = lineage.get(ROOT_KEY)
    found = _pick_texts(root if isinstance(root, Mapping) else lineage, ORIGIN_KEYS)
    return found if found["base_model"] else None


def _pick_texts(values: Mapping[str, Any], keys: Sequence[str]) -> dict[str, str | None]:
    """Return the values of some keys: None for a value that is not text, or too long a text."""
    picked = {key: values.get(key) for key in keys}
    return {
        key: value if isinstance(value, str) and len(value) <= _MAX_CHARACTERS else None
        for key, value in picked.items()
    }
