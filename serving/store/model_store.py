"""Immutable models on disk and the aliases that point to them."""

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import IO

from serving.errors import InvalidRequestError, ModelInUseError, ModelNotFoundError
from serving.store.aliases import Alias, AliasBook
from serving.store.import_process import ModelRefusedError, check_import
from serving.store.lineage import Lineage, read_lineage, trace_root
from serving.store.validation import check_files, check_model_directory, find_cache_repository
from storage import durable
from storage.durable import DamagedFileError
from storage.file_cache import ParsedFileCache
from storage.layout import UPLOAD_PREFIX, StorageLayout, check_id, new_id
from storage.lineage_file import LINEAGE_NAME
from storage.locks import HeldError, hold_alone, hold_shared, take_turn
from storage.manifest import verify_directory
from storage.privacy import close_tree_to_others
from storage.scratch import build_in_scratch, sweep_scratch
from system.fault_log import FaultLog

logger = logging.getLogger(__name__)

LATEST_ALIAS = "latest"
"""The alias that moves to every newly fine-tuned model; generators load its model at start."""

_DELETED_PREFIX = ".deleted"
_ADDED_PREFIX = ".added-"


@dataclass(frozen=True)
class StoredModel:
    """One published model; `created_at` is in Unix seconds, `lineage` is empty if unknown.

    `edition` distinguishes the model from a deleted one with the same id. `lineage_fault` is the
    reason if the lineage is empty although the file exists.
    """

    id: str
    path: Path
    created_at: int
    lineage: Lineage = field(repr=False)
    edition: tuple[int, int] = field(repr=False)
    lineage_fault: DamagedFileError | None = field(default=None, repr=False, compare=False)

    @cached_property
    def fingerprint(self) -> str:
        """A short fingerprint of the content: a hash of the manifest, which has all file hashes."""
        return f"fp_{durable.hash_file(self.path / durable.MANIFEST_NAME)[:12]}"

    def require_lineage(self) -> Lineage:
        """Return the lineage, or raise if its file cannot be read.

        Raises `DamagedFileError`, or its subclass `NewerFormatError`.
        """
        if self.lineage_fault is not None:
            raise self.lineage_fault
        return self.lineage

    def hold(self) -> IO[bytes]:
        """Prevent deletion of the model until the returned file is closed or this process ends.

        Raises `ModelNotFoundError` if the model has been deleted.
        """
        deleted = ModelNotFoundError(f"model {self.id!r} has been deleted")
        try:
            held = hold_shared(self.path / durable.MANIFEST_NAME)
        except FileNotFoundError:
            raise deleted from None
        if _read_edition(self.path) != self.edition:
            held.close()
            raise deleted
        return held

    def is_there(self) -> bool:
        """Return whether the model still exists."""
        try:
            return _read_edition(self.path) == self.edition
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as exc:  # a disk fault may be transient and does not mean a deletion
            logger.warning("model %s cannot be looked up: %s", self.id, exc)
            return True

    def verify(self) -> None:
        """Compare every file with the manifest; raises the errors of `verify_directory`."""
        verify_directory(self.path)


class ModelStore:
    """The models and aliases of one storage root, which any number of processes may share.

    Thread-safe.
    """

    def __init__(self, layout: StorageLayout) -> None:
        self._layout = layout
        self._aliases = AliasBook(layout.store.aliases)
        self._lock = Lock()
        self._lineages = ParsedFileCache(lambda path: read_lineage(path.parent))
        self._lineage_faults = FaultLog(logger)

    def publish(self, directory: Path, model_id: str) -> StoredModel:
        """Move a finished `directory` that Tuneserve made, on the same file system, into the store.

        If the directory has a manifest, its files are compared with it. Raises `ValueError` for a
        directory that is not a safe, complete model (`DamagedDirectoryError` is a subclass), and
        the errors of `check_new_id`.
        """
        self.check_new_id(model_id)
        check_model_directory(directory)
        if durable.is_published(directory):
            verify_directory(directory)
        else:
            durable.seal_directory(directory)
        close_tree_to_others(directory)
        return self._move_in(directory, model_id)

    def take_in(self, directory: Path, model_id: str) -> StoredModel:
        """Move a `directory` from an untrusted source into the store.

        A process with resource limits reads it first, one at a time per storage root, and reduces
        its settings to those known to be harmless. A new manifest is written, because one from the
        source is not trustworthy. Raises `ModelRefusedError` only for a model that is not complete,
        safe and loadable, `ImportCheckError` if it could not be checked, and the errors of
        `check_new_id`.
        """
        self.check_new_id(model_id)
        _check_files(directory)
        with take_turn(self._layout.import_lock):
            check_import(directory, cleans=True)
        return self._seal_in(directory, model_id)

    def add(self, source: Path, model_id: str) -> StoredModel:
        """Copy a Hugging Face model directory into the store; `source` is not modified.

        `source` may be a snapshot in the hub's cache: its links into the cache are followed. Raises
        the errors of `publish`. An interrupted copy is never visible as a model. The content of
        `source` is trusted; use `install` for untrusted content.
        """
        self.check_new_id(model_id)
        check_model_directory(source, links_stay_in=find_cache_repository(source))
        with build_in_scratch(self._layout.models, _ADDED_PREFIX) as building:
            _copy_files(source, building)
            check_model_directory(building)
            return self._seal_in(building, model_id)

    def install(self, source: Path, model_id: str) -> StoredModel:
        """Copy a model that an operator names into the store; `source` is not modified.

        Its content is not trusted: the copy is checked as in `take_in`. A tokenizer in an older
        format is converted. Raises the errors of `take_in`.
        """
        self.check_new_id(model_id)
        _check_files(source, links_stay_in=find_cache_repository(source))
        with build_in_scratch(self._layout.models, _ADDED_PREFIX) as building:
            _copy_files(source, building)
            with take_turn(self._layout.import_lock):
                check_import(building, converts_tokenizer=True)
            return self._seal_in(building, model_id)

    def check_new_id(self, model_id: str) -> None:
        """Raise `InvalidRequestError` or `FileExistsError` for an id that a model cannot have."""
        _check_name(model_id, "model")
        if self.is_taken(model_id):
            raise FileExistsError(f"{model_id!r} is published already; model ids are not reused")
        if model_id == LATEST_ALIAS or model_id in self.read_aliases():
            message = f"{model_id!r} is the name of an alias; choose another model id"
            raise InvalidRequestError(message, param="model")
        if model_id in self._aliases.read_past_models():
            raise FileExistsError(
                f"{model_id!r} was a model that an alias pointed to, and its history would lie; "
                "choose another id"
            )

    def list_models(self) -> list[StoredModel]:
        """List every published model, oldest first; an entry that cannot be read is skipped."""
        names = [path.name for path in self._layout.models.iterdir() if path.name[0] != "."]
        self._forget_others(names)
        found = [model for model in map(self._find_readable, names) if model is not None]
        return sorted(found, key=lambda model: (model.created_at, model.id))

    def find(self, model_id: str) -> StoredModel | None:
        """Return the model with this id, or None."""
        try:
            path = self._layout.model(model_id)
        except ValueError:  # not a valid id, so no model can have it
            return None
        try:
            edition = _read_edition(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            lineage, fault = self._read_lineage(path), None
        except DamagedFileError as exc:  # a lineage is optional, so the model stays visible
            lineage, fault = Lineage(), exc
        created_at = edition[1] // 10**9 if lineage.created_at is None else lineage.created_at
        return StoredModel(model_id, path, created_at, lineage, edition, fault)

    def _read_lineage(self, directory: Path) -> Lineage:
        """Return a model's lineage, parsed again only after a change; empty if there is no file.

        Raises `DamagedFileError`, logged once, if it cannot be read.
        """
        path, item = directory / LINEAGE_NAME, _name_lineage(directory.name)
        with self._lock:
            try:
                lineage = self._lineages.read(str(path))
            except FileNotFoundError:
                self._lineages.forget(str(path))
                lineage = Lineage()
            except (OSError, DamagedFileError) as exc:
                self._lineage_faults.report(item, f"cannot be read: {exc}")
                if isinstance(exc, DamagedFileError):
                    raise
                raise DamagedFileError(path, exc.strerror or type(exc).__name__) from exc
            self._lineage_faults.clear(item)
            return lineage

    def _forget_others(self, names: Sequence[str]) -> None:
        """Drop the cached lineages of all models except `names`."""
        with self._lock:
            self._lineages.keep_only({str(self._layout.models / n / LINEAGE_NAME) for n in names})
            self._lineage_faults.keep_only(map(_name_lineage, names))

    def _find_readable(self, model_id: str) -> StoredModel | None:
        """Return one model; None if there is none, or, with a log line, if it is unreadable."""
        try:
            return self.find(model_id)
        except OSError as exc:
            logger.error("models/%s cannot be read and is skipped: %s", model_id, exc)  # noqa: TRY400 - once per listing
            return None

    def get(self, model_id: str) -> StoredModel:
        """Return one model by its id; raises `ModelNotFoundError`."""
        model = self.find(model_id)
        if model is None:
            raise ModelNotFoundError(f"no model has the id {model_id!r}; {self._describe()}")
        return model

    def find_root(self, model: StoredModel) -> str:
        """Return the id of the base model at the root of a model's lineage."""

        def find(model_id: str) -> Lineage | None:
            found = model if model_id == model.id else self._find_readable(model_id)
            return found.lineage if found is not None else None

        return trace_root(model.id, find, {})

    @staticmethod
    def find_roots(models: Iterable[StoredModel]) -> dict[str, str]:
        """Return the root of each of `models` by model id, without reading files.

        `models` must be all models of the store.
        """
        lineages = {model.id: model.lineage for model in models}
        roots: dict[str, str] = {}
        return {model_id: trace_root(model_id, lineages.get, roots) for model_id in lineages}

    def resolve(self, name: str) -> StoredModel:
        """Return the model with this id, or else the model that this alias points to.

        Raises `ModelNotFoundError`, which lists the existing models and aliases.
        """
        if (model := self.find(name)) is not None:
            return model
        alias = self.read_aliases().get(name)
        if alias is None:
            raise ModelNotFoundError(f"no model or alias is called {name!r}; {self._describe()}")
        return self.get(alias.model_id)

    def is_taken(self, model_id: str) -> bool:
        """Return whether an entry with this name exists, whether or not it is a model."""
        return os.path.lexists(self._layout.model(model_id))

    def has(self, model_id: str) -> bool:
        """Return whether a model with this id is published."""
        return self.find(model_id) is not None

    def read_aliases(self) -> dict[str, Alias]:
        """Return all aliases by name; empty before the first alias is set."""
        return self._aliases.read()

    def point_alias(self, alias: str, model_id: str) -> Alias:
        """Promote a published model: point `alias` to it, atomically for all readers.

        The history does not change if the alias points there already. Raises `InvalidRequestError`
        for a name that cannot be an alias, `ModelNotFoundError` for an unknown model, and
        `TooManyAliasesError`, but never for `LATEST_ALIAS`.
        """
        _check_name(alias, "name")
        with self._aliases.change() as change:
            self.get(model_id)
            if self.has(alias):
                message = f"{alias!r} is the id of a model and cannot be an alias too"
                raise InvalidRequestError(message, param="name")
            if alias != LATEST_ALIAS:
                change.check_new_name(alias)
            return change.point(alias, model_id)

    def roll_back_alias(self, alias: str) -> Alias:
        """Point `alias` to its previous model; repeated calls go further back.

        Deleted models are skipped. Raises `ModelNotFoundError` if the alias does not exist or has
        no earlier model to roll back to.
        """
        with self._aliases.change() as change:
            return change.roll_back(alias, self.has)

    def remove_alias(self, alias: str) -> None:
        """Remove an alias; its history stays on record. Raises `ModelNotFoundError`."""
        with self._aliases.change() as change:
            change.remove(alias)

    def delete(self, model_id: str, check_unneeded: Callable[[], None] | None = None) -> None:
        """Delete a model that no alias points to and that is not locked.

        `check_unneeded` may raise to keep the model; it is called while the model is locked
        exclusively. Raises `ModelNotFoundError`, or `ModelInUseError` that names the user.
        """
        model = self.get(model_id)
        with self._aliases.change() as change:  # no alias can move to the model meanwhile
            if names := change.list_names(model_id):
                raise ModelInUseError(
                    f"model {model_id!r} is what {', '.join(map(repr, names))} points to; point "
                    "the alias elsewhere or remove it first"
                )
            try:
                with hold_alone(model.path / durable.MANIFEST_NAME):
                    if check_unneeded is not None:
                        check_unneeded()
                    # The rename deletes the model atomically and frees its id; removal can be slow.
                    aside = self._layout.models / new_id(_DELETED_PREFIX)
                    model.path.rename(aside)
                    durable.fsync_directory(self._layout.models)
            except FileNotFoundError:
                raise ModelNotFoundError(f"model {model_id!r} has been deleted") from None
            except HeldError:
                raise ModelInUseError(
                    f"model {model_id!r} is loaded by a generator or being read; try again once it "
                    "is idle"
                ) from None
        self._remove_deleted()

    def clean_up(self) -> None:
        """Remove what killed processes left behind: deleted models, copies and uploads.

        Writes the copy of the aliases if it does not exist.
        """
        self._remove_deleted()
        for prefix in (_ADDED_PREFIX, UPLOAD_PREFIX):
            sweep_scratch(self._layout.models, prefix)
        self._aliases.ensure_copy()

    def _remove_deleted(self) -> None:
        for deleted in self._layout.models.glob(f"{_DELETED_PREFIX}-*"):  # of any process
            if deleted.is_dir():
                shutil.rmtree(deleted, ignore_errors=True)
            else:
                deleted.unlink(missing_ok=True)

    def _seal_in(self, directory: Path, model_id: str) -> StoredModel:
        durable.seal_directory(directory)
        close_tree_to_others(directory)
        return self._move_in(directory, model_id)

    def _move_in(self, sealed: Path, model_id: str) -> StoredModel:
        """Move a model to its id while the lock on the aliases prevents an alias of that name."""
        with self._aliases.change():
            self.check_new_id(model_id)
            durable.move_directory(sealed, self._layout.model(model_id))
        return self.get(model_id)

    def _describe(self) -> str:
        models = ", ".join(model.id for model in self.list_models()) or "none"
        aliases = ", ".join(sorted(self.read_aliases())) or "none"
        return f"models: {models}; aliases: {aliases}"


def _check_files(directory: Path, links_stay_in: Path | None = None) -> None:
    """Raise `ModelRefusedError` for a directory whose files `check_files` rejects."""
    try:
        check_files(directory, links_stay_in=links_stay_in)
    except ValueError as exc:
        raise ModelRefusedError(str(exc)) from exc


def _check_name(name: str, param: str) -> None:
    """Raise `InvalidRequestError` for an invalid name; `param` is the field that it came from."""
    try:
        check_id(name)
    except ValueError as exc:
        raise InvalidRequestError(str(exc), param=param) from exc


def _name_lineage(model_id: str) -> str:
    return f"the lineage of model {model_id!r}"


def _copy_files(source: Path, target: Path) -> None:
    """Copy a model directory without hidden files; follow links."""
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    target.chmod(0o700)  # the source directory may be read-only


def _read_edition(path: Path) -> tuple[int, int]:
    """Return inode and modification time (ns) of the manifest, which is written only once."""
    found = (path / durable.MANIFEST_NAME).stat()
    return found.st_ino, found.st_mtime_ns
