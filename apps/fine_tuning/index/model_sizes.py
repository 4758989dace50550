"""Sizes of the models and checkpoints of a storage root, from their manifests, and of new models.

A manifest never changes once it is written, so each is read once. Hidden folders, which are being
built or removed, and files that no manifest lists do not count.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

from model_files.weight_headers import read_weight_headers
from storage import durable, versioned_json
from storage.durable import DamagedFileError
from storage.file_cache import ParsedFileCache
from storage.layout import StorageLayout, is_plain_name
from storage.manifest import parse_listed_files
from storage.regular_file import read_regular
from system.fault_log import FaultLog
from training.preflight.requirements import ModelSize, estimate_model
from training.run.folder import RunFolder
from training.spec import TrainingSpec

logger = logging.getLogger(__name__)

_CHECKPOINT_MANIFEST_PREFIX = "manifest-"


class ModelSizes:
    """Measures the models and checkpoints of a storage root; safe to share between threads."""

    def __init__(self, layout: StorageLayout) -> None:
        self._layout = layout
        self._lock = Lock()
        self._sizes = ParsedFileCache(_measure_listed)
        self._faults = FaultLog(logger)

    def measure(self) -> int:
        """Return the bytes of all models and of all checkpoints of all runs.

        A manifest that cannot be read is logged once, and what it lists is not counted. Raises
        `OSError` if the folder of all models or runs cannot be read.
        """
        with self._lock:
            manifests = {*self._list_model_manifests(), *self._list_checkpoint_manifests()}
            self._sizes.keep_only(manifests)
            self._faults.keep_only(manifests)
            return sum(map(self._measure, manifests))

    def measure_model(self, model_id: str) -> int:
        """Return the bytes of one model; 0 if there is no such model."""
        with self._lock:
            return self._measure(f"{self._layout.model(model_id)}/{durable.MANIFEST_NAME}")

    def measure_checkpoints(self, run_id: str) -> int:
        """Return the bytes of all checkpoints of one run; 0 if there is no such run."""
        with self._lock:
            return sum(map(self._measure, _list_run_manifests(str(self._layout.run(run_id)))))

    def estimate_published(self, spec: TrainingSpec, num_learned: int | None) -> int:
        """Estimate the bytes of the model that a run publishes; 0 if its base model is not stored.

        `num_learned` is the number of parameters of its adapter, None if all weights are learned.
        The files beside the weights are those of the base model. A complete model has the dtype of
        its base, unless `export_dtype` is set. Raises `ValueError` for damaged weights of the base.
        """
        name = Path(spec.base_model).name
        if not is_plain_name(name) or not (stored := self.measure_model(name)):
            return 0
        is_complete = spec.adapter is None or spec.adapter.export == "merged"
        if is_complete and spec.export_dtype == "auto":
            return stored
        headers = read_weight_headers(self._layout.model(name)).values()
        num_weights = sum(header.num_elements for header in headers)
        other_bytes = stored - sum(header.size_bytes for header in headers)
        size = ModelSize(num_weights, num_weights if num_learned is None else num_learned)
        need = estimate_model(spec, size)
        return other_bytes + (need.certain if is_complete else need.likely)

    def _list_model_manifests(self) -> Iterator[str]:
        for model in _list_folders(self._layout.models):
            yield f"{model}/{durable.MANIFEST_NAME}"

    def _list_checkpoint_manifests(self) -> Iterator[str]:
        for run in _list_folders(self._layout.runs):
            yield from _list_run_manifests(run)

    def _measure(self, manifest: str) -> int:
        try:
            size_bytes = self._sizes.read(manifest)
        except (FileNotFoundError, NotADirectoryError):  # deleted just now, or no model
            self._sizes.forget(manifest)
            return 0
        except (OSError, DamagedFileError) as exc:
            self._faults.report(manifest, f"cannot be read, and its files are not counted: {exc}")
            return 0
        self._faults.clear(manifest)
        return size_bytes


def _list_folders(parent: Path) -> Iterator[str]:
    with os.scandir(parent) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                yield entry.path


def _list_run_manifests(run: str) -> Iterator[str]:
    """Yield the manifests of all checkpoints of a run."""
    try:
        checkpoints = list(_list_folders(RunFolder(Path(run)).checkpoints))
    except (FileNotFoundError, NotADirectoryError):  # it has none yet, or is deleted
        return
    for checkpoint in checkpoints:
        yield from _list_manifests(checkpoint)


def _list_manifests(checkpoint: str) -> Iterator[str]:
    """Yield the manifests that the workers have written for a checkpoint."""
    try:
        with os.scandir(checkpoint) as entries:
            for entry in entries:
                if entry.name.startswith(_CHECKPOINT_MANIFEST_PREFIX):
                    yield entry.path
    except (FileNotFoundError, NotADirectoryError):  # superseded just now, or no checkpoint
        return


def _measure_listed(path: Path) -> int:
    """Return the bytes of all files that a manifest lists."""
    manifest = versioned_json.parse_object(path, read_regular(path))
    return sum(file.size_bytes for file in parse_listed_files(path, manifest).values())
