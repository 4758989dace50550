"""Upload and download of a file of two gigabytes, while the API's memory stays small."""

import threading
from collections.abc import Iterator
from contextlib import suppress

import httpx
import psutil
import pytest

from tests.e2e.conftest import Application
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SIZE_BYTES = 2_000_000_000
MAX_API_BYTES = 300_000_000
LINE = b"x" * (1 << 20)
BOUNDARY = "b0und"
HEADERS = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


def make_form(num_bytes: int) -> Iterator[bytes]:
    """Yield a form whose file is one endless word, so that its check ends immediately."""
    disposition = b'content-disposition: form-data; name="%b"'
    yield b"--b0und\r\n" + disposition % b"purpose" + b"\r\n\r\nfine-tune\r\n"
    yield b"--b0und\r\n" + disposition % b"file" + b'; filename="big.jsonl"\r\n\r\n'
    for start in range(0, num_bytes, len(LINE)):
        yield LINE[: num_bytes - start]
    yield b"\r\n--b0und--\r\n"


def find_api(application: Application) -> psutil.Process:
    processes = psutil.Process(application.process.pid).children(recursive=True)
    (api,) = (one for one in processes if "ServeReplica:tuneserve:Api" in one.name())
    return api


@pytest.fixture
def peak(application: Application) -> Iterator[list[int]]:
    """The peak memory of the API during the test, in bytes."""
    api, peak_bytes, ended = find_api(application), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            peak_bytes[0] = max(peak_bytes[0], api.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield peak_bytes
    ended.set()
    watcher.join()


def list_folders(application: Application) -> set[str]:
    return {path.name for path in (application.storage / "files").iterdir()}


def test_upload_and_download_of_two_gigabytes_use_little_memory(
    application: Application, peak: list[int]
) -> None:
    before = find_api(application).memory_info().rss
    answer = httpx.post(
        f"{application.url}/v1/files", content=make_form(SIZE_BYTES), headers=HEADERS, timeout=300
    )
    assert answer.status_code == 200, answer.text
    file = answer.json()
    assert file["bytes"] == SIZE_BYTES
    print(f"the API had {before / 1e6:.0f} MB before and {peak[0] / 1e6:.0f} MB at most")
    assert peak[0] < MAX_API_BYTES
    url = f"{application.url}/v1/files/{file['id']}"
    with httpx.stream("GET", f"{url}/content", timeout=60) as content:
        assert sum(map(len, content.iter_raw())) == SIZE_BYTES
    print(f"and {peak[0] / 1e6:.0f} MB at most when it was fetched")
    assert peak[0] < MAX_API_BYTES
    wait_until(lambda: httpx.get(url).json()["status"] != "uploaded", 120, "the file is checked")
    assert httpx.get(url).json()["status"] == "error"
    assert httpx.delete(url).json()["deleted"]


def test_aborted_upload_leaves_no_files(application: Application) -> None:
    before = list_folders(application)

    def abort_upload() -> Iterator[bytes]:
        pieces = make_form(SIZE_BYTES)
        for _ in range(100):
            yield next(pieces)
        wait_until(lambda: list_folders(application) != before, 30, "the upload has begun")
        raise ConnectionAbortedError

    with suppress(ConnectionAbortedError):
        httpx.post(
            f"{application.url}/v1/files", content=abort_upload(), headers=HEADERS, timeout=60
        )
    wait_until(lambda: list_folders(application) == before, 30, "the partial upload is removed")
    assert httpx.get(f"{application.url}/healthz", timeout=10).status_code == 200
