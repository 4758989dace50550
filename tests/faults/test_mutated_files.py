"""Files of rows with random damage: each is taken or refused in words, soon, in bounded memory.

`CHAOS_FILES` sets how many are tried (200 by default, 2,000 with `make chaos`).
"""

import json
import os
import random
import time
from collections import Counter

import httpx
import psutil
import pytest

from apps.services import Services
from tests.faults.settings import SEED

pytestmark = pytest.mark.anyio

NUM_FILES = int(os.environ.get("CHAOS_FILES", "200"))
MAX_SECONDS = 20.0
MAX_GROWTH_BYTES = 400_000_000
ALLOWED = {200, 400, 413}
# What parsers, templates and tokenizers have stumbled over elsewhere.
TOKENS = [
    b"",
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\\ud800",
    b"\xed\xa0\x80",
    b"\\u0000",
    b"null",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 5_000,
    b"[" * 2_000,
    b'{"a":' * 500,
    b'"' * 3,
    b"\r",
    b"\r\n",
    b"\xe2\x80\xa8",
    b"<|im_end|>",
    b"{{ 1 / 0 }}",
    b"{% for x in range(10) %}",
    b"=HYPERLINK(1)",
    b"\t",
    b",,,,",
    b"\x1b[31m",
    "\U0001d518\u200d\u202e".encode(),
    b"A" * 20_000,
]


def build_seeds() -> list[tuple[str, bytes]]:
    """Return a whole file of each format, by its name."""
    question, answer = "How many loaves?", "Twelve."
    records = {
        "chat": {
            "messages": [
                {"role": "system", "content": "Be short."},
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer, "weight": 1},
            ]
        },
        "prompt": {"prompt": question, "completion": answer},
        "alpaca": {"instruction": question, "input": "", "output": answer},
        "sharegpt": {
            "conversations": [
                {"from": "human", "value": question},
                {"from": "gpt", "value": answer},
            ]
        },
        "text": {"text": f"{question} {answer}"},
    }
    seeds = []
    for name, record in records.items():
        line = json.dumps(record).encode() + b"\n"
        seeds.append((f"{name}.jsonl", line * 6))
        seeds.append((f"{name}.json", json.dumps([record] * 6, indent=1).encode()))
    row = f'"{question}",{answer}\n'
    seeds.append(("rows.csv", f"prompt,completion\n{row * 6}".encode()))
    seeds.append(("rows.tsv", f"prompt\tcompletion\n{question}\t{answer}\n".encode() * 3))
    return seeds


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Damage a file in one to four places."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(content) + 1)
        end = min(len(content), start + rng.randint(1, 30))
        before, cut, after = content[:start], content[start:end], content[end:]
        middle = rng.choice(
            [
                rng.choice(TOKENS) + cut,  # inserted
                rng.choice(TOKENS),  # replaced
                b"",  # removed
                cut * 3,  # repeated
                rng.randbytes(len(cut)),  # overwritten
            ]
        )
        content = before + middle + (b"" if rng.random() < 0.1 else after)
    return content


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_mutated_file_is_taken_or_refused(
    client: httpx.AsyncClient, services: Services
) -> None:
    rng = random.Random(SEED)
    seeds = build_seeds()
    statuses: Counter[tuple[str, int]] = Counter()
    process = psutil.Process()
    before_bytes = largest_bytes = process.memory_info().rss
    for number in range(NUM_FILES):
        name, content = seeds[number % len(seeds)]
        content = mutate(content, rng)[:9_000]
        started = time.monotonic()
        await try_file(client, name, content, statuses)
        took_s = time.monotonic() - started
        assert took_s < MAX_SECONDS, f"{name} took {took_s:.1f} s: {content!r}"
        largest_bytes = max(largest_bytes, process.memory_info().rss)
    print(f"\nseed {SEED}, {NUM_FILES} files:", dict(sorted(statuses.items())))
    print(f"resident {before_bytes / 1e6:,.0f} MB before, at most {largest_bytes / 1e6:,.0f} MB")
    assert largest_bytes - before_bytes < MAX_GROWTH_BYTES
    assert statuses["create", 200] > NUM_FILES // 50
    assert statuses["create", 400] > NUM_FILES // 50


async def try_file(
    client: httpx.AsyncClient, name: str, content: bytes, statuses: Counter[tuple[str, int]]
) -> None:
    """Upload a file, preview it, create a job of it, and take both away again."""

    def note(step: str, response: httpx.Response) -> bool:
        status = response.status_code
        assert status in ALLOWED, f"{step} of {name}: {status} {response.text[:500]}: {content!r}"
        if status != 200:
            error = response.json()["error"]
            assert 0 < len(error["message"]) < 4_000, error["message"]
        statuses[step, status] += 1
        return status == 200

    form = {"purpose": "fine-tune"}
    uploaded = await client.post("/v1/files", data=form, files={"file": (name, content)})
    if not note("upload", uploaded):
        return
    file_id = uploaded.json()["id"]
    note("preview", await client.get(f"/v1/files/{file_id}/preview", params={"rows": 20}))
    body = {"model": "tiny", "training_file": file_id}
    created = await client.post("/v1/fine_tuning/jobs", json=body)
    if note("create", created):
        job = f"/v1/fine_tuning/jobs/{created.json()['id']}"
        assert (await client.post(f"{job}/cancel")).status_code == 200
        assert (await client.delete(job)).status_code == 200
    assert (await client.delete(f"/v1/files/{file_id}")).status_code == 200
