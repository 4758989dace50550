"""Messages and exit statuses of commands whose requests fail or are interrupted."""

import os
import signal
import socket
import threading
from contextlib import closing

import pytest
import typer

from apps.cli.connection import run_with_api
from apps.cli.watch import watch_job
from apps.client.client import ApiClient
from apps.client.resources import Job
from tests.apps.cli.conftest import Call
from tests.apps.client.scripted_server import (
    LAST_CHUNK,
    ScriptedServer,
    answer,
    write_chunk,
    write_event,
)


async def get_job(api: ApiClient) -> Job:
    return await api.jobs.get("ftjob-1")


def fail(url: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a request that fails, and return the message on one line."""
    with pytest.raises(typer.Exit) as ended:
        run_with_api(url, get_job)
    assert ended.value.exit_code == 1
    return " ".join(capsys.readouterr().err.split())


def test_unreachable_application_error_has_url_and_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    message = fail(f"{url}/", capsys)
    assert message.startswith(f"error: {url} cannot be reached: [Errno ")
    assert message.endswith(
        "Connection refused; start it with 'tuneserve run', or set another address with --url"
    )


def test_response_of_foreign_server_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    url = ScriptedServer(answer(write_chunk("<html>"), LAST_CHUNK)).url
    assert fail(url, capsys) == f"error: the server at {url} is not Tuneserve"


def test_missing_key_error_names_environment_variable(capsys: pytest.CaptureFixture[str]) -> None:
    body = write_chunk('{"error": {"message": "a key is needed"}}')
    url = ScriptedServer(answer(body, LAST_CHUNK, status="401 Unauthorized")).url
    expected = "error: a key is needed; set TUNESERVE_API_KEY to the application's key"
    assert fail(url, capsys) == expected


@pytest.mark.parametrize("url", ["http://[::1", "x", "ftp://127.0.0.1"])
def test_invalid_url_error_names_option(call: Call, url: str) -> None:
    status, output = call("jobs", "list", "--url", url)
    assert (status, output.startswith(f"error: --url {url!r}: ")) == (1, True)


def test_non_ascii_key_is_refused(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESERVE_API_KEY", "schlüssel")
    status, output = call("jobs", "list")
    assert (status, "TUNESERVE_API_KEY" in output) == (1, True)


@pytest.mark.parametrize("identifier", ["../../models/m", "prod#2", "a?b", "a/b"])
def test_id_with_path_characters_cannot_address_another_route(call: Call, identifier: str) -> None:
    status, output = call("models", "delete", identifier)
    assert (status, "error: " in output) == (1, True)


@pytest.mark.parametrize("identifier", ["", ".", ".."])
def test_invalid_id_error_names_id(call: Call, identifier: str) -> None:
    assert call("jobs", "delete", identifier) == (1, f"error: {identifier!r} is not a valid id")


def test_local_requests_bypass_proxy(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert call("models", "list")[0] == 0


def test_unwritable_export_file_error_names_path(call: Call) -> None:
    status, output = call("models", "export", "tiny", "/nowhere/at/all.tar")
    assert (status, "error: " in output, "/nowhere/at" in output) == (1, True, True)


def test_ctrl_c_stops_watching_job(capsys: pytest.CaptureFixture[str]) -> None:
    """The server sends one event and leaves the stream open."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" ignores it
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ended = threading.Event()

        def serve() -> None:
            peer, _ = listening.accept()
            with closing(peer):
                peer.recv(65536)
                peer.sendall(answer(write_event(1)))
                os.kill(os.getpid(), signal.SIGINT)
                ended.wait()

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        try:
            with pytest.raises(typer.Exit) as stopped:
                watch_job(f"http://127.0.0.1:{listening.getsockname()[1]}", "ftjob-1", as_json=True)
        finally:
            ended.set()
            serving.join()
            signal.signal(signal.SIGINT, before)
    assert stopped.value.exit_code == 130
    assert "stopped watching; ftjob-1 continues" in capsys.readouterr().err
