"""The real application: `serve run deploy.yaml` with its own port and storage root."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from openai import OpenAI
from playwright.sync_api import expect

from apps.server.server_process import build_command, build_environment, stop_server
from benchmarks.application import find_free_port, write_deploy_file
from tests.e2e.stub_slot import address, page_of_slot, sample_address, stub, stub_slot
from tests.forked_workers import fork_workers
from tests.waiting import PATIENCE, wait_until

__all__ = ["address", "page_of_slot", "sample_address", "stub", "stub_slot"]

START_TIMEOUT_S = 240.0
BROWSER_PATIENCE_MS = 60_000 * PATIENCE
ALLOWED_LOOP = "examples.loops.bert_mrpc:train_func"
ROOT = Path(__file__).parent.parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that use the application last, because it uses a third of a core while it runs."""
    items.sort(key=lambda item: "application" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session", autouse=True)
def browser_patience() -> None:
    """Wait longer for a page than Playwright's 5 s, which a busy machine exceeds."""
    expect.set_options(timeout=BROWSER_PATIENCE_MS)


@dataclass(frozen=True)
class Application:
    """A running application, and OpenAI's own client connected to it."""

    url: str
    storage: Path
    log: Path
    process: "subprocess.Popen[bytes]"
    client: OpenAI

    def stop(self) -> None:
        self.client.close()
        stop_server(self.process)


def start_application(
    deploy: Path, folder: Path, port: int, python: Path = Path(sys.executable)
) -> Application:
    """Start `serve run` and wait until the API and the page answer."""
    log = folder / "serve.log"
    environment = build_environment(python)
    if python != Path(sys.executable):  # an installed wheel, not this checkout
        environment.pop("PYTHONPATH", None)
    with log.open("ab") as output:
        process = subprocess.Popen(
            build_command(Path(deploy.name), python),
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    url = f"http://127.0.0.1:{port}"
    client = OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=120)
    application = Application(url, folder / "storage", log, process, client)
    try:
        wait_until(lambda: is_up(application), START_TIMEOUT_S, "the application answers")
    except BaseException:
        application.stop()
        print(log.read_text(errors="replace")[-8000:])
        raise
    return application


def is_up(application: Application) -> bool:
    assert application.process.poll() is None, application.log.read_text(errors="replace")[-8000:]
    try:
        return all(
            httpx.get(f"{application.url}{path}", timeout=10).status_code == 200
            for path in ("/healthz", "/ui/")
        )
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="session", autouse=True)
def ray_folder() -> Iterator[None]:
    """Use a separate folder for Ray's files, so that tests do not join another local cluster.

    The folder is not below pytest's own, because paths of Ray's sockets have at most 107 bytes.
    """
    folder = tempfile.mkdtemp(prefix="tuneserve-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.delenv("RAY_ADDRESS", raising=False)
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def application(
    tmp_path_factory: pytest.TempPathFactory, worker_server: str
) -> Iterator[Application]:
    folder = tmp_path_factory.mktemp("application")
    port = find_free_port()
    deploy = write_deploy_file(ROOT / "deploy.yaml", folder, port, allowed_loops=[ALLOWED_LOOP])
    with fork_workers(worker_server):
        running = start_application(deploy, folder, port)
    yield running
    running.stop()


@pytest.fixture
def http(application: Application) -> Iterator[httpx.Client]:
    """A client for requests that OpenAI's client cannot send."""
    with httpx.Client(base_url=application.url, timeout=120) as client:
        yield client
