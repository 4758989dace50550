"""Tolerant reading of the spec of a stored run, which another version may have written."""

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from training.settings.row_sources import HubDataset, TrainFile
from training.spec import TrainingSpec

logger = logging.getLogger(__name__)


def read_stored_spec(values: Mapping[str, Any], owner: str) -> TrainingSpec:
    """Build the spec of a stored run, leniently: another version may have written it.

    Keys that this version does not know are left out and logged, once per `owner`. Values above a
    limit that this version lowered are reduced to it. Raises `ValidationError` for anything else.
    """
    known = {key: value for key, value in values.items() if key in TrainingSpec.model_fields}
    if unknown := sorted(values.keys() - known.keys()):
        _log_unknown_settings(owner, ", ".join(unknown))
    for name in ("train_dataset", "validation_dataset"):
        if isinstance(dataset := known.get(name), dict):
            known[name] = {key: dataset[key] for key in dataset if key in HubDataset.model_fields}
    if isinstance(files := known.get("train_files"), list):
        known["train_files"] = [
            {key: entry[key] for key in entry if key in TrainFile.model_fields}
            if isinstance(entry, dict)
            else entry
            for entry in files
        ]
    for name, limit in _LOWERED_LIMITS.items():
        if isinstance(known.get(name), int):
            known[name] = min(known[name], limit)
    return TrainingSpec.model_validate(known)


# Limits that release 0.1 did not have, or that were higher.
_LOWERED_LIMITS = {"keep_checkpoints": 1000, "threads_per_worker": 256}


@lru_cache(maxsize=4096)  # logs a run once, even if it is read every second
def _log_unknown_settings(owner: str, names: str) -> None:
    logger.warning(
        "the spec of run %s has settings of a newer version, which are ignored: %s", owner, names
    )
