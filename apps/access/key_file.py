"""The content of `<storage>/keys.json`: one entry per key, with the hash of its secret.

An entry that this release does not understand is kept in the file, and ignored otherwise.
"""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from apps.access.roles import Role
from storage import versioned_json
from storage.durable import DamagedFileError

logger = logging.getLogger(__name__)

MAX_ACTIVE_KEYS = 1_000
MAX_ENDED_KEYS = 1_000
"""Expired and revoked keys that stay on record; the oldest are dropped."""

_OLD_VERSION_KEY, _OLD_VERSION = "version", 1
"""Used instead of the format version in files not changed since that was introduced."""
_ENTRIES_KEY = "keys"


class KeysUnreadableError(RuntimeError):
    """The key file exists but cannot be used; only the environment's key is accepted."""


class KeyRecord(BaseModel):
    """A stored key; fields of a later release are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    id: str = Field(description="The public part of the key.")
    name: str = Field(description="Name of the key in logs and messages.")
    role: Role = Field(description="What the key may do.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="The hash of its secret.")
    created_at: float = Field(description="Unix time, in seconds.")
    expires_at: float | None = Field(None, description="Unix time from which it is refused.")
    revoked_at: float | None = Field(None, description="Unix time at which it was revoked.")
    requests_per_minute: int | None = Field(
        None, ge=1, description="Maximum number of requests per minute."
    )
    tokens_per_minute: int | None = Field(
        None, ge=1, description="Maximum number of prompt and answer tokens per minute."
    )

    def is_active(self, now: float) -> bool:
        """Return whether the key is accepted at a Unix time."""
        is_expired = self.expires_at is not None and now >= self.expires_at
        return self.revoked_at is None and not is_expired


class _Entry(NamedTuple):
    """An entry as stored, and its record; None if this release does not understand it."""

    stored: object
    record: KeyRecord | None


class KeyFile:
    """The parsed content of a key file, or of a new one; `to_content` returns it with all changes.

    Raises `KeysUnreadableError` for content that cannot be used, also of a newer major version.
    """

    def __init__(self, path: Path, content: bytes | None) -> None:
        self._content: Mapping[str, object] = {}
        self._entries: list[_Entry] = []
        if content is not None:
            self._content, stored = _parse_content(path, content)
            self._entries = [_Entry(entry, _parse_record(entry, path)) for entry in stored]

    @property
    def is_empty(self) -> bool:
        """Whether there is no entry, not even one that cannot be read."""
        return not self._entries

    def list_records(self) -> list[KeyRecord]:
        """List the keys that this release understands, in the order of the file."""
        return [entry.record for entry in self._entries if entry.record is not None]

    def to_content(self) -> dict[str, object]:
        """Return the content to write."""
        return {**self._content, _ENTRIES_KEY: [entry.stored for entry in self._entries]}

    def find_active(self, name_or_id: str, now: float) -> list[KeyRecord]:
        """Find the active keys that have a name or id, oldest first."""
        return [
            record
            for record in self.list_records()
            if record.is_active(now) and name_or_id in (record.name, record.id)
        ]

    def add(self, record: KeyRecord) -> None:
        """Append a key."""
        stored = record.model_dump(mode="json", exclude_none=True)
        self._entries.append(_Entry(stored, record))

    def expire(self, record: KeyRecord, expires_at: float) -> KeyRecord:
        """Let a key expire at a time, unless it expires earlier; return its new record."""
        expiry = min(expires_at, record.expires_at or math.inf)
        return self._change(record, "expires_at", expiry)

    def revoke(self, record: KeyRecord, now: float) -> KeyRecord:
        """Revoke a key; return its new record."""
        return self._change(record, "revoked_at", now)

    def check_count(self, now: float) -> None:
        """Raise `ValueError` if there can be no further active key."""
        num_active = len(self._entries) - len(self._list_ended(now))
        if num_active >= MAX_ACTIVE_KEYS:
            raise ValueError(
                f"{num_active:,} keys are active, and at most {MAX_ACTIVE_KEYS:,} can be; revoke "
                "keys that are no longer used: 'tuneserve keys revoke NAME'"
            )

    def drop_oldest_ended(self, now: float) -> None:
        """Remove the oldest ended keys beyond `MAX_ENDED_KEYS`."""
        for entry in self._list_ended(now)[:-MAX_ENDED_KEYS]:
            self._entries.remove(entry)

    def _change(self, record: KeyRecord, field: str, value: float) -> KeyRecord:
        for number, entry in enumerate(self._entries):
            if entry.record is record:
                assert isinstance(entry.stored, dict)
                changed = record.model_copy(update={field: value})
                self._entries[number] = _Entry({**entry.stored, field: value}, changed)
                return changed
        raise LookupError(record.id)

    def _list_ended(self, now: float) -> list[_Entry]:
        """List the expired and revoked keys, oldest first; unreadable ones may be active."""
        return [
            entry for entry in self._entries if entry.record and not entry.record.is_active(now)
        ]


def _parse_content(path: Path, content: bytes) -> tuple[Mapping[str, object], list[object]]:
    """Return the whole object, and the list of its entries."""
    try:
        parsed = versioned_json.parse_object(path, content)
    except DamagedFileError as exc:
        raise KeysUnreadableError(str(exc)) from exc
    old_version = parsed.pop(_OLD_VERSION_KEY, _OLD_VERSION)
    if old_version != _OLD_VERSION:
        raise KeysUnreadableError(
            f"{str(path)!r} needs a newer version of Tuneserve: its version is {old_version!r}, "
            f"expected {_OLD_VERSION}"
        )
    entries = parsed.get(_ENTRIES_KEY)
    if not isinstance(entries, list):
        reason = f"'keys' is a {type(entries).__name__}, expected a list"
        raise KeysUnreadableError(str(versioned_json.explain_invalid(path, parsed, reason)))
    return parsed, entries


def _parse_record(entry: object, path: Path) -> KeyRecord | None:
    """Parse one key; return None, and log, for one that this release does not understand."""
    try:
        return KeyRecord.model_validate(entry)
    except ValidationError as exc:
        key_id = entry.get("id") if isinstance(entry, dict) else None
        fields = ", ".join(str(fault["loc"][0]) for fault in exc.errors() if fault["loc"])
        logger.warning("key %r in %s is ignored: %s not valid", key_id, path, fields or "entry")
        return None
