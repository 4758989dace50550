"""The names of everything under the storage root; no other module builds these paths by hand.

<root>/files/<file-id>/     file.json, the uploaded bytes
<root>/runs/<run-id>/       what training/runs.py lists
<root>/models/<model-id>/   a Hugging Face model directory, lineage.json, manifest.json
<root>/cache/tokens/        rows of earlier runs as tokens; may be emptied at any time
<root>/aliases.json         which model each alias points to, and pointed to before
<root>/aliases.copy.json    the same once more, read where the first is damaged
<root>/handovers.jsonl      what became of those moves on each replica of the generator
<root>/handovers.1.jsonl    the same, older
<root>/keys.json            API keys, hashed; only the owner can read it
<root>/keys.required        says that keys were created; while it exists requests need a key
<root>/audit.jsonl          changes and refused requests; older lines in audit.jsonl.1 and so on
"""

import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from storage.local_paths import check_local_path
from storage.privacy import close_to_others

DEFAULT_ROOT = "~/.tuneserve"
KEYS_NAME = "keys.json"
UPLOAD_PREFIX = ".upload-"
"""Of the scratch folders, among files and models, that uploads are received in."""
MAX_ID_CHARACTERS = 128
_ID_PATTERN = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_ID_CHARACTERS - 1}}}")
_MADE_ID_PATTERN = re.compile(r"[a-z]+-[0-9a-f]{24}")


@dataclass(frozen=True)
class StorageLayout:
    """Paths below one storage root.

    Every method that takes an id raises `ValueError` for one that is not a plain name, so that no
    client can reach outside the root.
    """

    root: Path

    def create(self) -> "StorageLayout":
        """Make the top folders, for their owner only, as earlier versions' are made now.

        A root that has other folders in it is left as it is. Raises `OSError` where the root cannot
        be written.
        """
        folders = (self.files, self.runs, self.models)
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        ours = {*folders, self.token_cache.parent}
        is_shared = any(
            path.is_dir() and path not in ours
            for path in self.root.iterdir()
            if not path.name.startswith(".")
        )
        for path in (*ours, self.aliases, self.handovers, *(() if is_shared else (self.root,))):
            if path.exists():
                close_to_others(path)
        return self

    @property
    def files(self) -> Path:
        """All uploaded files."""
        return self.root / "files"

    @property
    def runs(self) -> Path:
        """All runs."""
        return self.root / "runs"

    @property
    def models(self) -> Path:
        """All published models."""
        return self.root / "models"

    @property
    def token_cache(self) -> Path:
        """Rows of earlier runs as tokens; may be emptied at any time."""
        return self.root / "cache" / "tokens"

    @property
    def queue_lock(self) -> Path:
        """Held by the one queue that looks after the runs."""
        return self.root / ".queue.lock"

    @property
    def upload_lock(self) -> Path:
        """Held by the one process that adds an upload to the files."""
        return self.root / ".upload.lock"

    @property
    def export_lock(self) -> Path:
        """Held by the one process that turns a checkpoint into a model."""
        return self.root / ".export.lock"

    @property
    def import_lock(self) -> Path:
        """Held by the one process that checks a model from elsewhere."""
        return self.root / ".import.lock"

    @property
    def aliases(self) -> Path:
        """The aliases and their history, one JSON file."""
        return self.root / "aliases.json"

    @property
    def aliases_copy(self) -> Path:
        """The content of `aliases` once more, read where that is damaged."""
        return self.root / "aliases.copy.json"

    @property
    def alias_lock(self) -> Path:
        """Held by whoever changes an alias, or adds or deletes a model."""
        return self.root / ".aliases.lock"

    @property
    def handovers(self) -> Path:
        """What became of the moves of aliases, a file of JSON lines."""
        return self.root / "handovers.jsonl"

    def handover_lock(self, machine: str) -> Path:
        """Held by the one replica on a machine that moves an alias."""
        return self.root / f".handover-{machine}.lock"

    @property
    def keys(self) -> Path:
        """The API keys, one JSON file."""
        return self.root / KEYS_NAME

    @property
    def keys_marker(self) -> Path:
        """Exists once a key was created: requests need a key from then on."""
        return self.root / "keys.required"

    @property
    def keys_lock(self) -> Path:
        """Locked by the one process that changes the keys."""
        return self.root / ".keys.lock"

    @property
    def audit(self) -> Path:
        """The audit log, a file of JSON lines."""
        return self.root / "audit.jsonl"

    @property
    def audit_lock(self) -> Path:
        """Locked by the one process that rotates the audit log."""
        return self.root / ".audit.lock"

    def file(self, file_id: str) -> Path:
        """The folder of one uploaded file."""
        return self.files / check_id(file_id)

    def run(self, run_id: str) -> Path:
        """The folder of one run."""
        return self.runs / check_id(run_id)

    def model(self, model_id: str) -> Path:
        """The folder of one published model."""
        return self.models / check_id(model_id)


def open_storage(root: str | Path) -> StorageLayout:
    """Open a storage root (`~` is expanded), creating its folders where needed.

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
    """Make an id that nobody else has; ids sort in the order in which they were made."""
    return f"{prefix}-{time.time_ns():016x}{secrets.token_hex(4)}"


def is_id(identifier: str) -> bool:
    """Whether this may have come from `new_id`."""
    return _MADE_ID_PATTERN.fullmatch(identifier) is not None


def read_creation_time(identifier: str) -> int | None:
    """Return the Unix seconds at which `new_id` made an id; None for any other name."""
    if not is_id(identifier):
        return None
    return int(identifier.rpartition("-")[2][:16], 16) // 10**9
