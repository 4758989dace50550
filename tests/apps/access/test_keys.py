"""Stored keys, and how a running application detects changes of them."""

import json
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from apps.access.key_file import KeysUnreadableError
from apps.access.keys import ForeignStorageError, KeyStore
from apps.access.roles import Role
from storage.layout import StorageLayout
from tests.apps.access.conftest import Connect

pytestmark = pytest.mark.anyio
LOCAL = {"client": ("127.0.0.1", 5), "base_url": "http://localhost"}


def test_key_file_is_private_and_contains_no_secret(keys: KeyStore, layout: StorageLayout) -> None:
    created = keys.create("ann", Role.CHAT, requests_per_minute=3)
    secret = created.text.removeprefix(f"ts-{created.record.id}-")
    assert len(secret) >= 43, "the secret has fewer than 256 bits"
    assert secret not in layout.access.keys.read_text()
    assert stat.S_IMODE(layout.access.keys.stat().st_mode) == 0o600
    assert json.loads(layout.access.keys.read_text())["format_version"] == "1.0"


def test_find_key_requires_full_key_text(keys: KeyStore) -> None:
    created = keys.create("ann", Role.CHAT)
    assert keys.find(created.text) == created.record
    other = keys.create("bob", Role.ADMIN)
    swapped = f"ts-{other.record.id}-{created.text.split('-', 2)[2]}"
    for wrong in (created.text[:-1], swapped, f"ts-{created.record.id}-", "ts--", "", "é"):
        assert keys.find(wrong) is None


@pytest.mark.parametrize("name", ["", "a b", "-a", "x" * 65, "é", "a\n"])
def test_invalid_key_name_raises(name: str, keys: KeyStore) -> None:
    with pytest.raises(ValueError, match=r"^'.*' is not a valid key name: expected 1 to 64"):
        keys.create(name, Role.READ)


def test_name_of_active_key_cannot_be_reused(keys: KeyStore) -> None:
    keys.create("ann", Role.READ)
    with pytest.raises(
        ValueError, match=r"^an active key is named 'ann'; .* 'tuneserve keys rotate ann'$"
    ):
        keys.create("ann", Role.READ)
    keys.revoke("ann")
    keys.create("ann", Role.READ)
    with pytest.raises(ValueError, match=r"^no active key"):
        keys.revoke("bob")


async def test_running_application_applies_creation_rotation_and_revocation(
    keys: KeyStore, connect: Connect
) -> None:
    old = keys.create("ci", Role.READ, tokens_per_minute=7).text
    async with connect() as client:

        async def ask(key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return (await client.get("/v1/models", headers=headers)).status_code

        assert await ask(old) == 200
        rotated = keys.rotate("ci", grace_s=3600)
        assert (rotated.record.role, rotated.record.tokens_per_minute) == (Role.READ, 7)
        assert (await ask(old), await ask(rotated.text)) == (200, 200)
        newest = keys.rotate("ci")
        assert (await ask(rotated.text), await ask(newest.text)) == (401, 200)
        keys.revoke("ci")
        assert await ask(newest.text) == 401


def test_revoke_by_name_ends_grace_period_of_rotated_key(keys: KeyStore) -> None:
    old = keys.create("ci", Role.READ)
    new = keys.rotate("ci", grace_s=7 * 86_400)
    other = keys.create("other", Role.READ)
    assert [record.id for record in keys.revoke("ci")] == [old.record.id, new.record.id]
    states = {record.id: record.revoked_at is not None for record in keys.list_keys()}
    assert states == {old.record.id: True, new.record.id: True, other.record.id: False}


def test_revoke_by_id_revokes_one_key(keys: KeyStore) -> None:
    old = keys.create("ci", Role.READ)
    new = keys.rotate("ci", grace_s=3600)
    assert [record.id for record in keys.revoke(old.record.id)] == [old.record.id]
    assert [record.id for record in keys.revoke("ci")] == [new.record.id]


def test_second_rotation_ends_grace_period_of_first(keys: KeyStore) -> None:
    keys.create("ci", Role.READ)
    keys.rotate("ci", grace_s=7 * 86_400)
    newest = keys.rotate("ci")
    active = [record.id for record in keys.list_keys() if record.is_active(time.time())]
    assert active == [newest.record.id]


async def test_expired_key_error_names_key_and_expiry(keys: KeyStore, connect: Connect) -> None:
    async with connect(keys.create("old", Role.ADMIN, expires_at=1.0).text) as client:
        error = (await client.get("/v1/models")).json()["error"]
    assert error["code"] == "expired_api_key"
    assert "'old' expired at 1970-01-01" in error["message"]


async def test_environment_key_has_admin_role(connect: Connect) -> None:
    async with connect("s3cret", api_key="s3cret") as client:
        assert (await client.get("/v1/access")).json()["role"] == "admin"
        assert (await client.get("/v1/models")).status_code == 200
    async with connect("S3cret", api_key="s3cret") as client:
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/healthz")).status_code == 200


async def test_damaged_key_file_admits_only_environment_key(
    keys: KeyStore, connect: Connect, layout: StorageLayout
) -> None:
    key = keys.create("ann", Role.READ).text
    for content in (
        "{",
        '{"version": 2, "keys": []}',
        '{"format_version": "2.0", "keys": []}',
        '{"format_version": "1.0", "version": 2, "keys": []}',
        '{"format_version": "1.0"}',
        "[]",
    ):
        layout.access.keys.write_text(content)
        async with connect(key, api_key="e" * 32) as client:
            assert (await client.get("/v1/models")).status_code == 401
            headers = {"authorization": f"Bearer {'e' * 32}"}
            assert (await client.get("/v1/models", headers=headers)).status_code == 200
        async with connect(client=("127.0.0.1", 5), base_url="http://localhost") as client:
            assert (await client.get("/v1/models")).status_code == 401
        with pytest.raises(KeysUnreadableError):
            KeyStore(layout).list_keys()


async def test_transient_read_error_refuses_keys_only_while_it_lasts(
    keys: KeyStore, connect: Connect, layout: StorageLayout, tmp_path: Path
) -> None:
    async with connect(keys.create("ann", Role.READ).text) as client:
        assert (await client.get("/v1/models")).status_code == 200
        moved = layout.access.keys.rename(tmp_path / "keys")
        layout.access.keys.mkdir()  # reading it fails, as on a faulty disk
        assert (await client.get("/v1/models")).status_code == 401
        layout.access.keys.rmdir()
        moved.rename(layout.access.keys)  # the same file as before, with the same modification time
        assert (await client.get("/v1/models")).status_code == 200


async def test_transient_read_error_does_not_enable_key_requirement(
    connect: Connect, layout: StorageLayout
) -> None:
    async with connect(**LOCAL) as client:
        layout.access.keys.symlink_to(layout.access.keys)  # opening it fails, as on a faulty disk
        assert (await client.get("/v1/models")).status_code == 401
        layout.access.keys.unlink()
        assert (await client.get("/v1/models")).status_code == 200


async def test_deeply_nested_key_file_is_reported_as_damaged(
    keys: KeyStore, connect: Connect, layout: StorageLayout
) -> None:
    key = keys.create("ann", Role.READ).text
    layout.access.keys.write_text("[" * 100_000)
    async with connect(key) as client:
        assert (await client.get("/v1/models")).status_code == 401
    with pytest.raises(
        KeysUnreadableError, match=r"^'.*keys\.json' is damaged: it is not valid JSON"
    ):
        keys.list_keys()


@pytest.mark.parametrize("is_running", [True, False])
async def test_removed_key_file_does_not_enable_keyless_access(
    is_running: bool, keys: KeyStore, connect: Connect, layout: StorageLayout
) -> None:
    keys.create("ann", Role.READ)
    async with connect(**LOCAL) as client:
        if is_running:
            assert (await client.get("/v1/models")).status_code == 401
        layout.access.keys.unlink()
        assert (await client.get("/v1/models")).status_code == 401


async def test_removed_key_file_and_marker_enable_keyless_access(
    keys: KeyStore, connect: Connect, layout: StorageLayout
) -> None:
    keys.create("ann", Role.READ)
    layout.access.keys.unlink()
    layout.access.keys_marker.unlink()
    async with connect(**LOCAL) as client:
        assert (await client.get("/v1/models")).status_code == 200


def test_keys_in_storage_of_another_user_are_not_changed(
    keys: KeyStore, layout: StorageLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Previously, the command run with sudo wrote a file that the application could not read."""
    keys.create("ann", Role.READ)
    before = layout.access.keys.read_bytes()
    monkeypatch.setattr("os.geteuid", lambda: layout.root.stat().st_uid + 1)
    for change in (
        lambda: keys.create("bob", Role.READ),
        lambda: keys.rotate("ann"),
        lambda: keys.revoke("ann"),
    ):
        with pytest.raises(
            ForeignStorageError, match=r"^the storage folder .* run the command as the user"
        ):
            change()
    assert layout.access.keys.read_bytes() == before
    assert [record.name for record in keys.list_keys()] == ["ann"]


def test_revoking_last_key_does_not_enable_keyless_access(
    keys: KeyStore, layout: StorageLayout
) -> None:
    keys.create("ann", Role.READ)
    keys.revoke("ann")
    assert KeyStore(layout).has_keys()


def test_unknown_fields_and_roles_of_later_release_are_kept(
    keys: KeyStore, layout: StorageLayout
) -> None:
    created = keys.create("ann", Role.READ)
    content = json.loads(layout.access.keys.read_text())
    content["note"] = "kept"
    content["keys"][0]["team"] = "kept"
    content["keys"].append({**content["keys"][0], "id": "x", "role": "wizard"})
    layout.access.keys.write_text(json.dumps(content))
    assert [record.name for record in keys.list_keys()] == ["ann"]
    assert keys.find(created.text) is not None
    keys.create("bob", Role.READ)
    after = json.loads(layout.access.keys.read_text())
    assert (after["note"], after["keys"][0]["team"], after["keys"][1]["role"]) == (
        "kept",
        "kept",
        "wizard",
    )


def multiply_keys(layout: StorageLayout, num_keys: int, **changes: Any) -> None:
    """Extend the file to `num_keys` keys with copies of the first one."""
    content = json.loads(layout.access.keys.read_text())
    first = content["keys"][0]
    copies = [
        {**first, "id": f"{number:012x}", "name": f"key-{number}", **changes}
        for number in range(1, num_keys)
    ]
    layout.access.keys.write_text(json.dumps({**content, "keys": [first, *copies]}))


def test_creating_key_beyond_limit_of_active_keys_raises(
    keys: KeyStore, layout: StorageLayout
) -> None:
    keys.create("key-0", Role.READ)
    multiply_keys(layout, 1_000)
    with pytest.raises(ValueError, match=r"^1,000 keys are active.*revoke keys that are no longer"):
        keys.create("one-more", Role.READ)
    with pytest.raises(ValueError, match=r"^1,000 keys are active"):
        keys.rotate("key-5", grace_s=60)
    assert keys.rotate("key-5").record.name == "key-5"
    keys.revoke("key-7")
    keys.create("one-more", Role.READ)


def test_oldest_ended_keys_are_dropped_beyond_limit(keys: KeyStore, layout: StorageLayout) -> None:
    active = keys.create("key-0", Role.READ)
    multiply_keys(layout, 1_501, revoked_at=5.0)
    keys.create("one-more", Role.READ)
    names = [record.name for record in keys.list_keys()]
    assert len(names) == 1_002
    assert {"key-0", "one-more", "key-1500", "key-501"} <= set(names)
    assert "key-500" not in names
    assert keys.find(active.text) == active.record


async def test_key_file_of_newer_minor_version_is_used_and_kept(
    keys: KeyStore, connect: Connect, layout: StorageLayout
) -> None:
    key = keys.create("ann", Role.READ).text
    stored = json.loads(layout.access.keys.read_text())["keys"]
    newer = {"format_version": "1.7", "keys": stored, "groups": ["new"]}
    layout.access.keys.write_text(json.dumps(newer))
    async with connect(key) as client:
        assert (await client.get("/v1/models")).status_code == 200
    keys.create("bob", Role.READ)
    kept = json.loads(layout.access.keys.read_text())
    assert (kept["format_version"], kept["groups"]) == ("1.7", ["new"])


async def test_key_file_of_newer_major_version_raises(
    keys: KeyStore, layout: StorageLayout
) -> None:
    keys.create("ann", Role.READ)
    content = json.loads(layout.access.keys.read_text())
    layout.access.keys.write_text(json.dumps({**content, "format_version": "2.0"}))
    with pytest.raises(
        KeysUnreadableError, match=r"^'.*' needs a newer version of Tuneserve: its format is 2\.0"
    ):
        keys.list_keys()
    with pytest.raises(
        KeysUnreadableError, match=r"^'.*' needs a newer version of Tuneserve: its format is 2\.0"
    ):
        keys.create("bob", Role.READ)
    assert json.loads(layout.access.keys.read_text())["format_version"] == "2.0"


def test_key_file_with_former_version_field_is_read_and_migrated(
    keys: KeyStore, layout: StorageLayout
) -> None:
    created = keys.create("ann", Role.READ)
    content = json.loads(layout.access.keys.read_text())
    del content["format_version"]
    layout.access.keys.write_text(json.dumps({"version": 1, **content}))
    assert keys.find(created.text) == created.record
    keys.create("bob", Role.READ)
    after = json.loads(layout.access.keys.read_text())
    assert after["format_version"] == "1.0"
    assert "version" not in after


def test_concurrently_created_keys_are_all_stored(layout: StorageLayout) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: KeyStore(layout).create(f"k{n}", Role.READ), range(16)))
    assert len(KeyStore(layout).list_keys()) == 16


def test_replaced_key_file_of_same_size_and_time_is_read_again(
    keys: KeyStore, layout: StorageLayout
) -> None:
    """The file is replaced, so its inode differs."""
    created = keys.create("ann", Role.READ)
    assert keys.find(created.text) is not None
    before = layout.access.keys.stat()
    other = layout.access.keys.with_name("other")
    text = layout.access.keys.read_text()
    other.write_text(text.replace(created.record.sha256, "0" * 64))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, layout.access.keys)
    assert keys.find(created.text) is None
