"""`tuneserve keys`: the API keys of an application, in its storage folder on this machine."""

import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from apps.access.audit import AuditEntry, AuditLog
from apps.access.key_file import KeyRecord, KeysUnreadableError
from apps.access.keys import (
    CreatedKey,
    ForeignStorageError,
    KeyStore,
    check_owner,
    find_user_name,
)
from apps.access.roles import Role
from apps.cli.connection import AsJson
from apps.cli.output import Rows, fail, notes, print_json, print_message, show, show_time
from apps.server.deploy_file import find_storage
from storage.layout import StorageLayout, new_id, open_storage

keys = typer.Typer(help="Create, list, rotate and revoke API keys.", no_args_is_help=True)

_UNITS_S = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_REFUSALS = (ValueError, OSError, KeysUnreadableError, ForeignStorageError)
_DURATION = re.compile(r"(\d{1,6})([mhdw])")

Deploy = Annotated[Path, typer.Option("--deploy", help="The deploy file that names the storage.")]
Storage = Annotated[
    Path | None, typer.Option("--storage", help="The storage folder, in place of --deploy.")
]
KeyName = Annotated[str, typer.Argument(help="Name or id of a key.")]
DEFAULT_DEPLOY = Path("deploy.yaml")


@keys.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the key in logs and messages.")],
    role: Annotated[Role, typer.Option(help="What the key may do.")],
    expires: Annotated[
        str | None,
        typer.Option(help="When the key expires: 30m, 12h, 90d, 2w from now, or a date (UTC)."),
    ] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of requests per minute.")
    ] = None,
    tokens_per_minute: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of prompt and answer tokens per minute."),
    ] = None,
    deploy: Deploy = DEFAULT_DEPLOY,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it; it cannot be shown again."""
    try:
        expires_at = None if expires is None else read_expiry(expires, time.time())
        root = _find_root(storage, deploy)
        check_owner(StorageLayout(root))  # before folders are created in it
        layout = open_storage(root)
        created = KeyStore(layout).create(
            name,
            role,
            expires_at=expires_at,
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
        )
    except _REFUSALS as exc:
        fail(exc)
    _write_audit_line(layout, "create", created.record.name, created.record.id)
    _show_created(created, as_json)


@keys.command("list")
def list_keys(
    deploy: Deploy = DEFAULT_DEPLOY, storage: Storage = None, as_json: AsJson = False
) -> None:
    """Show all keys, oldest first, without their secrets."""
    try:
        found = KeyStore(_find_storage(storage, deploy)).list_keys()
    except _REFUSALS as exc:
        fail(exc)
    show([_describe(record) for record in found], as_json, lambda: _render(found))


@keys.command()
def rotate(
    name: KeyName,
    grace: Annotated[
        str | None, typer.Option(help="How long the old key stays valid: 30m, 12h, 7d.")
    ] = None,
    deploy: Deploy = DEFAULT_DEPLOY,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Replace a key by a new one with the same name, role, limits and expiry, and print it."""
    try:
        grace_s = 0.0 if grace is None else read_duration(grace)
        layout = _find_storage(storage, deploy)
        created = KeyStore(layout).rotate(name, grace_s)
    except _REFUSALS as exc:
        fail(exc)
    _write_audit_line(layout, "rotate", created.record.name, created.record.id)
    _show_created(created, as_json)


@keys.command()
def revoke(
    name: KeyName, deploy: Deploy = DEFAULT_DEPLOY, storage: Storage = None, as_json: AsJson = False
) -> None:
    """Revoke every key with a name, or the key with an id; the next request with it is refused."""
    try:
        layout = _find_storage(storage, deploy)
        revoked = KeyStore(layout).revoke(name)
    except _REFUSALS as exc:
        fail(exc)
    for record in revoked:
        _write_audit_line(layout, "revoke", f"{record.name}/{record.id}")
    names = ", ".join(f"{record.name} ({record.id})" for record in revoked)
    show([_describe(record) for record in revoked], as_json, lambda: f"revoked {names}")


def read_expiry(given: str, now: float) -> float:
    """Parse a duration from now or a date into a future Unix time; raises `ValueError`."""
    if _DURATION.fullmatch(given):
        expiry = now + read_duration(given)
    else:
        try:
            at = datetime.fromisoformat(given)
        except ValueError:
            raise ValueError(
                f"expiry {given!r}: expected a duration as in 30m, 12h, 90d or 2w, or a date as in "
                "2030-01-31"
            ) from None
        expiry = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    if expiry <= now:
        raise ValueError(
            f"expiry {given!r} is not in the future, so the key would never be accepted; expected "
            "a later time"
        )
    return expiry


def read_duration(given: str) -> float:
    """Parse a duration as in `12h` into seconds; raises `ValueError`."""
    match = _DURATION.fullmatch(given)
    if match is None:
        raise ValueError(f"duration {given!r}: expected a number and m, h, d or w, as in 90d")
    return float(int(match[1]) * _UNITS_S[match[2]])


def _find_root(storage: Path | None, deploy: Path) -> Path:
    """Return the storage folder of a command; it may not exist yet.

    Exits with an error if the named deploy file does not exist. Raises `DeployFileError`.
    """
    if storage is None and deploy != DEFAULT_DEPLOY and not deploy.is_file():
        fail(f"there is no deploy file {str(deploy)!r}; expected one that names the storage folder")
    root = find_storage(deploy) if storage is None else storage.expanduser()
    notes.print(f"keys of the storage folder {root}", soft_wrap=True)
    return root.resolve()


def _find_storage(storage: Path | None, deploy: Path) -> StorageLayout:
    """Return the existing storage folder of a command, and create nothing.

    Exits with an error if it does not exist. Raises `DeployFileError`.
    """
    root = _find_root(storage, deploy)
    if not root.is_dir():
        fail(
            f"there is no storage folder {str(root)!r}; set the folder of the application "
            "with --storage, or its deploy file with --deploy"
        )
    return StorageLayout(root)


def _write_audit_line(
    layout: StorageLayout, change: str, subject: str, created: str | None = None
) -> None:
    """Record a change of the keys, and the user who made it, in the audit log."""
    entry = AuditEntry(
        request_id=new_id("cli"),
        key=None,
        key_id=None,
        role=None,
        client=None,
        method="CLI",
        path=f"keys {change}",
        subject=subject,
        status=None,
        outcome="done",
        reason=None,
        created=created,
        user=find_user_name(os.getuid()),
    )
    AuditLog(layout, max_bytes=None).write(entry)  # the application rotates the log


def _show_created(created: CreatedKey, as_json: bool) -> None:
    if as_json:
        print_json({**_describe(created.record), "key": created.text})
        return
    notes.print(f"{created.record.name}: role {created.record.role}; it is shown only here:")
    print_message(created.text)


def _describe(record: KeyRecord) -> dict[str, object]:
    """Describe a key without the hash of its secret."""
    return {**record.model_dump(mode="json", exclude={"sha256"}), "state": _find_state(record)}


def _find_state(record: KeyRecord) -> str:
    is_active = record.is_active(time.time())
    return "active" if is_active else "revoked" if record.revoked_at is not None else "expired"


def _render(found: list[KeyRecord]) -> Rows:
    cells = [
        (
            record.name,
            record.id,
            record.role.value,
            _find_state(record),
            show_time(record.created_at),
            show_time(record.expires_at) or "never",
            _render_limits(record),
        )
        for record in found
    ]
    return Rows(cells, ("name", "id", "role", "state", "created", "expires", "limits per minute"))


def _render_limits(record: KeyRecord) -> str:
    limits = {"requests": record.requests_per_minute, "tokens": record.tokens_per_minute}
    shown = [f"{limit:,} {what}" for what, limit in limits.items() if limit is not None]
    return ", ".join(shown) or "none"
