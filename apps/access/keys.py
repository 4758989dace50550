"""Named API keys: `<storage>/keys.json`, written by `tuneserve keys`, read by every replica.

A key is `ts-<id>-<secret>`. Its secret has 256 random bits, so a plain SHA-256 of it is enough: a
slow hash such as scrypt protects secrets that can be guessed, and would cost every request. The
file holds only the hash; the key itself is shown once, when it is created.
"""

import hashlib
import logging
import os
import pwd
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from apps.access.key_file import KeyFile, KeyRecord, KeysUnreadableError
from apps.access.roles import Role
from storage import versioned_json
from storage.durable import write_bytes
from storage.layout import StorageLayout
from storage.locks import lock_exclusive
from storage.regular_file import open_regular, read_regular

logger = logging.getLogger(__name__)

KEY_PREFIX = "ts"
_ID_BYTES = 6
_SECRET_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MARKER_TEXT = (
    "API keys were created in this storage, so requests need a key, also if keys.json is removed.\n"
    "Remove both files and restart the application to serve this machine without a key again.\n"
)
_NO_HASH = "0" * 64  # compared if no key has the id, so that both cases take the same time


class ForeignStorageError(RuntimeError):
    """The storage belongs to another user, who could not read a key file that we write."""


class CreatedKey(NamedTuple):
    """A new key; `text` cannot be recovered later."""

    record: KeyRecord
    text: str


class KeyStore:
    """The keys of one storage root.

    A change takes effect at the next request: the file is opened for each request, and read again
    if it has changed. Opening it also makes a network file system request the current file from its
    server.
    """

    def __init__(self, layout: StorageLayout, clock: Callable[[], float] = time.time) -> None:
        self._layout, self._clock = layout, clock
        self._path, self._marker, self._lock = (
            layout.access.keys,
            layout.access.keys_marker,
            layout.access.keys_lock,
        )
        self._seen: tuple[int, int, int] | None = None
        self._records: dict[str, KeyRecord] = {}
        self._fault: str | None = None
        self._has_keys = False

    def has_keys(self) -> bool:
        """Return whether any key was ever created, even if expired, revoked or unreadable.

        Removing the key file does not change the result: a marker beside it stays.
        """
        self._refresh()
        return self._has_keys or self._fault is not None

    def find(self, text: str) -> KeyRecord | None:
        """Return the key that a client sent, even if expired or revoked; None if there is none.

        Raises `KeysUnreadableError` if the file cannot be used.
        """
        self._refresh()
        if self._fault is not None:
            raise KeysUnreadableError(self._fault)
        prefix, _, rest = text.partition("-")
        key_id, _, secret = rest.partition("-")
        record = self._records.get(key_id) if prefix == KEY_PREFIX else None
        expected = _NO_HASH if record is None else record.sha256
        is_same = secrets.compare_digest(_hash(secret), expected)
        return record if is_same else None

    def list_keys(self) -> list[KeyRecord]:
        """Return all keys, oldest first; raises `KeysUnreadableError` as `find` does."""
        self._refresh()
        if self._fault is not None:
            raise KeysUnreadableError(self._fault)
        return sorted(self._records.values(), key=lambda record: record.created_at)

    def create(
        self,
        name: str,
        role: Role,
        *,
        expires_at: float | None = None,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
    ) -> CreatedKey:
        """Create a key.

        Raises `ValueError` for an invalid name, for a name that an active key has, and if there can
        be no further active key; otherwise raises as `revoke` does.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a valid key name: expected 1 to 64 letters, digits, '.', '_' or "
                "'-', beginning with a letter or digit"
            )
        created = self._make(
            name=name,
            role=role,
            expires_at=expires_at,
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
        )

        with self._change() as file:
            if file.find_active(name, self._clock()):
                raise ValueError(
                    f"an active key is named {name!r}; choose another name, or replace the key "
                    f"with 'tuneserve keys rotate {name}'"
                )
            file.check_count(self._clock())
            file.add(created.record)
        return created

    def rotate(self, name_or_id: str, grace_s: float = 0.0) -> CreatedKey:
        """Replace an active key by a new one with its name, role, limits and expiry.

        The old key is refused after `grace_s` seconds. If a name is given, so is every other key of
        that name that an earlier rotation left active. Raises `ValueError` if there can be no
        further active key, and otherwise as `revoke` does.
        """
        with self._change() as file:
            active = self._expect_active(file, name_or_id)
            kept = active[-1].model_dump(
                include={"name", "role", "expires_at", "requests_per_minute", "tokens_per_minute"}
            )
            rotated = self._make(**kept)
            now = self._clock()
            if grace_s > 0:
                file.check_count(now)
            for record in active:
                if grace_s > 0:
                    file.expire(record, now + grace_s)
                else:
                    file.revoke(record, now)
            file.add(rotated.record)
        return rotated

    def revoke(self, name_or_id: str) -> list[KeyRecord]:
        """Revoke every active key with a name, or the one with an id; return them, oldest first.

        A name has several active keys within the grace period of a rotation. Raises `ValueError` if
        no active key has the name or id, and `ForeignStorageError` and `KeysUnreadableError` if the
        file cannot be changed.
        """
        with self._change() as file:
            active = self._expect_active(file, name_or_id)
            return [file.revoke(record, self._clock()) for record in active]

    def _make(self, **fields: Any) -> CreatedKey:
        key_id, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
        record = KeyRecord(id=key_id, sha256=_hash(secret), created_at=self._clock(), **fields)
        return CreatedKey(record, f"{KEY_PREFIX}-{key_id}-{secret}")

    def _expect_active(self, file: KeyFile, name_or_id: str) -> list[KeyRecord]:
        active = file.find_active(name_or_id, self._clock())
        if not active:
            raise ValueError(
                f"no active key has the name or id {name_or_id!r}; 'tuneserve keys list' shows all"
            )
        return active

    @contextmanager
    def _change(self) -> Iterator[KeyFile]:
        """Write what the body changes; the file is locked against other processes."""
        check_owner(self._layout)
        with lock_exclusive(self._lock):
            try:
                file = KeyFile(self._path, read_regular(self._path))
            except FileNotFoundError:
                file = KeyFile(self._path, None)
            yield file
            file.drop_oldest_ended(self._clock())
            # The marker is written first, so that keys never exist without it.
            if not self._marker.exists():
                write_bytes(self._marker, _MARKER_TEXT.encode())
            versioned_json.write_object(self._path, file.to_content())

    def _refresh(self) -> None:
        """Read the file again if it has changed."""
        try:
            with open_regular(self._path) as file:
                status = os.fstat(file.fileno())
                seen = (status.st_mtime_ns, status.st_ino, status.st_size)
                if seen == self._seen:
                    return
                content = file.read()
            keys = KeyFile(self._path, content)
        except FileNotFoundError:
            self._record_absence()
            return
        except OSError as exc:  # may be temporary: read again at the next request
            self._record_fault(f"{self._path} cannot be read: {exc.strerror}")
            self._seen = None
            return
        except KeysUnreadableError as exc:
            self._record_fault(str(exc))
            self._has_keys = True
        else:
            self._records = {record.id: record for record in keys.list_records()}
            self._has_keys = self._has_keys or not keys.is_empty
            self._fault = None
        self._seen = seen

    def _record_absence(self) -> None:
        """Record that there is no key file; the marker shows whether there ever was one."""
        if self._has_keys and self._seen is not None:
            logger.warning("%s was removed; its keys are refused from now on", self._path)
        self._seen, self._records, self._fault = None, {}, None
        try:
            self._has_keys = self._has_keys or self._marker.exists()
        except OSError as exc:
            self._record_fault(f"{self._marker} cannot be read: {exc.strerror}")

    def _record_fault(self, fault: str) -> None:
        if fault != self._fault:
            logger.error("%s; every named key is refused until this is repaired", fault)
        self._fault = fault


def check_owner(layout: StorageLayout) -> None:
    """Raise `ForeignStorageError` unless the application runs as the user of this process.

    The application creates the runs folder, so its user is the owner of that folder. Only the owner
    of a key file can read it. A storage that does not exist yet has no owner.
    """
    folder = next((path for path in (layout.runs, layout.root) if path.exists()), None)
    if folder is None:
        return
    owner, user = folder.stat().st_uid, os.geteuid()
    if owner != user:
        raise ForeignStorageError(
            f"the storage folder {str(layout.root)!r} belongs to the user "
            f"{find_user_name(owner)!r}, and this process runs as {find_user_name(user)!r}: the "
            "application could not read a file of keys that this process writes; run the command "
            "as the user of the application, as in: "
            f"sudo -u '{find_user_name(owner)}' tuneserve keys list"
        )


def find_user_name(uid: int) -> str:
    """Return the name of a user of this machine, or '#' and the number if there is no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()
