"""The paths of everything under the storage root; no other module builds them.

<root>/files/<file-id>/     file.json, the uploaded bytes
<root>/runs/<run-id>/       listed in training/run/folder.py
<root>/models/<model-id>/   a Hugging Face model directory, lineage.json, manifest.json
<root>/evaluations/<evaluation-id>/  evaluation.json, rows.jsonl (the answers of models to rows)
<root>/cache/tokens/        tokenized rows of earlier runs; may be emptied at any time
<root>/aliases.json         the model that each alias points to, and its history
<root>/aliases.copy.json    a copy, read where aliases.json is damaged
<root>/merges/<model-id>.json  the state or the result of a merge into this model
<root>/transfers/<transfer-id>.json  the state or the result of a transfer from or to the hub
<root>/handovers.jsonl      hand-over events of each generator replica
<root>/handovers.1.jsonl    older hand-over events
<root>/keys.json            API keys, hashed; only the owner can read it
<root>/keys.required        exists once a key was created; while it exists, requests need a key
<root>/audit.jsonl          changes and refused requests; older lines in audit.jsonl.1 and so on
"""

import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from storage.local_paths import check_local_path
from storage.privacy import make_private

DEFAULT_ROOT = "~/.tuneserve"
KEYS_NAME = "keys.json"
UPLOAD_PREFIX = ".upload-"
"""Prefix of the scratch folders, in `files` and `models`, that receive uploads."""
MAX_ID_CHARACTERS = 128
_ID_PATTERN = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_ID_CHARACTERS - 1}}}")
_MADE_ID_PATTERN = re.compile(r"[a-z]+-[0-9a-f]{24}")


@dataclass(frozen=True)
class StorageLayout:
    """Paths below one storage root.

    Every method with an id parameter raises `ValueError` for an id that is not a plain name, so
    that no client can access paths outside the root.
    """

    root: Path

    def create(self) -> "StorageLayout":
        """Create the top-level folders and restrict them to their owner, including existing ones.

        The permissions of a root that contains other folders are not changed. Raises `OSError` if
        the root cannot be written.
        """
        folders = (self.files, self.runs, self.models, self.evaluations.folder)
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        ours = {*folders, self.token_cache.parent, self.store.merges, self.store.transfers}
        is_shared = any(
            path.is_dir() and path not in ours
            for path in self.root.iterdir()
            if not path.name.startswith(".")
        )
        roots = () if is_shared else (self.root,)
        for path in (*ours, self.store.aliases, self.store.handovers, *roots):
            if path.exists():
                make_private(path)
        return self

    @property
    def files(self) -> Path:
        """The folder of all uploaded files."""
        return self.root / "files"

    @property
    def runs(self) -> Path:
        """The folder of all runs."""
        return self.root / "runs"

    @property
    def models(self) -> Path:
        """The folder of all published models."""
        return self.root / "models"

    @property
    def evaluations(self) -> "EvaluationPaths":
        """Paths of the evaluations of models."""
        return EvaluationPaths(self.root / "evaluations")

    @property
    def token_cache(self) -> Path:
        """The folder of tokenized rows of earlier runs; may be emptied at any time."""
        return self.root / "cache" / "tokens"

    @property
    def queue_lock(self) -> Path:
        """Locked by the one queue that reconciles the runs."""
        return self.root / ".queue.lock"

    @property
    def upload_lock(self) -> Path:
        """Locked by the one process that adds an upload to the files."""
        return self.root / ".upload.lock"

    @property
    def export_lock(self) -> Path:
        """Locked by the one process that exports a checkpoint as a model."""
        return self.root / ".export.lock"

    @property
    def import_lock(self) -> Path:
        """Locked by the one process that checks an imported model."""
        return self.root / ".import.lock"

    @property
    def store(self) -> "StorePaths":
        """Paths of the model store, except for the models themselves."""
        return StorePaths(self.root)

    @property
    def access(self) -> "AccessPaths":
        """Paths of the API keys and of the audit log."""
        return AccessPaths(self.root)

    def file(self, file_id: str) -> Path:
        """The folder of one uploaded file."""
        return self.files / check_id(file_id)

    def run(self, run_id: str) -> Path:
        """The folder of one run."""
        return self.runs / check_id(run_id)

    def model(self, model_id: str) -> Path:
        """The folder of one published model."""
        return self.models / check_id(model_id)


@dataclass(frozen=True)
class EvaluationPaths:
    """Paths of the evaluations, each of which has a folder in `folder`."""

    folder: Path

    def find(self, evaluation_id: str) -> Path:
        """The folder of one evaluation; raises `ValueError` for an id that is not a plain name."""
        return self.folder / check_id(evaluation_id)


@dataclass(frozen=True)
class StorePaths:
    """Paths of the aliases and their hand-overs below one storage root."""

    root: Path

    @property
    def aliases(self) -> Path:
        """The JSON file of the aliases and their histories."""
        return self.root / "aliases.json"

    @property
    def aliases_copy(self) -> Path:
        """A copy of `aliases`, read where that file is damaged."""
        return self.root / "aliases.copy.json"

    @property
    def alias_lock(self) -> Path:
        """Locked by the one process that changes an alias, or adds or deletes a model."""
        return self.root / ".aliases.lock"

    @property
    def handovers(self) -> Path:
        """The hand-over events, a JSON Lines file."""
        return self.root / "handovers.jsonl"

    @property
    def merges(self) -> Path:
        """The folder of the notes on merges of adapters."""
        return self.root / "merges"

    @property
    def merge_lock(self) -> Path:
        """Locked by the one process that begins a merge."""
        return self.root / ".merges.lock"

    @property
    def transfers(self) -> Path:
        """The folder of the notes on transfers from and to the hub."""
        return self.root / "transfers"

    @property
    def transfer_lock(self) -> Path:
        """Locked while a transfer begins, is measured or cancelled, or moves its model in."""
        return self.root / ".transfers.lock"

    def handover_lock(self, machine: str) -> Path:
        """Locked by the one replica on a machine that performs a hand-over."""
        return self.root / f".handover-{machine}.lock"


@dataclass(frozen=True)
class AccessPaths:
    """Paths of the API keys and of the audit log below one storage root."""

    root: Path

    @property
    def keys(self) -> Path:
        """The JSON file of the API keys."""
        return self.root / KEYS_NAME

    @property
    def keys_marker(self) -> Path:
        """A file that exists once a key was created; while it exists, requests need a key."""
        return self.root / "keys.required"

    @property
    def keys_lock(self) -> Path:
        """Locked by the one process that changes the keys."""
        return self.root / ".keys.lock"

    @property
    def audit(self) -> Path:
        """The audit log, a JSON Lines file."""
        return self.root / "audit.jsonl"

    @property
    def audit_lock(self) -> Path:
        """Locked by the one process that rotates the audit log."""
        return self.root / ".audit.lock"


def open_storage(root: str | Path) -> StorageLayout:
    """Open a storage root (`~` is expanded) and create missing folders.

    Raises `ValueError` for a URL.
    """
    check_local_path("storage", root)
    return StorageLayout(Path(root).expanduser().resolve()).create()


def check_id(identifier: str) -> str:
    """Return `identifier` if it is a plain name, else raise `ValueError`."""
    if not is_plain_name(identifier):
        raise ValueError(
            f"{identifier[: MAX_ID_CHARACTERS + 1]!r} is not a valid id: expected 1 to "
            f"{MAX_ID_CHARACTERS} letters, digits, '.', '_' or '-', beginning with a letter or a "
            "digit"
        )
    return identifier


def is_plain_name(name: str) -> bool:
    """Return whether a name can be an id."""
    return _ID_PATTERN.fullmatch(name) is not None


def new_id(prefix: str) -> str:
    """Return a new unique id; ids sort by creation time."""
    return f"{prefix}-{time.time_ns():016x}{secrets.token_hex(4)}"


def is_id(identifier: str) -> bool:
    """Return whether an identifier has the form that `new_id` makes."""
    return _MADE_ID_PATTERN.fullmatch(identifier) is not None


def read_creation_time(identifier: str) -> int | None:
    """Return the creation time of an id in Unix seconds; None if `new_id` did not make it."""
    if not is_id(identifier):
        return None
    return int(identifier.rpartition("-")[2][:16], 16) // 10**9
