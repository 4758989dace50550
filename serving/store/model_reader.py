"""Reading of the published models of a storage root."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock

from model_files.json_files import read_object
from model_files.weight_headers import ADAPTER_CONFIG_NAME
from serving.errors import EngineDeadError, InvalidRequestError
from serving.served_task import DEFAULT_TASK, find_model_task
from serving.store.adapter_validation import holds_adapter
from serving.store.lineage import Lineage, check_lineage, read_lineage, trace_root
from serving.store.stored_model import StoredModel, name_weights_revision, read_edition
from storage.durable import DamagedDirectoryError, DamagedFileError
from storage.file_cache import ParsedFileCache
from storage.layout import StorageLayout
from storage.lineage_file import LINEAGE_NAME
from storage.versioned_json import NewerFormatError
from system.fault_log import FaultLog

logger = logging.getLogger(__name__)

_CONFIG_NAME = "config.json"


class ModelReader:
    """Finds models and reads their lineages, which it caches. Thread-safe."""

    def __init__(self, layout: StorageLayout) -> None:
        self._layout = layout
        self._lock = Lock()
        self._lineages = ParsedFileCache(lambda path: read_lineage(path.parent))
        self._lineage_faults = FaultLog(logger)
        self._tasks = ParsedFileCache(lambda path: find_model_task(read_object(path)))

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
            edition = read_edition(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            lineage, fault = self._read_lineage(path), None
        except DamagedFileError as exc:  # a lineage is optional, so the model stays visible
            lineage, fault = Lineage(), exc
        created_at = edition[1] // 10**9 if lineage.created_at is None else lineage.created_at
        is_adapter = (path / ADAPTER_CONFIG_NAME).is_file()
        task = DEFAULT_TASK if is_adapter else self._read_task(path)
        return StoredModel(model_id, path, created_at, lineage, edition, fault, task, is_adapter)

    def get_base(self, adapter: StoredModel) -> StoredModel:
        """Return the model that an adapter was made for.

        Raises `EngineDeadError` if there is none, or it is not the one that the lineage names.
        """
        try:
            lineage = adapter.require_lineage()
        except DamagedFileError as exc:
            raise EngineDeadError(
                f"the base model of adapter {adapter.id!r} is unknown: {exc}; delete the adapter "
                "and add it again"
            ) from exc
        base_id, revision = lineage.base_model, lineage.base_model_revision
        if base_id is None or revision is None:
            raise EngineDeadError(
                f"adapter {adapter.id!r} names no base model: its {LINEAGE_NAME} has no "
                "'base_model' and 'base_model_revision'; delete it and add it again, naming one"
            )
        base = self.find(base_id)
        if base is None or not base.exists():
            raise EngineDeadError(
                f"adapter {adapter.id!r} needs its base model {base_id!r}, which does not exist; "
                "add that model again"
            )
        if base.is_adapter or base.revision != revision:
            found = "an adapter itself" if base.is_adapter else f"now another ({base.revision})"
            raise EngineDeadError(
                f"adapter {adapter.id!r} is for model {base_id!r} of revision {revision}, which is "
                f"{found}; delete the adapter and add it again under another name, with its base"
            )
        return base

    def list_adapters(self, base: StoredModel) -> list[str]:
        """List the ids of the adapters whose base model this is, or may be.

        An adapter whose lineage cannot be read may be for any model, and so may an entry that
        cannot be read itself.
        """
        found = []
        for path in sorted(self._layout.models.iterdir()):
            if path.name[0] == "." or path.is_symlink():  # a published model is no link
                continue
            try:
                model = self.find(path.name)
            except OSError:
                found.append(path.name)
                continue
            if model is None or not model.is_adapter:
                continue
            names = (model.lineage.base_model, model.lineage.base_model_revision)
            if model.lineage_fault is not None or names == (base.id, base.revision):
                found.append(model.id)
        return found

    def find_base(self, directory: Path, base_id: str | None) -> StoredModel | None:
        """Return the stored model that an unpublished adapter is for; None for a complete model.

        That is `base_id`, or else the model of the revision that its lineage names, preferably the
        one of that id. Raises `ValueError` if there is none, or the lineage names another one, and
        `InvalidRequestError` for a `base_id` of a complete model.
        """
        if not holds_adapter(directory):
            if base_id is not None:
                message = (
                    f"base_model is {base_id!r}, and the model to be added is a complete one; "
                    "base_model is for adapters: leave it out"
                )
                raise InvalidRequestError(message, param="base_model")
            return None
        check_lineage(directory)
        lineage = read_lineage(directory)
        named, revision = lineage.base_model, lineage.base_model_revision
        if base_id is None:
            if named is None or revision is None:
                raise ValueError(
                    "the adapter names no base model in a lineage.json of Tuneserve: name the "
                    "model of the store that it was made for"
                )
            first = self.find(named)
            others = [first] if first is not None else []
            for model in [*others, *self.list_models()]:
                if _is_base(model, revision):
                    return model
            raise ValueError(
                f"the adapter is for base model {named!r} of revision {revision!r}, and no model "
                "of the store has that revision: add that model first, or name the base"
            )
        base = self.find(base_id)
        if base is None or base.is_adapter:
            fault = "no model of the store" if base is None else "an adapter itself"
            raise ValueError(f"the base model {base_id!r} is {fault}; name a complete model")
        # A revision of the hub cannot be compared; the shapes of the layers are.
        is_ours = revision is not None and revision.startswith("sha256:")
        if is_ours and not _is_base(base, str(revision)):
            raise ValueError(
                f"the adapter is for base model {named!r} of revision {revision}, and {base_id!r} "
                f"has revision {base.revision}: name the model that it was made for"
            )
        return base

    def find_root(self, model: StoredModel) -> str:
        """Return the id of the base model at the root of a model's lineage."""

        def find(model_id: str) -> Lineage | None:
            found = model if model_id == model.id else self._find_readable(model_id)
            return found.lineage if found is not None else None

        return trace_root(model.id, find, {})

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

    def _read_task(self, directory: Path) -> str:
        """Return a model's task; if its configuration cannot be read, loading reports the fault."""
        with self._lock:
            try:
                return self._tasks.read(str(directory / _CONFIG_NAME))
            except (OSError, ValueError):
                self._tasks.forget(str(directory / _CONFIG_NAME))
                return DEFAULT_TASK

    def _forget_others(self, names: Sequence[str]) -> None:
        """Drop the cached lineages of all models except `names`."""
        with self._lock:
            self._lineages.keep_only({str(self._layout.models / n / LINEAGE_NAME) for n in names})
            self._lineage_faults.keep_only(map(_name_lineage, names))
            self._tasks.keep_only({str(self._layout.models / n / _CONFIG_NAME) for n in names})

    def _find_readable(self, model_id: str) -> StoredModel | None:
        """Return one model; None if there is none, or, with a log line, if it is unreadable."""
        try:
            return self.find(model_id)
        except OSError as exc:
            logger.error("models/%s cannot be read and is skipped: %s", model_id, exc)  # noqa: TRY400 - once per listing
            return None


def _is_base(model: StoredModel, revision: str) -> bool:
    """Return whether a model is the base of this revision; False too if it cannot be read."""
    if model.is_adapter:
        return False
    try:
        return revision in (model.revision, name_weights_revision(model))
    except (OSError, DamagedDirectoryError, NewerFormatError) as exc:
        logger.warning("models/%s is no base of an adapter: %s", model.id, exc)
        return False


def find_roots(models: Iterable[StoredModel]) -> dict[str, str]:
    """Return the root of each of `models` by model id, without reading files.

    `models` must be all models of the store.
    """
    lineages = {model.id: model.lineage for model in models}
    roots: dict[str, str] = {}
    return {model_id: trace_root(model_id, lineages.get, roots) for model_id in lineages}


def _name_lineage(model_id: str) -> str:
    return f"the lineage of model {model_id!r}"
