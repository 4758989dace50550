"""Servers that close connections early, are no TuneServe, or are temporarily unreachable."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest
import typer

from apps.cli import connection as module
from apps.cli.connection import Connection, locate
from apps.cli.jobs import _read_log
from apps.cli.watch import follow_events, watch_job
from tests.apps.cli.conftest import Call

PATH = "/v1/fine_tuning/jobs/ftjob-1"
END = b"0\r\n\r\n"


def write_chunk(content: str) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content.encode()), content.encode())


def answer(*chunks: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ntransfer-encoding: chunked\r\nconnection: close\r\n{headers}\r\n"
    return head.encode() + b"".join(chunks)


def answer_json(content: str) -> bytes:
    return answer(write_chunk(content), END, headers="content-type: application/json\r\n")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    monkeypatch.setattr(module, "_PATIENCE_S", 0.2)


class Scripted:
    """A server that answers each request with the next of `answers` and closes the connection."""

    def __init__(self, *answers: bytes) -> None:
        self.requests: list[str] = []
        self._answers = list(answers)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        for content in self._answers:
            peer, _ = self._listening.accept()
            with closing(peer):
                self.requests.append(peer.recv(65536).decode())
                peer.sendall(content)
        self._listening.close()


def write_event(number: int) -> bytes:
    return write_chunk(f'id: e{number}\ndata: {{"id":"e{number}"}}\n\n')


def test_events_are_whole_though_every_answer_breaks_off() -> None:
    up = answer_json("{}")
    server = Scripted(
        answer(write_event(1), write_event(2)[:-5]),
        up,
        answer(write_event(2), write_event(3)),
        up,
        answer(END, status="204 No Content"),
    )
    seen = [event["id"] for event in follow_events(Connection(server.url), "ftjob-1")]
    assert seen == ["e1", "e2", "e3"]
    asked = [request for request in server.requests if f"GET {PATH}/events" in request]
    assert ["last-event-id: e1" in asked[1], "last-event-id: e3" in asked[2]] == [True, True]


def test_a_log_is_whole_though_an_answer_breaks_off() -> None:
    server = Scripted(
        answer(write_chunk("one\n"), headers="x-log-offset: 5\r\n"),
        answer_json("{}"),
        answer_json('{"status": "running"}'),
        answer(write_chunk("two\n"), END, headers="x-log-offset: 9\r\n"),
        answer_json("{}"),
        answer_json('{"status": "succeeded"}'),
        answer(write_chunk("three\n"), END, headers="x-log-offset: 13\r\n"),
    )
    pieces = _read_log(Connection(server.url), "ftjob-1", 64, follow=True)
    assert b"".join(pieces) == b"one\ntwo\nthree\n"
    asked = [line for line in server.requests if f"GET {PATH}/logs" in line]
    assert ["offset=9" in asked[1], "offset=13" in asked[2]] == [True, True]


def test_one_who_does_not_come_back_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    server = Scripted(answer(write_event(1)))
    events = follow_events(Connection(server.url), "ftjob-1")
    assert next(events)["id"] == "e1"
    with pytest.raises(typer.Exit) as ended:
        next(events)
    assert ended.value.exit_code == 1
    assert "cannot be reached" in capsys.readouterr().err


def test_who_is_patient_waits_for_one_that_is_away() -> None:
    away = answer(END, status="503 Service Unavailable")
    server = Scripted(away, away, answer_json("{}"), answer_json('{"id": "x"}'))
    assert Connection(server.url).ask("GET", PATH, is_patient=True) == {"id": "x"}
    impatient = Scripted(away)
    with pytest.raises(typer.Exit):
        Connection(impatient.url).ask("GET", PATH)


def test_another_server_is_told_from_ours(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        Connection(Scripted(answer(write_chunk("<html>"), END)).url).ask("GET", PATH)
    assert "is no Tuneserve" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://[::1", "x", "ftp://127.0.0.1"])
def test_what_is_no_address_is_said(call: Call, url: str) -> None:
    status, said = call("jobs", "list", "--url", url)
    assert (status, "error: " in said, url in said) == (1, True, True)


def test_a_key_that_cannot_be_sent_is_said(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESERVE_API_KEY", "schlüssel")
    status, said = call("jobs", "list")
    assert (status, "TUNESERVE_API_KEY" in said) == (1, True)


@pytest.mark.parametrize("identifier", ["../../models/m", "prod#2", "a?b", "a/b"])
def test_an_id_leads_nowhere_else(call: Call, identifier: str) -> None:
    path = httpx.URL("http://x").join(locate("/v1/models", identifier)).raw_path.decode()
    assert path.startswith("/v1/models/")
    assert path.count("/") == 3
    status, said = call("models", "delete", identifier)
    assert (status, "error: " in said) == (1, True)


@pytest.mark.parametrize("identifier", ["", ".", ".."])
def test_what_is_no_id_is_said(call: Call, identifier: str) -> None:
    assert call("jobs", "delete", identifier) == (1, f"error: {identifier!r} is no id")


def test_no_proxy_gets_what_is_for_this_machine(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert call("models", "list")[0] == 0


def test_who_stops_watching_did_not_see_it_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> Iterator[dict[str, str]]:
        raise KeyboardInterrupt

    monkeypatch.setattr("apps.cli.watch.follow_events", interrupt)
    with pytest.raises(typer.Exit) as ended:
        watch_job(Connection("http://127.0.0.1:9"), "ftjob-1", as_json=True)
    assert ended.value.exit_code == 130


def test_a_file_that_cannot_be_written_is_said(call: Call) -> None:
    status, said = call("models", "export", "tiny", "/nowhere/at/all.tar")
    assert (status, "error: " in said, "/nowhere/at" in said) == (1, True, True)
