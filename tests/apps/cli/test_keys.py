"""`tuneserve keys` without a running application."""

import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from apps.access.keys import KeyStore
from apps.cli.keys import read_duration, read_expiry
from apps.cli.main import cli
from apps.server.deploy_file import find_storage
from storage.durable import read_json_lines
from storage.layout import StorageLayout, open_storage


def run(storage: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["keys", *arguments, "--storage", str(storage)])


def ask(storage: Path, *arguments: str) -> Any:
    result = run(storage, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_created_key_is_printed_once_on_standard_output(tmp_path: Path) -> None:
    result = run(tmp_path, "create", "ci", "--role", "train", "--expires", "90d")
    assert result.exit_code == 0
    key = result.stdout.strip()
    record = KeyStore(open_storage(tmp_path)).find(key)
    assert record is not None
    assert (record.name, record.role) == ("ci", "train")
    assert record.expires_at == pytest.approx(record.created_at + 90 * 86_400, abs=5)
    listed = run(tmp_path, "list")
    assert key not in listed.output
    assert record.sha256 not in listed.output
    assert "ci" in listed.stdout


def test_keys_are_listed_rotated_and_revoked_with_json_output(tmp_path: Path) -> None:
    limits = ("--requests-per-minute", "60", "--tokens-per-minute", "1000")
    created = ask(tmp_path, "create", "ci", "--role", "chat", *limits)
    assert (created["requests_per_minute"], created["tokens_per_minute"]) == (60, 1000)
    rotated = ask(tmp_path, "rotate", "ci", "--grace", "1h")
    assert rotated["key"] != created["key"]
    assert [each["state"] for each in ask(tmp_path, "list")] == ["active", "active"]
    (revoked,) = ask(tmp_path, "revoke", created["id"])
    assert (revoked["id"], revoked["state"]) == (created["id"], "revoked")
    assert [each["state"] for each in ask(tmp_path, "list")] == ["revoked", "active"]
    assert "sha256" not in ask(tmp_path, "list")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "a b", "--role", "read"), "not a valid key name"),
        (("create", "ann", "--role", "read", "--expires", "soon"), "expected a duration"),
        (("create", "ann", "--role", "read", "--expires", "2020-01-01"), "not in the future"),
        (("create", "ann", "--role", "read", "--expires", "0d"), "not in the future"),
        (("revoke", "nobody"), "no active key has the name or id 'nobody'"),
        (("rotate", "nobody", "--grace", "x"), "expected a number and m, h, d or w"),
    ],
)
def test_invalid_keys_command_prints_error(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    result = run(tmp_path, *arguments)
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "keys.json").exists()


def test_storage_is_read_from_deploy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "here"
    Path("deploy.yaml").write_text(f"applications:\n- args:\n    storage: {root}\n")
    result = CliRunner().invoke(cli, ["keys", "create", "ann", "--role", "read"])
    assert result.exit_code == 0
    assert KeyStore(open_storage(root)).has_keys()
    missing = CliRunner().invoke(cli, ["keys", "list", "--deploy", "other.yaml"])
    assert missing.exit_code == 1


def test_revoke_by_name_prints_each_revoked_key(tmp_path: Path) -> None:
    created = ask(tmp_path, "create", "ci", "--role", "read")
    rotated = ask(tmp_path, "rotate", "ci", "--grace", "7d")
    revoked = run(tmp_path, "revoke", "ci").output
    assert created["id"] in revoked
    assert rotated["id"] in revoked
    assert [each["state"] for each in ask(tmp_path, "list")] == ["revoked", "revoked"]


def test_each_key_change_writes_audit_line(tmp_path: Path) -> None:
    created = ask(tmp_path, "create", "ci", "--role", "read")
    rotated = ask(tmp_path, "rotate", "ci", "--grace", "7d")
    ask(tmp_path, "list")
    ask(tmp_path, "revoke", "ci")
    lines = read_json_lines(StorageLayout(tmp_path).access.audit)
    user = pwd.getpwuid(os.getuid()).pw_name
    assert {(line["method"], line["user"], line["outcome"]) for line in lines} == {
        ("CLI", user, "done")
    }
    assert [(line["path"], line["subject"], line.get("created")) for line in lines] == [
        ("keys create", "ci", created["id"]),
        ("keys rotate", "ci", rotated["id"]),
        ("keys revoke", f"ci/{created['id']}", None),
        ("keys revoke", f"ci/{rotated['id']}", None),
    ]
    assert created["key"] not in StorageLayout(tmp_path).access.audit.read_text()


@pytest.mark.parametrize("arguments", [("list",), ("rotate", "ann"), ("revoke", "ann")])
def test_only_create_makes_storage_folder(arguments: tuple[str, ...], tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    result = run(storage, *arguments)
    assert result.exit_code == 1
    assert "there is no storage folder" in " ".join(result.output.split())
    assert not storage.exists()
    (storage / "models").mkdir(parents=True)
    run(storage, "list")
    assert [path.name for path in storage.iterdir()] == ["models"]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("applications:\n- args: {storage: /x\n", "cannot be read"),
        ("storage: /x\n", "it has no list 'applications'"),
        ("applications:\n- args: {storage: 7}\n", "'storage' is 7"),
    ],
)
def test_invalid_deploy_file_does_not_select_default_storage(
    content: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    Path("deploy.yaml").write_text(content)
    for arguments in (["keys", "list"], ["keys", "create", "ann", "--role", "read"]):
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 1
        assert fault in " ".join(result.output.split())
    assert not (tmp_path / "home").exists()


def test_deploy_file_without_storage_selects_default_storage(tmp_path: Path) -> None:
    deploy = tmp_path / "deploy.yaml"
    for content in ("applications: []\n", "applications:\n- args:\n- {name: page}\n"):
        deploy.write_text(content)
        assert find_storage(deploy) == Path("~/.tuneserve").expanduser()
    assert find_storage(tmp_path / "none.yaml") == Path("~/.tuneserve").expanduser()


def test_durations_and_expiries_are_parsed() -> None:
    assert [read_duration(given) for given in ("30m", "12h", "90d", "2w")] == [
        1800.0,
        43_200.0,
        7_776_000.0,
        1_209_600.0,
    ]
    assert read_expiry("1970-01-03", now=0.0) == 172_800.0
    assert read_expiry("1h", now=5.0) == 3605.0
