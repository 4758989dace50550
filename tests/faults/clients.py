"""Clients that generate load on an application while its processes are killed."""

import hashlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import openai
from openai import OpenAI

from tests.faults.ledger import MAX_RUNNING, MOVES_PER_ALIAS, Ledger, Move

BASE_MODEL, OTHER_MODEL = "tiny", "other"
MAX_UNFINISHED = 3  # one more than MAX_RUNNING, so that one job is queued
ROWS = [
    {"prompt": f"What comes after {number}{' please' * (number % 5)}?", "completion": f"{number}."}
    for number in range(60)
]
SETTINGS = {
    "num_workers": 1,
    "cpus_per_worker": 0.4,
    "epochs": 10,
    "learning_rate": 0.003,
    "micro_batch_tokens": 256,
    "save_every_steps": 15,
    "max_failures": 100,
}
_FINAL = {"succeeded", "failed", "cancelled"}


class Clients:
    """Threads that upload, create jobs, move an alias and chat, and record acknowledged requests.

    After a rejected or failed request, the client sends another one later with different content:
    only requests that were answered with success count.
    """

    def __init__(
        self, base_url: str, ledger: Ledger, *, seed: int, max_jobs: int | None = None
    ) -> None:
        self.ledger = ledger
        self._client = OpenAI(base_url=base_url, api_key="unused", max_retries=0, timeout=60)
        self._max_jobs = max_jobs
        self._seed = seed
        self._over = threading.Event()
        self._failures: list[BaseException] = []
        self._rows_file: str | None = None

    @contextmanager
    def work(self) -> Iterator[None]:
        """Run all clients while the body runs; raises an unexpected error of a client."""
        tasks = (self._upload, self._create_job, self._move_alias, self._chat, self._stream)
        threads = [
            threading.Thread(target=self._repeat, args=(task, number))
            for number, task in enumerate(tasks)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
        self.check()

    def check(self) -> None:
        """Raise the first error of a client that a killed process does not explain."""
        if self._failures:
            raise self._failures[0]

    def _repeat(self, task: Callable[[random.Random, int], None], number: int) -> None:
        rng = random.Random(f"{self._seed}-{number}")
        for turn in count():
            try:
                task(rng, turn)
            except openai.APIStatusError as exc:
                is_starting = exc.status_code == 404 and not isinstance(exc.body, dict)
                if exc.status_code < 500 and exc.status_code not in (409, 429) and not is_starting:
                    self._failures.append(exc)
                    return
                self.ledger.note_outcome(f"{task.__name__[1:]} {exc.status_code}")
                if exc.status_code == 500:
                    self.ledger.note_error(f"{task.__name__[1:]}: {exc.response.text[:1000]}")
            except openai.APIConnectionError:
                self.ledger.note_outcome(f"{task.__name__[1:]} broken")
            except openai.APIError:  # an error within a stream that had begun
                self.ledger.note_outcome(f"{task.__name__[1:]} cut")
            except BaseException as exc:  # noqa: BLE001 - re-raised by `check`
                self._failures.append(exc)
                return
            if self._over.wait(rng.uniform(0.2, 1.0)):
                return

    def _upload(self, rng: random.Random, turn: int) -> None:
        content = b"".join(
            json.dumps({"prompt": f"{turn} {rng.random()}", "completion": "Yes."}).encode() + b"\n"
            for _ in range(rng.randint(1, 400))
        )
        file = self._client.files.create(file=("some.jsonl", content), purpose="fine-tune")
        with self.ledger.lock:
            self.ledger.files[file.id] = hashlib.sha256(content).hexdigest()
        self.ledger.note_outcome("upload ok")
        self._over.wait(4.0)  # a few files a minute are enough

    def _create_job(self, rng: random.Random, turn: int) -> None:
        if self._max_jobs is not None and len(self.ledger.jobs) >= self._max_jobs:
            self._over.wait(1.0)
            return
        if self._rows_file is None:
            content = "".join(f"{json.dumps(row)}\n" for row in ROWS).encode()
            file = self._client.files.create(file=("rows.jsonl", content), purpose="fine-tune")
            self._rows_file = file.id
        jobs = self._client.fine_tuning.jobs.list(limit=100).data
        assert sum(job.status == "running" for job in jobs) <= MAX_RUNNING
        if sum(job.status not in _FINAL for job in jobs) >= MAX_UNFINISHED:
            return
        job = self._client.fine_tuning.jobs.create(
            model=BASE_MODEL, training_file=self._rows_file, extra_body={"training": SETTINGS}
        )
        with self.ledger.lock:
            self.ledger.jobs.append(job.id)
        self.ledger.note_outcome("create_job ok")

    def _move_alias(self, rng: random.Random, turn: int) -> None:
        model = (BASE_MODEL, OTHER_MODEL)[turn % 2]
        name = f"chaos-{len(self.ledger.moves) // MOVES_PER_ALIAS}"
        alias: Any = self._client.put(f"/aliases/{name}", body={"model": model}, cast_to=object)
        with self.ledger.lock:
            self.ledger.moves.append(Move(name, len(alias["history"]), alias["history"][-1]))
        self.ledger.note_outcome("move_alias ok")
        self._over.wait(2.0)

    def _chat(self, rng: random.Random, turn: int) -> None:
        answer = self._client.chat.completions.create(
            model=BASE_MODEL,
            messages=[{"role": "user", "content": f"What comes after {turn}?"}],
            max_tokens=rng.randint(1, 40),
            seed=turn,
        )
        choice = answer.choices[0]
        if choice.finish_reason not in ("stop", "length"):
            self.ledger.note_torn(f"a chat ended with {choice.finish_reason!r}")
        self.ledger.note_outcome("chat ok")

    def _stream(self, rng: random.Random, turn: int) -> None:
        started = time.monotonic()
        chunks = list(
            self._client.chat.completions.create(
                model=BASE_MODEL,
                messages=[{"role": "user", "content": f"What comes before {turn}?"}],
                max_tokens=rng.randint(1, 60),
                stream=True,
            )
        )
        reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
        if not reasons or reasons[-1] not in ("stop", "length"):
            took_s = time.monotonic() - started
            self.ledger.note_torn(f"a stream ended without a reason after {took_s:.1f} s")
        self.ledger.note_outcome("stream ok")
