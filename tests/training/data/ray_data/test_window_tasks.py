"""Windows that tasks prepare are the steps of the plan, for any number of workers."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.data.ray_data.test_check import CHAT, make_spec, write
from training.batching import BatchPlan, EpochPlan, WindowPosition, plan_epoch, plan_evaluation
from training.cluster.retry import is_transient
from training.data.faults import ChangedRowsError, RowRole
from training.data.prepare import prepare_data
from training.data.ray_data.encoding import SpanEncoder
from training.data.ray_data.streamed_rows import StreamedRows
from training.data.ray_data.window_tasks import PrepareWindow
from training.data.row_table import RowTable
from training.data.run_tables import link_data
from training.data.text.token_layout import TOKEN_LAYOUT
from training.place import Place
from training.spec import TrainingSpec

pytestmark = pytest.mark.usefixtures("without_cluster")

SETTINGS = {
    "micro_batch_tokens": 128,
    "shuffle_window": 500,
    "epochs": 2,
    "gradient_accumulation_steps": 2,
    "validation_fraction": 0.2,
}


class Shard:
    """The part of one worker of a stream, as Ray Data divides it: row by row, in turn."""

    def __init__(self, work: PrepareWindow, num_windows: int, rank: int, world_size: int) -> None:
        self._work, self._num_windows = work, num_windows
        self._rank, self._world_size = rank, world_size

    def iter_batches(self, **_: Any) -> Iterator[Any]:
        number = 0
        for window in range(self._num_windows):
            for piece in self._work({"id": np.array([window])}):
                assert piece.num_rows == 1
                if number % self._world_size == self._rank:
                    yield piece
                number += 1
        assert number % self._world_size == 0


@pytest.fixture
def data(tiny_model: Path, tmp_path: Path) -> Path:
    """The data folder of a prepared run, next to the table of the engine `local`."""
    files = [
        {"file": write(tmp_path / "a.jsonl", CHAT[:40]), "weight": 2.0},
        {"file": write(tmp_path / "b.jsonl", CHAT[40:])},
    ]
    for engine in ("local", "ray"):
        spec = make_spec(tiny_model, engine, train_files=files, **SETTINGS)
        link_data(prepare_data(spec, tmp_path / "cache"), tmp_path / engine)
        (tmp_path / f"{engine}.json").write_text(spec.model_dump_json())
    return tmp_path


def read_spec(data: Path) -> TrainingSpec:
    return TrainingSpec.model_validate_json((data / "ray.json").read_text())


def open_worker(
    data: Path, role: RowRole, rank: int, world_size: int, num_windows: int
) -> StreamedRows:
    work = PrepareWindow((data / "ray.json").read_text(), str(data / "ray"), role, fallback="chat")
    place = Place(rank, world_size, torch.device("cpu"))
    shard = Shard(work, num_windows, rank, world_size)
    return StreamedRows(data / "ray", role, TOKEN_LAYOUT, shard, place)


def check_step(
    workers: list[StreamedRows], local: RowTable, steps: EpochPlan, place: int
) -> list[int]:
    """Let all workers read their rows of a step; returns the rows."""
    read: list[int] = []
    batches = [
        steps[place].select_micro_batches(rank, len(workers)) for rank in range(len(workers))
    ]
    for round_ in zip(*batches, strict=True):
        for worker, batch in zip(workers, round_, strict=True):
            read += batch
            for found, expected in zip(worker.read(batch), local.read(batch), strict=True):
                assert np.array_equal(found[0], expected[0])
                assert np.array_equal(found[1], expected[1])
    return read


@pytest.mark.parametrize(("num_shares", "world_size"), [(2, 2), (2, 3), (3, 1)])
@pytest.mark.parametrize("first", [0, 3])
def test_workers_receive_the_rows_of_their_steps(
    data: Path, num_shares: int, world_size: int, first: int
) -> None:
    plan = BatchPlan.from_spec(read_spec(data), "padded", num_shares)
    local = RowTable(data / "local" / "train.arrow", TOKEN_LAYOUT)
    # Fewer windows than two epochs have: the workers start another execution.
    workers = [
        open_worker(data, "training", rank, world_size, num_windows=3) for rank in range(world_size)
    ]
    for epoch in range(2):
        steps = plan_epoch(local.lengths, plan, epoch)
        assert steps.locate(len(steps)).window > 3
        start = first if epoch == 0 else 0
        if epoch == 0:
            for worker in workers:
                worker.begin(0, steps.locate(start), plan)
        read = [
            row
            for place in range(start, len(steps))
            for row in check_step(workers, local, steps, place)
        ]
        assert (
            len(read)
            == len(set(read))
            == sum(len(steps[place].rows) for place in range(start, len(steps)))
        )


def test_validation_rows_are_streamed_once_if_they_are_few(data: Path) -> None:
    plan = BatchPlan.from_spec(read_spec(data), "padded", 2)
    local = RowTable(data / "local" / "validation.arrow", TOKEN_LAYOUT)
    workers = [open_worker(data, "validation", rank, 2, num_windows=9) for rank in range(2)]
    steps = plan_evaluation(local.lengths, plan)
    for _ in range(2):
        for worker in workers:
            worker.begin(0, steps.locate(0), plan)
        read = [
            row for place in range(len(steps)) for row in check_step(workers, local, steps, place)
        ]
        assert sorted(read) == list(range(len(local)))
        for worker in workers:
            worker.end()
        (data / "a.jsonl").unlink(missing_ok=True)  # the second pass reads no file


def test_changed_file_is_reported_by_all_workers(data: Path) -> None:
    text = (data / "b.jsonl").read_text()
    (data / "b.jsonl").write_text(text.replace("What follows 50?", "What follows fifty?"))
    plan = BatchPlan.from_spec(read_spec(data), "padded", 2)
    local = RowTable(data / "local" / "train.arrow", TOKEN_LAYOUT)
    steps = plan_epoch(local.lengths, plan, 0)
    for rank in range(2):
        worker = open_worker(data, "training", rank, 2, num_windows=40)
        worker.begin(0, WindowPosition(0, 0), plan)
        if rank:
            open_worker(data, "training", 0, 2, 40).begin(0, WindowPosition(0, 0), plan)
        with pytest.raises(ChangedRowsError, match=r"b\.jsonl has changed .* line \d+ is not"):
            _read_all(worker, steps, rank)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TimeoutError(errno.ETIMEDOUT, "timed out", "/data/b.jsonl"), r"b\.jsonl: timed out"),
        (OSError("AWS error: slow down"), "AWS error: slow down"),
    ],
)
def test_failure_to_read_is_raised_by_all_workers_and_retried(
    data: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, expected: str
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(SpanEncoder, "encode", fail)
    plan = BatchPlan.from_spec(read_spec(data), "padded", 2)
    local = RowTable(data / "local" / "train.arrow", TOKEN_LAYOUT)
    steps = plan_epoch(local.lengths, plan, 0)
    workers = [open_worker(data, "training", rank, 2, num_windows=40) for rank in range(2)]
    for worker in workers:
        worker.begin(0, WindowPosition(0, 0), plan)
    for rank, worker in enumerate(workers):
        with pytest.raises(OSError, match=expected) as caught:
            _read_all(worker, steps, rank)
        assert is_transient(caught.value)


def _read_all(worker: StreamedRows, steps: EpochPlan, rank: int) -> None:
    for step in steps:
        for batch in step.select_micro_batches(rank, 2):
            worker.read(batch)


def test_other_rows_than_planned_are_an_error(data: Path) -> None:
    plan = BatchPlan.from_spec(read_spec(data), "padded", 1)
    worker = open_worker(data, "training", 0, 1, num_windows=40)
    worker.begin(0, WindowPosition(0, 0), plan)
    with pytest.raises(RuntimeError, match="another order than the plan"):
        worker.read([0, 1])
