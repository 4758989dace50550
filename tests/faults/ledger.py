"""A record of what the application acknowledged to its clients, and the check that none is lost."""

import hashlib
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai import OpenAI

from storage import durable
from storage.manifest import verify_directory

MOVES_PER_ALIAS = 400
"""Moves that are acknowledged for an alias before clients move another one.

A history keeps all moves as long as they are at most `serving.store.alias_history.MAX_MOVES`.
"""
MAX_RUNNING = 2
Losses = list[tuple[float, float]]


@dataclass(frozen=True)
class Move:
    """A move of the alias: its 1-based position in the returned history, and its entry."""

    alias: str
    place: int
    entry: dict[str, Any]


@dataclass
class Ledger:
    """All requests that were answered with success; several client threads write to it."""

    files: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of every uploaded file by its id."""
    jobs: list[str] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    """The number of requests by outcome: 'ok', an HTTP status, or a transport error."""
    errors: list[str] = field(default_factory=list)
    """The body of every response with status 500; only a killed process may cause one."""
    torn: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note_outcome(self, outcome: str) -> None:
        """Count the outcome of one request."""
        with self.lock:
            self.outcomes[outcome] += 1

    def note_error(self, what: str) -> None:
        """Record the body of a response with status 500."""
        with self.lock:
            self.errors.append(what)

    def note_torn(self, what: str) -> None:
        """Record a response that ended as if complete, but is not."""
        with self.lock:
            self.torn.append(what)


@dataclass
class Verdict:
    """What an application lost, left incomplete, computed twice or started out of order.

    The test passes if all lists are empty.
    """

    lost: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    out_of_turn: list[str] = field(default_factory=list)


def judge(ledger: Ledger, client: OpenAI, storage: Path, expected: Losses) -> Verdict:
    """Compare the present state with what was acknowledged; all jobs must have ended before."""
    verdict = Verdict(torn=list(ledger.torn))
    _judge_files(ledger, client, verdict)
    _judge_jobs(ledger, client, storage, expected, verdict)
    _judge_order(ledger, client, verdict)
    _judge_moves(ledger, storage, verdict)
    verdict.torn += find_torn_files(storage)
    return verdict


def find_torn_files(storage: Path) -> list[str]:
    """Return every incomplete JSON file and damaged published model below a storage root."""
    torn = []
    for path in sorted(storage.rglob("*.json")):
        if any(part.startswith(".") for part in path.relative_to(storage).parts):
            continue  # being written, or left over from an interrupted write
        try:
            durable.read_json(path)
        except FileNotFoundError:
            continue  # replaced in the meantime
        except ValueError as exc:
            torn.append(f"{path.name}: {exc}")
    for model in sorted((storage / "models").glob("[!.]*")):
        try:
            verify_directory(model)
        except durable.DamagedDirectoryError as exc:
            torn.append(str(exc))
    return torn


def read_losses(storage: Path, job_id: str) -> Losses:
    """Return the number and the loss of every recorded step of a job."""
    lines = durable.read_json_lines(storage / "runs" / job_id / "metrics.jsonl")
    return [(line["step"], line["loss"]) for line in lines]


def _judge_files(ledger: Ledger, client: OpenAI, verdict: Verdict) -> None:
    present = {file.id for file in client.files.list()}
    for file_id, sha256 in ledger.files.items():
        if file_id not in present:
            verdict.lost.append(f"file {file_id}")
        elif hashlib.sha256(client.files.content(file_id).read()).hexdigest() != sha256:
            verdict.torn.append(f"file {file_id} differs from what was uploaded")


def _judge_jobs(
    ledger: Ledger, client: OpenAI, storage: Path, expected: Losses, verdict: Verdict
) -> None:
    jobs = {job.id: job for job in client.fine_tuning.jobs.list(limit=100)}
    models = [model.id for model in client.models.list()]
    for job_id in ledger.jobs:
        if job_id not in jobs:
            verdict.lost.append(f"job {job_id}")
            continue
        job = jobs[job_id]
        if job.status != "succeeded":
            verdict.lost.append(f"job {job_id} {job.status}: {job.error}")
        elif job.fine_tuned_model not in models:
            verdict.lost.append(f"model {job.fine_tuned_model} of job {job_id}")
        losses = read_losses(storage, job_id)
        if losses != expected:
            steps = [step for step, _ in losses]
            is_doubled = len(steps) != len(set(steps))
            fault = f"job {job_id}: {len(steps)} steps that differ from an undisturbed run's"
            (verdict.twice if is_doubled else verdict.torn).append(fault)
        events: list[Any] = list(client.fine_tuning.jobs.list_events(job_id, limit=100))
        num_ends = sum(event.message == "The fine-tune succeeded" for event in events)
        if num_ends != 1:
            verdict.twice.append(f"job {job_id} ended {num_ends} times")
    for job_id in jobs:
        own = [model for model in models if model.endswith(job_id[-6:])]
        if len(own) > 1:
            verdict.twice.append(f"job {job_id} has {len(own)} models")


def _judge_order(ledger: Ledger, client: OpenAI, verdict: Verdict) -> None:
    """Check that jobs started in creation order, in any order within `MAX_RUNNING` jobs."""
    started = {
        job.id: (job.model_extra or {})["started_at"]
        for job in client.fine_tuning.jobs.list(limit=100)
    }
    for earlier, later in zip(ledger.jobs, ledger.jobs[MAX_RUNNING:], strict=False):
        if started[later] < started[earlier]:
            verdict.out_of_turn.append(f"job {later} started before job {earlier}")


def _judge_moves(ledger: Ledger, storage: Path, verdict: Verdict) -> None:
    """The history of an alias must have each acknowledged move at its acknowledged position."""
    if not ledger.moves:
        return
    aliases = durable.read_json(storage / "aliases.json")
    for move in ledger.moves:
        history = aliases.get(move.alias, {"history": []})["history"]
        found = history[move.place - 1] if move.place <= len(history) else None
        if found is None or any(found[key] != move.entry[key] for key in ("model", "at")):
            verdict.lost.append(f"move {move.place} of {move.alias!r} to {move.entry['model']!r}")
