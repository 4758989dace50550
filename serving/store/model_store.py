"""Immutable models on disk and the aliases that point to them."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from model_files.weight_headers import name_some
from serving.errors import InvalidRequestError, ModelInUseError, ModelNotFoundError
from serving.store.adapter_validation import check_adapter_directory
from serving.store.aliases import Alias, AliasBook
from serving.store.clean_up import ADDED_PREFIX, DELETED_PREFIX, remove_deleted
from serving.store.import_process import ModelRefusedError, check_import
from serving.store.lineage import write_base
from serving.store.model_names import LATEST_ALIAS, ModelNames, check_name
from serving.store.model_reader import ModelReader
from serving.store.stored_model import StoredModel
from serving.store.validation import check_files, check_model_directory, find_cache_repository
from storage import durable
from storage.layout import StorageLayout, new_id
from storage.locks import LockedError, lock_exclusive, lock_existing
from storage.manifest import verify_directory
from storage.privacy import make_tree_private
from storage.scratch import build_in_scratch


class ModelStore:
    """The models and aliases of one storage root, which any number of processes may share.

    Thread-safe. `reader` finds models, and `names` checks the ids of new ones.
    """

    def __init__(self, layout: StorageLayout) -> None:
        self._layout = layout
        self._aliases = AliasBook(layout.store.aliases)
        self.reader = ModelReader(layout)
        self.names = ModelNames(layout, self._aliases)

    def publish(self, directory: Path, model_id: str) -> StoredModel:
        """Move a finished `directory` that Tuneserve made, on the same file system, into the store.

        If the directory has a manifest, its files are compared with it. The base of an adapter is
        the one that its lineage names. Raises `ValueError` for a directory that is not a safe,
        complete model or adapter (`DamagedDirectoryError` is a subclass), and the errors of
        `ModelNames.move_in`.
        """
        self.names.check_new_id(model_id)
        base = self.reader.find_base(directory, None)
        _check_content(directory, base)
        if is_sealed := durable.is_published(directory):
            verify_directory(directory)
        if _name_base(directory, base) or not is_sealed:
            durable.seal_directory(directory)
        make_tree_private(directory)
        self.names.move_in(directory, model_id, base)
        return self.get(model_id)

    def import_directory(
        self,
        directory: Path,
        model_id: str,
        *,
        base_id: str | None = None,
        converts_tokenizer: bool = False,
        before_move: Callable[[], None] = lambda: None,
    ) -> StoredModel:
        """Move a `directory` from an untrusted source into the store.

        `base_id` is the base model of an adapter whose lineage names none. With
        `converts_tokenizer`, a tokenizer in an older format is converted. `before_move` is called
        once the model is ready to be moved in, and may raise.

        A process with resource limits reads it first, one at a time per storage root, and reduces
        its settings to those known to be harmless. A new manifest is written, because one from the
        source is not trustworthy. Raises `ModelRefusedError` only for a model that is not complete,
        safe and loadable, `ImportCheckError` if it could not be checked, and the errors of
        `ModelNames.move_in`.
        """
        self.names.check_new_id(model_id)
        with _refuse_model():
            check_files(directory)
            base = self.reader.find_base(directory, base_id)
        with _keep(base):
            with lock_exclusive(self._layout.import_lock):
                check_import(
                    directory,
                    cleans=True,
                    converts_tokenizer=converts_tokenizer,
                    base=base.path if base else None,
                )
            _name_base(directory, base)
            _seal(directory)
            before_move()
            self.names.move_in(directory, model_id, base)
        return self.get(model_id)

    def add(self, source: Path, model_id: str, *, base_id: str | None = None) -> StoredModel:
        """Copy a Hugging Face model directory into the store; `source` is not modified.

        `source` may be a snapshot in the hub's cache: its links into the cache are followed. Raises
        the errors of `publish`. An interrupted copy is never visible as a model. The content of
        `source` is trusted; use `install` for untrusted content. `base_id` is as in
        `import_directory`.
        """
        self.names.check_new_id(model_id)
        base = self.reader.find_base(source, base_id)
        _check_content(source, base, links_stay_in=find_cache_repository(source))
        with _keep(base), build_in_scratch(self._layout.models, ADDED_PREFIX) as building:
            _copy_files(source, building)
            _check_content(building, base)
            _name_base(building, base)
            _seal(building)
            self.names.move_in(building, model_id, base)
        return self.get(model_id)

    def install(self, source: Path, model_id: str, *, base_id: str | None = None) -> StoredModel:
        """Copy a model that an operator names into the store; `source` is not modified.

        Its content is not trusted: the copy is checked as in `import_directory`. A tokenizer in an
        older format is converted. `base_id` and the errors are those of `import_directory`.
        """
        self.names.check_new_id(model_id)
        with _refuse_model():
            check_files(source, links_stay_in=find_cache_repository(source))
            base = self.reader.find_base(source, base_id)
        with _keep(base), build_in_scratch(self._layout.models, ADDED_PREFIX) as building:
            _copy_files(source, building)
            with lock_exclusive(self._layout.import_lock):
                check_import(building, converts_tokenizer=True, base=base.path if base else None)
            _name_base(building, base)
            _seal(building)
            self.names.move_in(building, model_id, base)
        return self.get(model_id)

    def list_models(self) -> list[StoredModel]:
        """List every published model, oldest first; an entry that cannot be read is skipped."""
        return self.reader.list_models()

    def find(self, model_id: str) -> StoredModel | None:
        """Return the model with this id, or None."""
        return self.reader.find(model_id)

    def get(self, model_id: str) -> StoredModel:
        """Return one model by its id; raises `ModelNotFoundError`."""
        model = self.find(model_id)
        if model is None:
            raise ModelNotFoundError(f"no model has the id {model_id!r}; {_list_names(self)}")
        return model

    def resolve(self, name: str) -> StoredModel:
        """Return the model with this id, or else the model that this alias points to.

        Raises `ModelNotFoundError`, which lists the existing models and aliases.
        """
        if (model := self.find(name)) is not None:
            return model
        alias = self.read_aliases().get(name)
        if alias is None:
            raise ModelNotFoundError(f"no model or alias is called {name!r}; {_list_names(self)}")
        return self.get(alias.model_id)

    def get_base(self, adapter: StoredModel) -> StoredModel:
        """Return an adapter's base model; raises `EngineDeadError` if it is not in the store."""
        return self.reader.get_base(adapter)

    def read_aliases(self) -> dict[str, Alias]:
        """Return all aliases by name; empty before the first alias is set."""
        return self._aliases.read()

    def point_alias(self, alias: str, model_id: str) -> Alias:
        """Promote a published model: point `alias` to it, atomically for all readers.

        The history does not change if the alias points there already. Raises `InvalidRequestError`
        for a name that cannot be an alias, and for `LATEST_ALIAS` and a model that generates no
        text; `ModelNotFoundError` for an unknown model, and `TooManyAliasesError`, but never for
        `LATEST_ALIAS`.
        """
        check_name(alias, "name")
        with self._aliases.change() as change:
            model = self.get(model_id)
            if alias == LATEST_ALIAS and model.served_task.answers != "text":
                message = (
                    f"{LATEST_ALIAS!r} is for language models, and {model_id!r} has the task "
                    f"{model.task!r}; choose another alias"
                )
                raise InvalidRequestError(message, param="model", code="wrong_task")
            if self.find(alias) is not None:
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
            return change.roll_back(alias, lambda model_id: self.find(model_id) is not None)

    def remove_alias(self, alias: str) -> None:
        """Remove an alias; its history stays on record. Raises `ModelNotFoundError`."""
        with self._aliases.change() as change:
            change.remove(alias)

    def delete(self, model_id: str, check_unneeded: Callable[[], None] | None = None) -> None:
        """Delete a model that no alias points to, no adapter is for and that is not locked.

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
            if adapters := self.reader.list_adapters(model):
                raise ModelInUseError(
                    f"model {model_id!r} is the base model of adapters, or may be that of one "
                    f"whose lineage cannot be read: {name_some(adapters)}; delete them first"
                )
            try:
                with lock_existing(model.path / durable.MANIFEST_NAME):
                    if check_unneeded is not None:
                        check_unneeded()
                    # The rename deletes the model atomically and frees its id; removal can be slow.
                    aside = self._layout.models / new_id(DELETED_PREFIX)
                    model.path.rename(aside)
                    durable.fsync_directory(self._layout.models)
            except FileNotFoundError:
                raise ModelNotFoundError(f"model {model_id!r} has been deleted") from None
            except LockedError:
                raise ModelInUseError(
                    f"model {model_id!r} is loaded by a generator or being read; try again once it "
                    "is idle"
                ) from None
        remove_deleted(self._layout.models)


def _list_names(store: ModelStore) -> str:
    models = ", ".join(model.id for model in store.list_models()) or "none"
    aliases = ", ".join(sorted(store.read_aliases())) or "none"
    return f"models: {models}; aliases: {aliases}"


def _seal(directory: Path) -> None:
    """Write a new manifest, and make the files private."""
    durable.seal_directory(directory)
    make_tree_private(directory)


@contextmanager
def _refuse_model() -> Iterator[None]:
    """Raise `ModelRefusedError` for a fault of a model's content that the body finds."""
    try:
        yield
    except InvalidRequestError:
        raise
    except ValueError as exc:
        raise ModelRefusedError(str(exc)) from exc


def _keep(base: StoredModel | None) -> AbstractContextManager[object]:
    """Lock the base model of an adapter against deletion; without one, do nothing."""
    return nullcontext() if base is None else base.lock_shared()


def _check_content(
    directory: Path, base: StoredModel | None, links_stay_in: Path | None = None
) -> None:
    """Raise `ValueError` unless a directory is a complete model, or an adapter for `base`."""
    if base is None:
        check_model_directory(directory, links_stay_in=links_stay_in)
    else:
        check_adapter_directory(directory, base.path, links_stay_in=links_stay_in)


def _name_base(directory: Path, base: StoredModel | None) -> bool:
    """Name the base of an adapter in its lineage; return whether the directory was changed."""
    return base is not None and write_base(directory, base.id, base.revision)


def _copy_files(source: Path, target: Path) -> None:
    """Copy a model directory without hidden files; follow links."""
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    target.chmod(0o700)  # the source directory may be read-only
