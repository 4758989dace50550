"""Where a model came from, written into its directory."""

import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from storage import durable, versioned
from training.model_card import render_model_card
from training.runs import RunFolder
from training.spec import TrainingSpec, name_source

LINEAGE_FILE = "lineage.json"
_RECORDED_PACKAGES = ("ray", "deepspeed", "torch", "transformers", "tokenizers", "safetensors")


def write_lineage(
    directory: Path, run: RunFolder, spec: TrainingSpec, metrics: Mapping[str, Any]
) -> None:
    """Write `lineage.json` and the model card into the directory of a run's model.

    A base model that was itself tuned brings its own lineage: `parent` is its run, step and data.
    """
    record = run.read_record()
    lineage = {
        "run_id": run.path.name,
        "base_model": name_source(spec.base_model),
        "base_model_revision": record.base_revision,
        "parent": _read_parent(spec.base_model),
        "extends": [end.model_dump() for end in record.extends],
        "checkpoint_step": metrics["step"],
        "metrics": dict(metrics),
        "data": run.read_data_summary(),
        "spec": spec.describe(),
        "packages": {name: version(name) for name in _RECORDED_PACKAGES},
        "created_at": int(time.time()),
    }
    versioned.write_object(directory / LINEAGE_FILE, lineage)
    (directory / "README.md").write_text(render_model_card(lineage))


def read_lineage(model: Path) -> dict[str, Any]:
    """Read the lineage of a model directory; empty if it has none."""
    try:
        lineage: dict[str, Any] = durable.read_json(model / LINEAGE_FILE)
    except FileNotFoundError:
        return {}
    return lineage


def _read_parent(base_model: str) -> dict[str, Any] | None:
    lineage = read_lineage(Path(base_model))
    if not lineage:
        return None
    keys = ("run_id", "base_model", "checkpoint_step", "parent")
    parent = {key: lineage.get(key) for key in keys}
    data = lineage.get("data") or {}
    return {**parent, "data": {key: data.get(key) for key in ("name", "fingerprint")}}
