"""Damaged training files: each is accepted or rejected with a message, in bounded time and memory.

`CHAOS_FILES` sets the number of files (200 by default, 2,000 with `make chaos`).
"""

import itertools
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from apps.fine_tuning.cluster.tasks import Task
from apps.fine_tuning.queue import RunQueue
from apps.http_api.dependencies import Services
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from tests.apps.conftest import NotedJobs, build_services
from tests.faults.memory import watch_memory
from tests.faults.mutations import (
    TOOL_RECORDS,
    build_large_file,
    build_seeds,
    list_mutated_rows,
    mutate_bytes,
)
from tests.faults.settings import SEED

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
NUM_FILES = int(os.environ.get("CHAOS_FILES", "200"))
ROWS_PER_FILE = 24
MAX_SECONDS = 20.0
MAX_TASK_SECONDS = 300.0
MAX_GROWTH_BYTES = 400_000_000
MAX_PROCESS_BYTES = 1_000_000_000
ALLOWED = {200, 400, 413}
TOOL_TEMPLATE = (
    "{{ (tools or []) | tojson }}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.id }}{{ c.function | tojson }}</call>{% endfor %}"
    "<|im_end|>{% endgeneration %}{% else %}{{ m.name }}{{ m.content }}<|im_end|>{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
EXECUTE = """
import sys
from apps.fine_tuning.cluster import ray_jobs

from apps.fine_tuning.cluster import tasks

storage, kind, subject = sys.argv[1:]
ray_jobs.execute_task(storage, tasks.Task(kind, subject))
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def layout(layout: StorageLayout, tiny_model: Path, tmp_path: Path) -> StorageLayout:
    """Add a model with a tool template, which file checks use."""
    source = Path(shutil.copytree(tiny_model, tmp_path / "tools"))
    (source / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    models = ModelStore(layout)
    models.add(source, "tools")
    models.point_alias("latest", "tools")
    return layout


@pytest.fixture
def services(layout: StorageLayout, queue: RunQueue) -> Services:
    return build_services(layout, queue, max_upload_bytes=20_000_000)


def make_files(rng: random.Random) -> Iterator[tuple[str, str, bytes]]:
    """Yield a model, a file name and content, with byte and row mutations alternating."""
    seeds = itertools.cycle(build_seeds())
    mutated = {name: list_mutated_rows(name, rng) for name in TOOL_RECORDS}
    names = itertools.cycle(
        name for name, rows in mutated.items() for _ in range(0, len(rows), ROWS_PER_FILE)
    )
    while True:
        name, content = next(seeds)
        yield "tiny", name, mutate_bytes(content, rng)[:9_000]
        name = next(names)
        rows = mutated[name][:ROWS_PER_FILE]
        mutated[name] = mutated[name][ROWS_PER_FILE:] + rows
        yield "tools", f"{name}.jsonl", b"\n".join(rows)


async def test_mutated_file_is_accepted_or_rejected(client: httpx.AsyncClient) -> None:
    statuses: Counter[tuple[str, int]] = Counter()
    process = psutil.Process()
    before_bytes = process.memory_info().rss
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    files = itertools.islice(make_files(random.Random(SEED)), NUM_FILES)
    with watch_memory(process) as memory:
        for model, name, content in files:
            started = time.monotonic()
            await try_file(client, model, name, content, statuses)
            took_s = time.monotonic() - started
            assert took_s < MAX_SECONDS, f"{name} took {took_s:.1f} s: {content!r}"
        memory.note(process)
    print(f"\nseed {SEED}, {NUM_FILES} files:", dict(sorted(statuses.items())))
    print(f"resident {before_bytes / 1e6:,.0f} MB before, at most", memory.peaks)
    own_bytes = memory.peaks.pop(" ".join(process.cmdline())[-60:])
    assert own_bytes - before_bytes < MAX_GROWTH_BYTES
    assert all(peak < MAX_PROCESS_BYTES for peak in memory.peaks.values())
    assert any("render_process" in command for command in memory.peaks)
    assert statuses["create", 200] > NUM_FILES // 100
    assert statuses["create", 400] > NUM_FILES // 50


async def try_file(
    client: httpx.AsyncClient,
    model: str,
    name: str,
    content: bytes,
    statuses: Counter[tuple[str, int]],
) -> None:
    """Upload a file, preview it, create a job with it, and delete both."""

    def check_response(step: str, response: httpx.Response) -> bool:
        status = response.status_code
        assert status in ALLOWED, f"{step} of {name}: {status} {response.text[:500]}: {content!r}"
        if status != 200:
            error = response.json()["error"]
            assert 0 < len(error["message"]) < 4_000, error["message"]
        statuses[step, status] += 1
        return status == 200

    form = {"purpose": "fine-tune"}
    uploaded = await client.post("/v1/files", data=form, files={"file": (name, content)})
    if not check_response("upload", uploaded):
        return
    file_id = uploaded.json()["id"]
    preview = f"/v1/files/{file_id}/preview?rows=20&model={model}"
    check_response("preview", await client.get(preview))
    body = {"model": model, "training_file": file_id}
    created = await client.post("/v1/fine_tuning/jobs", json=body)
    if check_response("create", created):
        job = f"/v1/fine_tuning/jobs/{created.json()['id']}"
        assert (await client.post(f"{job}/cancel")).status_code == 200
        assert (await client.delete(job)).status_code == 200
    assert (await client.delete(f"/v1/files/{file_id}")).status_code == 200


async def test_large_mutated_file_is_rejected_in_bounded_memory(
    client: httpx.AsyncClient, queue: RunQueue, layout: StorageLayout, jobs: NotedJobs
) -> None:
    content = build_large_file(random.Random(SEED))
    assert len(content) > 4 << 20
    form = {"purpose": "fine-tune"}
    uploaded = await client.post("/v1/files", data=form, files={"file": ("chat.jsonl", content)})
    assert uploaded.status_code == 200
    body = {"model": "tools", "training_file": uploaded.json()["id"]}
    created = await client.post("/v1/fine_tuning/jobs", json=body)
    assert (created.status_code, created.json()["status"]) == (200, "validating_files")
    await queue.reconcile()
    task = Task("check_job", created.json()["id"])
    assert task in jobs.tasks
    command = [sys.executable, "-c", EXECUTE, str(layout.root), task.kind, task.subject]
    with (
        subprocess.Popen(command, cwd=ROOT) as process,
        watch_memory(psutil.Process(process.pid)) as memory,
    ):
        assert process.wait(MAX_TASK_SECONDS) == 0
    print("\n", memory.peaks)
    assert max(memory.peaks.values()) < MAX_PROCESS_BYTES
    assert any("render_process" in command for command in memory.peaks)
    jobs.running.clear()
    await queue.reconcile()
    job = (await client.get(f"/v1/fine_tuning/jobs/{task.subject}")).json()
    assert (job["status"], job["error"]["code"]) == ("failed", "invalid_training_file")
    message = job["error"]["message"]
    assert "it has 2,002 messages, expected at most 512" in message
    assert "it has 10,000 tools, expected at most 128" in message
    assert "longer than 4,194,304 bytes" in message
    assert len(message) < 20_000
