"""One published model of the model store."""

import hashlib
import logging
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import IO

from serving.errors import EngineDeadError, InvalidRequestError, ModelNotFoundError
from serving.served_task import DEFAULT_TASK, AnswerKind, ServedTask, find_served_task
from serving.store.lineage import Lineage
from storage import durable
from storage.durable import DamagedDirectoryError, DamagedFileError
from storage.locks import lock_shared
from storage.manifest import read_manifest, verify_directory
from storage.versioned_json import NewerFormatError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredModel:
    """One published model; `created_at` is in Unix seconds, `lineage` is empty if unknown.

    `task` is the name of what it does, one of `serving.served_task.list_served_tasks`.

    An adapter has only the weights that are added to those of its base model, which
    `ModelStore.get_base` finds by the lineage.

    `edition` distinguishes the model from a deleted one with the same id. `lineage_fault` is the
    reason if the lineage is empty although the file exists.
    """

    id: str
    path: Path
    created_at: int
    lineage: Lineage = field(repr=False)
    edition: tuple[int, int] = field(repr=False)
    lineage_fault: DamagedFileError | None = field(default=None, repr=False, compare=False)
    task: str = DEFAULT_TASK
    is_adapter: bool = False

    @cached_property
    def fingerprint(self) -> str:
        """A short fingerprint of the content: a hash of the manifest, which has all file hashes."""
        return f"fp_{durable.hash_file(self.path / durable.MANIFEST_NAME)[:12]}"

    @cached_property
    def revision(self) -> str:
        """The hash of the content as lineages name it, `base_model_revision` of what it is for."""
        return read_revision(self.path)

    @property
    def served_task(self) -> ServedTask:
        """What serving knows about its task."""
        return find_served_task(self.task)

    def check_answers(self, kind: AnswerKind) -> None:
        """Raise `InvalidRequestError` unless this is what the model answers with."""
        if self.served_task.answers != kind:
            message = f"model {self.id!r} {self.served_task.description}"
            raise InvalidRequestError(message, param="model", code="wrong_task")

    def require_lineage(self) -> Lineage:
        """Return the lineage, or raise if its file cannot be read.

        Raises `DamagedFileError`, or its subclass `NewerFormatError`.
        """
        if self.lineage_fault is not None:
            raise self.lineage_fault
        return self.lineage

    def lock_shared(self) -> IO[bytes]:
        """Lock the model against deletion until the returned file is closed or this process ends.

        Raises `ModelNotFoundError` if the model has been deleted.
        """
        deleted = ModelNotFoundError(f"model {self.id!r} has been deleted")
        try:
            locked = lock_shared(self.path / durable.MANIFEST_NAME)
        except FileNotFoundError:
            raise deleted from None
        if read_edition(self.path) != self.edition:
            locked.close()
            raise deleted
        return locked

    def exists(self) -> bool:
        """Return whether the model still exists."""
        try:
            return read_edition(self.path) == self.edition
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as exc:  # a disk fault may be transient and does not mean a deletion
            logger.warning("model %s cannot be looked up: %s", self.id, exc)
            return True

    def verify(self) -> None:
        """Compare every file with the manifest; raises the errors of `verify_directory`."""
        verify_directory(self.path)

    def verify_before_loading(self) -> None:
        """Compare every file with the manifest; raise `EngineDeadError` if a file differs."""
        try:
            self.verify()
        except DamagedDirectoryError as exc:
            raise EngineDeadError(f"model {self.id!r} is not loaded: {exc}") from exc
        except NewerFormatError as exc:
            raise EngineDeadError(
                f"model {self.id!r} needs a newer version of Tuneserve: {exc.reason}"
            ) from exc


def read_revision(path: Path) -> str:
    """Return the hash of a published model's content, as `training.base_model` records it."""
    return f"sha256:{durable.hash_file(path / durable.MANIFEST_NAME)}"


def name_weights_revision(model: StoredModel) -> str:
    """Return the hash of a model's weights, by which a training names a base model in a folder.

    Raises `DamagedDirectoryError` or `NewerFormatError` for an unreadable manifest.
    """
    listed = sorted(read_manifest(model.path).items())
    weights = [name for name, _ in listed if fnmatch(name, "*.safetensors") and "/" not in name]
    hashes = "".join(dict(listed)[name].sha256 for name in weights)
    return f"sha256:{hashlib.sha256(hashes.encode()).hexdigest()}"


def read_edition(path: Path) -> tuple[int, int]:
    """Return inode and modification time (ns) of the manifest, which is written only once."""
    found = (path / durable.MANIFEST_NAME).stat()
    return found.st_ino, found.st_mtime_ns
