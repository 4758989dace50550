"""`make audit` fails on findings, and reports when it cannot check for any."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
AUDIT = ROOT / ".ci" / "audit.py"


class Index(BaseHTTPRequestHandler):
    """An index whose advisories are the server's `vulnerabilities`."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        found = getattr(self.server, "vulnerabilities", [])
        self.wfile.write(json.dumps({"vulnerabilities": found}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def audit(folder: Path, port: int, status: int) -> tuple[int, str, list[str]]:
    """Run the audit with a fake pip-audit that exits with `status`, and return the outcome.

    The outcome is the exit status, the output, and the arguments that pip-audit received.
    """
    received = folder / "received"
    command = folder / "pip-audit"
    command.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {received}\nexit {status}\n')
    command.chmod(0o700)
    done = subprocess.run(
        [sys.executable, AUDIT, "--pip-audit", command, "--index", f"http://127.0.0.1:{port}"],
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, received.read_text().split() if received.exists() else []


@pytest.mark.parametrize("status", [0, 1])
def test_audit_fails_on_findings(tmp_path: Path, index: HTTPServer, status: int) -> None:
    index.vulnerabilities = [{"id": "one"}]  # type: ignore[attr-defined]
    found, _, received = audit(tmp_path, index.server_port, status)
    assert found == status
    assert received[-1] == str(ROOT / "constraints.txt")


def test_index_without_advisories_skips_audit(tmp_path: Path, index: HTTPServer) -> None:
    status, output, received = audit(tmp_path, index.server_port, 1)
    assert (status, received) == (0, [])
    assert "NOT DONE" in output


def test_audit_without_network_does_not_fail(tmp_path: Path) -> None:
    status, output, received = audit(tmp_path, 1, 1)
    assert (status, received) == (0, [])
    assert "NOT DONE" in output
