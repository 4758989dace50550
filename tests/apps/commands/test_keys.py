"""`tuneserve keys`, without an application."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from apps.access.keys import KeyStore
from apps.cli import cli
from apps.commands.keys import read_duration, read_expiry
from storage.layout import open_storage


def run(storage: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["keys", *arguments, "--storage", str(storage)])


def ask(storage: Path, *arguments: str) -> Any:
    result = run(storage, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_key_is_shown_once_alone_on_standard_output(tmp_path: Path) -> None:
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


def test_keys_are_listed_rotated_and_revoked_for_programs(tmp_path: Path) -> None:
    limits = ("--requests-per-minute", "60", "--tokens-per-minute", "1000")
    created = ask(tmp_path, "create", "ci", "--role", "chat", *limits)
    assert (created["requests_per_minute"], created["tokens_per_minute"]) == (60, 1000)
    rotated = ask(tmp_path, "rotate", "ci", "--grace", "1h")
    assert rotated["key"] != created["key"]
    assert [each["state"] for each in ask(tmp_path, "list")] == ["active", "active"]
    ask(tmp_path, "revoke", created["id"])
    assert [each["state"] for each in ask(tmp_path, "list")] == ["revoked", "active"]
    assert "sha256" not in ask(tmp_path, "list")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "a b", "--role", "read"), "not a valid key name"),
        (("create", "ann", "--role", "read", "--expires", "soon"), "expected a duration"),
        (("create", "ann", "--role", "read", "--expires", "2020-01-01"), "in the past"),
        (("revoke", "nobody"), "no active key has the name or id 'nobody'"),
        (("rotate", "nobody", "--grace", "x"), "expected a number and m, h, d or w"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    result = run(tmp_path, *arguments)
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "keys.json").exists()


def test_the_deploy_file_names_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "here"
    Path("deploy.yaml").write_text(f"applications:\n- args:\n    storage: {root}\n")
    result = CliRunner().invoke(cli, ["keys", "create", "ann", "--role", "read"])
    assert result.exit_code == 0
    assert KeyStore(open_storage(root)).has_keys()
    missing = CliRunner().invoke(cli, ["keys", "list", "--deploy", "other.yaml"])
    assert missing.exit_code == 1


def test_times_are_read() -> None:
    assert [read_duration(given) for given in ("30m", "12h", "90d", "2w")] == [
        1800.0,
        43_200.0,
        7_776_000.0,
        1_209_600.0,
    ]
    assert read_expiry("1970-01-03", now=0.0) == 172_800.0
    assert read_expiry("1h", now=5.0) == 3605.0
