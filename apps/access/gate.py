"""Authentication of requests: by their key, or as a program on this machine if no key exists."""

import logging
import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from time import time

from starlette.datastructures import Headers
from starlette.types import Scope

from apps.access.key_file import KeyRecord, KeysUnreadableError
from apps.access.keyless import API_KEY_VARIABLE, find_foreign_request
from apps.access.keys import KeyStore
from apps.access.roles import ROLE_PERMISSIONS, Permission, Role, list_roles

logger = logging.getLogger(__name__)

_MIN_KEY_CHARACTERS = 16


@dataclass(frozen=True)
class Principal:
    """The sender of a request."""

    name: str
    role: Role
    key_id: str | None = None
    """None without a key."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def may(self, permission: Permission) -> bool:
        """Return whether the role has a permission."""
        return permission in ROLE_PERMISSIONS[self.role]

    def explain_refusal(self, permission: Permission) -> str:
        """Explain why this principal may not do what requires `permission`."""
        roles = ", ".join(list_roles(permission))
        return (
            f"the key {self.name!r} has the role {self.role.value!r}, which does not have the "
            f"permission {permission.value!r}; roles that have it: {roles}"
        )


LOCAL = Principal("local", Role.ADMIN)
"""A program on this machine, if no key exists."""
ENVIRONMENT = Principal(API_KEY_VARIABLE, Role.ADMIN, "environment")
"""The owner of the key in the environment variable."""


class AccessRefusedError(Exception):
    """A request that is refused access; `status` is 401 or 403."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        principal: Principal | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code
        self.principal = principal
        """The owner of the key, if the request had the secret of one."""


class Gate:
    """Authenticates requests.

    A key is required if the environment has one, if one was ever created, or if `require_key` is
    set.
    """

    def __init__(
        self, api_key: str | None, keys: KeyStore | None = None, *, require_key: bool = False
    ) -> None:
        self._api_key_hash = None if api_key is None else _hash(api_key)
        self._keys = keys
        self._require_key = require_key
        if api_key is not None and len(api_key) < _MIN_KEY_CHARACTERS:
            logger.warning(
                "the key in %s has %d characters and can be guessed; expected at least %d",
                API_KEY_VARIABLE,
                len(api_key),
                _MIN_KEY_CHARACTERS,
            )

    def needs_key(self) -> bool:
        """Return whether requests need a key."""
        if self._require_key or self._api_key_hash is not None:
            return True
        return self._keys is not None and self._keys.has_keys()

    def identify(self, scope: Scope) -> Principal:
        """Return the sender of a request; raises `AccessRefusedError`."""
        headers = Headers(scope=scope)
        if not self.needs_key():
            version = scope.get("http_version", "1.1")
            if reason := find_foreign_request(headers, scope.get("client"), version):
                raise AccessRefusedError(403, reason, code="not_local")
            return LOCAL
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            raise AccessRefusedError(
                401, "a valid API key is needed: send it as 'Authorization: Bearer <key>'"
            )
        return self.check_key(given.strip())

    def check_key(self, given: str) -> Principal:
        """Return the owner of a key; raises `AccessRefusedError`."""
        if self._api_key_hash is not None and secrets.compare_digest(
            _hash(given), self._api_key_hash
        ):
            return ENVIRONMENT
        try:
            record = self._keys.find(given) if self._keys is not None else None
        except KeysUnreadableError:  # logged by the store
            record = None
        if record is None:
            raise AccessRefusedError(
                401,
                "the API key is not valid; send a valid one as 'Authorization: Bearer <key>'",
                code="invalid_api_key",
            )
        return _check_active(record)


def read_api_key() -> str | None:
    """Return the key that clients must send, if the environment sets one."""
    return os.environ.get(API_KEY_VARIABLE, "").strip() or None


def _check_active(record: KeyRecord) -> Principal:
    """Return the owner of a key whose secret is correct; raises `AccessRefusedError`."""
    principal = Principal(
        record.name,
        record.role,
        record.id,
        record.requests_per_minute,
        record.tokens_per_minute,
    )
    if not record.is_active(time()):
        is_revoked = record.revoked_at is not None
        ended = record.revoked_at if is_revoked else record.expires_at
        assert ended is not None
        what = "was revoked" if is_revoked else "expired"
        when = f"{datetime.fromtimestamp(ended, UTC):%Y-%m-%d %H:%M} UTC"
        raise AccessRefusedError(
            401,
            f"the API key {record.name!r} {what} at {when}",
            code="revoked_api_key" if is_revoked else "expired_api_key",
            principal=principal,
        )
    return principal


def _hash(key: str) -> bytes:
    """Hash a key, so that a comparison takes the same time whatever the length of the key."""
    return sha256(key.encode(errors="surrogateescape")).digest()
