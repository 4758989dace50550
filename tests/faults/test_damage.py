"""Truncated, flipped, emptied and missing bytes in every kind of file of a storage.

One damaged entry never hides the others, never stops the queue, never causes a 4xx status, and
loses no data: after its bytes are restored, everything is as before.
"""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import torch.distributed

from apps.file_store import FileStore
from apps.fine_tuning.queue import RunQueue
from apps.fine_tuning.validation.row_validation import check_file
from apps.http_api.app import build_http
from serving.store.handover_log import HandoverEvent, HandoverLog
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout, open_storage
from tests.apps.conftest import NotedJobs, build_services, create_run
from tests.apps.evaluations.conftest import add_stored
from tests.faults.stored_kinds import DAMAGED
from tests.training.checkpoint.test_format import ALONE, FakeEngine, make_progress
from training.checkpoint.writer import CheckpointWriter
from training.run.folder import RunFolder

pytestmark = pytest.mark.anyio

FAULTS = ("gone", "cut", "flipped", "empty", "garbage", "folder")
FIGURES = dict.fromkeys(
    ("loss", "learning_rate", "num_steps", "epoch", "tokens_per_s", "elapsed_s", "remaining_s"), 1.0
)
ROW = b'{"prompt": "How many loaves?", "completion": "Twelve."}\n'
LISTS = ("/v1/models", "/v1/files", "/v1/fine_tuning/jobs", "/v1/aliases", "/v1/evaluations")


def inject(file: Path, fault: str) -> None:
    """Damage a file as a disk fault or an operator's mistake would."""
    content = bytearray(file.read_bytes())
    file.unlink()
    if fault == "gone":
        return
    if fault == "folder":
        file.mkdir()
    elif fault == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif fault == "empty":
        file.touch()
    elif fault == "garbage":
        file.write_bytes(bytes(range(256)))
    else:
        assert fault == "flipped"
        content[len(content) // 2] ^= 0x80
        file.write_bytes(content)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Whole:
    """A storage with two entries of each kind: 'bad', which is damaged, and 'good'."""

    def __init__(self, root: Path, tiny_model: Path) -> None:
        self.layout: StorageLayout = open_storage(root)
        self.models = ModelStore(self.layout)
        self.files = FileStore(self.layout)
        self.jobs = NotedJobs()
        self.queue = RunQueue(self.layout, self.jobs, max_concurrent_runs=10)
        source = Path(shutil.copytree(tiny_model, root.parent / "source"))
        (source / "lineage.json").write_text('{"run_id": "ftjob-1"}\n')
        for name in ("good", "bad"):
            self.models.add(source, name)
            self.files.add(f"file-{name}", ROW * 4, "rows.jsonl")
            add_stored(self.layout, f"eval-{name}")
        self.models.point_alias("latest", "good")
        HandoverLog(self.layout.store.handovers).add(
            HandoverEvent("latest", "moved", "good", None, "")
        )
        services = build_services(self.layout, self.queue)
        transport = httpx.ASGITransport(build_http(services, None), raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000")

    async def list_ids(self) -> dict[str, set[str]]:
        """Return the ids in every list, by path."""
        found = {}
        for path in LISTS:
            answer = await self.client.get(path)
            found[path] = (
                {entry["id"] for entry in answer.json()["data"]}
                if answer.status_code == 200
                else {f"status {answer.status_code}"}
            )
        return found


@pytest.fixture
async def whole(tmp_path: Path, tiny_model: Path) -> AsyncIterator[Whole]:
    whole = Whole(tmp_path / "storage", tiny_model)
    yield whole
    whole.queue.close()


async def queue_run(whole: Whole, model: str) -> RunFolder:
    run = await create_run(whole.queue, f"file-{model}", model=model)
    run.metrics.add({"step": 1.0, **FIGURES})
    return run


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """The process group that saving a checkpoint needs, even with one worker."""
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


async def add_results(whole: Whole, run: RunFolder) -> None:
    """Add the files that jobs, checks and requests write."""
    check_file(whole.layout, "file-bad")
    run.log_file.write_text("a line of the log\n")
    writer = CheckpointWriter(run.checkpoints, ALONE, num_kept=2)
    writer.save(FakeEngine(), make_progress(3))
    writer.finish()
    for model in ("bad", "good"):
        moved = await whole.client.put("/v1/aliases/latest", json={"model": model})
        assert moved.status_code == 200


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("kind", DAMAGED)
async def test_damaged_entry_does_not_affect_other_entries(whole: Whole, kind: str) -> None:
    bad = await queue_run(whole, "bad")
    good = await queue_run(whole, "good")
    await whole.queue.pause(bad.path.name)  # so that the queue reads the run but does not start it
    await add_results(whole, bad)
    names = {"run": bad.path.name, "model": "bad", "file": "file-bad", "evaluation": "eval-bad"}
    (file,) = whole.layout.root.glob(DAMAGED[kind].format_map(names))
    before = await whole.list_ids()
    content = file.read_bytes()
    for number, fault in enumerate(FAULTS):
        inject(file, fault)
        after = await whole.list_ids()
        for path in LISTS:
            missing = before[path] - after[path]
            assert all("bad" in name or name == bad.path.name for name in missing), (fault, missing)
            assert not any(name.startswith("status 4") for name in after[path]), (fault, after)
        assert (await whole.client.get("/healthz")).status_code not in range(400, 500), fault
        await whole.queue.reconcile()
        if number == 0:
            assert good.path.name in whole.jobs.started, "the queue starts the other run"
        for path in (
            f"/v1/fine_tuning/jobs/{bad.path.name}",
            f"/v1/fine_tuning/jobs/{bad.path.name}/checkpoints",
            f"/v1/fine_tuning/jobs/{bad.path.name}/logs",
            "/v1/files/file-bad",
            "/v1/models/bad/lineage",
            "/v1/evaluations/eval-bad",
            "/v1/evaluations/eval-bad/rows",
        ):
            await whole.client.get(path)
        assert file.parent.is_dir(), f"{fault}: nothing is removed"
        restore(file, content)
        await whole.queue.reconcile()
        assert await whole.list_ids() == before, (
            f"{fault}: all entries are listed after its bytes are restored"
        )


def restore(file: Path, content: bytes) -> None:
    if file.is_dir():
        shutil.rmtree(file)
    file.write_bytes(content)
