"""Immutable models on disk and the aliases that point to them."""

import fcntl
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serving.errors import ModelNotFoundError
from storage import durable
from storage.layout import StorageLayout, check_id

LINEAGE_NAME = "lineage.json"
LATEST_ALIAS = "latest"
"""The alias that moves to every newly tuned model, and that a generator loads unasked."""
_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@dataclass(frozen=True)
class StoredModel:
    """One published model; `created_at` is in Unix seconds, `lineage` is empty where unknown."""

    id: str
    path: Path
    created_at: int
    lineage: dict[str, Any] = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """A short name of the exact content, from the manifest that lists every file's hash."""
        return f"fp_{durable.hash_file(self.path / durable.MANIFEST_NAME)[:12]}"


@dataclass(frozen=True)
class AliasMove:
    """An alias was pointed to `model_id` at `at`, in Unix seconds."""

    model_id: str
    at: int


@dataclass(frozen=True)
class Alias:
    """Where an alias points, and every move that it made, oldest first."""

    model_id: str
    history: tuple[AliasMove, ...]


class ModelStore:
    """The models and aliases below one storage root; any number of processes may share it."""

    def __init__(self, layout: StorageLayout) -> None:
        self._layout = layout

    def publish(self, directory: Path, model_id: str) -> StoredModel:
        """Move a finished `directory` of the same file system into the store.

        Raises `ValueError` for a directory that is not a safe, complete model, and
        `FileExistsError` for an id that is taken.
        """
        final = self._layout.model(model_id)
        if model_id in self.read_aliases():
            raise ValueError(f"{model_id!r} is an alias already; choose another model id")
        check_model_directory(directory)
        durable.publish_directory(directory, final)
        return self.get(model_id)

    def add(self, source: Path, model_id: str) -> StoredModel:
        """Copy a Hugging Face model directory into the store; `source` stays as it is.

        A snapshot in the hub's cache will do: its links into the cache are followed. Raises as
        `publish` does. A copy that is interrupted is never seen as a model.
        """
        final = self._layout.model(model_id)
        if final.exists():
            raise FileExistsError(f"{model_id!r} is published already; model ids are not reused")
        check_model_directory(source, links_stay_in=_find_cache_repository(source))
        building = Path(tempfile.mkdtemp(dir=self._layout.models, prefix=f".{model_id}."))
        try:
            shutil.copytree(
                source, building, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*")
            )
            building.chmod(0o755)
            return self.publish(building, model_id)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise

    def list_models(self) -> list[StoredModel]:
        """List every published model, oldest first."""
        found = [
            self._read_model(path)
            for path in self._layout.models.iterdir()
            if not path.name.startswith(".") and durable.is_published(path)
        ]
        return sorted(found, key=lambda model: (model.created_at, model.id))

    def get(self, model_id: str) -> StoredModel:
        """Return one model by its id; raises `ModelNotFoundError`."""
        if not self.has(model_id):
            raise ModelNotFoundError(f"no model has the id {model_id!r}; {self._describe()}")
        return self._read_model(self._layout.model(model_id))

    def resolve(self, name: str) -> StoredModel:
        """Return the model with this id, or else the one that this alias points to.

        Raises `ModelNotFoundError` with the name and what there is instead.
        """
        if self.has(name):
            return self._read_model(self._layout.model(name))
        alias = self.read_aliases().get(name)
        if alias is None:
            raise ModelNotFoundError(f"no model or alias is called {name!r}; {self._describe()}")
        return self.get(alias.model_id)

    def read_aliases(self) -> dict[str, Alias]:
        """Return every alias by its name; empty before the first one is set."""
        try:
            written = durable.read_json(self._layout.aliases)
        except FileNotFoundError:
            return {}
        return {
            name: Alias(
                entry["model"],
                tuple(AliasMove(move["model"], move["at"]) for move in entry["history"]),
            )
            for name, entry in written.items()
        }

    def point_alias(self, alias: str, model_id: str) -> Alias:
        """Point `alias` to a published model, at once and for every reader.

        Pointing to where it points already adds nothing to the history. Raises `ValueError` for a
        name that cannot be an alias and `ModelNotFoundError` for an unknown model.
        """
        check_id(alias)
        self.get(model_id)
        if self.has(alias):
            raise ValueError(f"{alias!r} is the id of a model and cannot be an alias too")
        with self._lock_aliases():
            aliases = self.read_aliases()
            old = aliases.get(alias)
            if old is None or old.model_id != model_id:
                history = old.history if old is not None else ()
                aliases[alias] = Alias(model_id, (*history, AliasMove(model_id, int(time.time()))))
                durable.write_json(self._layout.aliases, _to_json(aliases))
            return aliases[alias]

    def has(self, model_id: str) -> bool:
        """Whether a model of this id is published."""
        try:
            return durable.is_published(self._layout.model(model_id))
        except ValueError:  # not a plain name, so nothing can be called that
            return False

    def _read_model(self, path: Path) -> StoredModel:
        try:
            lineage = durable.read_json(path / LINEAGE_NAME)
        except FileNotFoundError:
            lineage = {}
        written_at = (path / durable.MANIFEST_NAME).stat().st_mtime
        return StoredModel(path.name, path, int(lineage.get("created_at", written_at)), lineage)

    def _describe(self) -> str:
        models = ", ".join(model.id for model in self.list_models()) or "none"
        aliases = ", ".join(sorted(self.read_aliases())) or "none"
        return f"models: {models}; aliases: {aliases}"

    @contextmanager
    def _lock_aliases(self) -> Iterator[None]:
        with self._layout.aliases.with_name(".aliases.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # let go when the file closes
            yield


def check_model_directory(directory: Path, *, links_stay_in: Path | None = None) -> None:
    """Check that a directory is a whole model that runs no code of its own.

    Links may lead anywhere inside `links_stay_in`; by default they are relative and stay in the
    directory itself. Raises `ValueError` that names the first thing found wrong.
    """
    if not (directory / "config.json").is_file():
        raise ValueError(f"{directory.name!r} is not a model directory: it has no config.json")
    for path in sorted(directory.rglob("*")):
        _check_file(path, directory, links_stay_in or directory)
    if not any(directory.glob("*.safetensors")):
        raise ValueError(f"{directory.name!r} has no weights: expected *.safetensors files")
    if not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        raise ValueError(
            f"{directory.name!r} has no tokenizer: expected one of {', '.join(_TOKENIZER_FILES)}"
        )
    for path in sorted(directory.glob("*config.json")):
        if "auto_map" in _read_object(path):
            raise ValueError(
                f"{path.name} asks for code of the model's own ('auto_map'), which is never run; "
                "use a model that transformers itself supports"
            )
    if (directory / LINEAGE_NAME).exists():
        _read_object(directory / LINEAGE_NAME)


def _check_file(path: Path, directory: Path, root: Path) -> None:
    name = path.relative_to(directory)
    if path.suffix.lower() in _PICKLE_SUFFIXES:
        raise ValueError(
            f"{name} may hold pickled weights, which can run code when they are loaded; convert "
            "them to safetensors and remove the file"
        )
    if path.is_symlink() and (
        path.readlink().is_absolute() or not path.resolve().is_relative_to(root.resolve())
    ):
        raise ValueError(
            f"{name} is a link that leaves the directory; copy the file itself (cp -rL does)"
        )


def _find_cache_repository(source: Path) -> Path | None:
    """Return the folder of a repository in the hub's cache, of which `source` is a snapshot."""
    repository = source.parent.parent
    is_snapshot = source.parent.name == "snapshots" and (repository / "blobs").is_dir()
    return repository if is_snapshot else None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = durable.read_json(path)
    except (json.JSONDecodeError, UnicodeDecodeError) as exc:
        raise ValueError(f"{path.name} is not valid JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds a {type(value).__name__}; expected an object")
    return value


def _to_json(aliases: dict[str, Alias]) -> dict[str, Any]:
    return {
        name: {
            "model": alias.model_id,
            "history": [{"model": move.model_id, "at": move.at} for move in alias.history],
        }
        for name, alias in aliases.items()
    }
