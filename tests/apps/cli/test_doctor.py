import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from apps.cli import preflight
from apps.cli.doctor import examine
from apps.cli.main import cli


@pytest.fixture(autouse=True)
def healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    for name in ("RAY_ADDRESS", "TUNESERVE_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def write_settings(folder: Path, port: int, storage: Path) -> Path:
    deploy = folder / "deploy.yaml"
    args = f"{{storage: {json.dumps(str(storage))}}}"
    deploy.write_text(
        f"http_options:\n  port: {port}\napplications:\n- {{name: tuneserve, args: {args}}}\n"
    )
    return deploy


def find(deploy: Path, subject: str) -> tuple[str, str]:
    (found,) = [one for one in examine(deploy) if one.subject.startswith(subject)]
    return found.verdict, found.text


def test_doctor_reports_on_all_subjects(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    deploy = write_settings(tmp_path, port, tmp_path / "storage")
    found = {one.subject: one.verdict for one in examine(deploy)}
    assert {"Python", "ray", "torch", "processor", "compiler", "storage", "access"} <= set(found)
    assert found[f"port {port}"] == "good"
    assert found["access"] == "note"
    done = CliRunner().invoke(cli, ["doctor", str(deploy), "--json"])
    assert {one["subject"] for one in json.loads(done.output)} == set(found)
    assert done.exit_code == ("fault" in found.values())


def test_doctor_fault_has_value_found_and_instruction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        deploy = write_settings(tmp_path, port, tmp_path / "storage")
        assert find(deploy, "port")[0] == "fault"
        done = CliRunner().invoke(cli, ["doctor", str(deploy)])
        assert done.exit_code == 1
        assert "stop that program" in " ".join(done.output.split())
    monkeypatch.setenv("CXX", "no-such-compiler")
    verdict, text = find(deploy, "compiler")
    assert (verdict, "'no-such-compiler'" in text) == ("fault", True)
    monkeypatch.setenv("TUNESERVE_API_KEY", "s3cret")
    assert "s3cret" not in find(deploy, "access")[1]


def test_running_application_on_port_is_no_fault(tmp_path: Path, url: str) -> None:
    port = int(url.rpartition(":")[2])
    deploy = write_settings(tmp_path, port, tmp_path / "storage")
    assert find(deploy, "port") == ("good", "in use by Tuneserve, which is running")
    (fault,) = preflight.check_port(port)
    assert "already running" in fault


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"code": "starting"}},
        {"status": "failed", "checks": {"storage": "ok", "generator": "failed"}},
        {"status": "draining", "requests_in_progress": 1},
    ],
)
def test_application_that_starts_or_drains_is_recognized(
    body: dict[str, Any],
) -> None:
    with serve_answer(503, json.dumps(body).encode()) as port:
        assert preflight.is_application_running(port)


def test_foreign_program_on_port_is_fault(tmp_path: Path) -> None:
    with serve_answer(200, b'["ok"]') as port:
        verdict, text = find(write_settings(tmp_path, port, tmp_path / "storage"), "port")
    assert (verdict, "another program" in text) == ("fault", True)


@contextmanager
def serve_answer(status: int, body: bytes) -> Iterator[int]:
    """Answer every GET request with the same response; yields the port."""

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_unwritable_storage_is_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    verdict, text = find(write_settings(tmp_path, 1, tmp_path / "file" / "storage"), "storage")
    assert (verdict, "cannot be written" in text) == ("fault", True)


def test_missing_deploy_file_is_note(tmp_path: Path) -> None:
    assert find(tmp_path / "deploy.yaml", "settings")[0] == "note"


def test_invalid_deploy_file_is_fault_and_storage_is_not_examined(tmp_path: Path) -> None:
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text("applications: {")
    verdict, text = find(deploy, "settings")
    assert verdict == "fault"
    assert "cannot be read" in text
    assert "storage" not in {one.subject for one in examine(deploy)}
