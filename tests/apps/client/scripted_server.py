"""A server that answers with prepared bytes, for connections that are lost."""

import socket
import threading
from contextlib import closing

LAST_CHUNK = b"0\r\n\r\n"


class ScriptedServer:
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
                self.requests.append(peer.recv(65536).decode(errors="replace"))
                peer.sendall(content)
        self._listening.close()


def write_chunk(content: str) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content.encode()), content.encode())


def answer(*chunks: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    """Return a response; without `LAST_CHUNK` it is cut off."""
    head = f"HTTP/1.1 {status}\r\ntransfer-encoding: chunked\r\nconnection: close\r\n{headers}\r\n"
    return head.encode() + b"".join(chunks)


def answer_json(content: str) -> bytes:
    return answer(write_chunk(content), LAST_CHUNK, headers="content-type: application/json\r\n")


def write_event(number: int) -> bytes:
    return write_chunk(f'id: e{number}\ndata: {{"id":"e{number}"}}\n\n')
