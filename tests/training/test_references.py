from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from training.batching import BatchPlan
from training.checkpoint.format import CheckpointError
from training.data.preference.pair_layout import PAIR_LAYOUT, PairSample
from training.data.row_table import RowTable, RowWriter
from training.data.text.encoding import TokenSample
from training.monitoring.journal import Journal
from training.place import Place
from training.references import add_references
from training.run.folder import RunFolder

PLACE = Place(0, 1, torch.device("cpu"))
PLAN = BatchPlan("padded", 64, None, 1, 1, 0)


class Counter:
    """An engine and an objective whose figures of a batch are its rows' first tokens."""

    num_batches = 0

    def eval(self) -> None:
        """Do nothing."""

    def train(self) -> None:
        """Do nothing."""

    def collate(self, rows: Any, _: str, *, is_training: bool) -> Any:
        assert not is_training
        values = torch.tensor([[float(side[0][0]) for side in row[:2]] for row in rows])
        return type("Batch", (), {"values": values, "to": lambda self, _: self})()

    def compute_references(self, _: Any, batch: Any) -> Any:
        self.num_batches += 1
        return batch.values


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """Join a group of one worker."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def rows(tmp_path: Path) -> RowTable:
    """Five rows, whose sides begin with their number and its negative."""
    run = tmp_path / "run"
    (run / "data").mkdir(parents=True)
    with RowWriter(run / "data" / "train.arrow", PAIR_LAYOUT) as writer:
        for line in range(5):
            sides = [np.array([sign * line, 1, 2], np.int32) for sign in (1, -1)]
            samples = [TokenSample(line, ids, np.array([False, False, True])) for ids in sides]
            writer.write(PairSample(samples[0], samples[1], verdict=True))
    return RowTable(run / "data" / "train.arrow", PAIR_LAYOUT)


def add(tmp_path: Path, rows: RowTable, worker: Any, *, has_started: bool) -> RowTable:
    run = RunFolder(tmp_path / "run")
    journal = Journal(run, PLACE, (), 1)
    return add_references(
        worker, PLACE, worker, PLAN, run, journal, rows, "training", has_started=has_started
    )


def find_file(tmp_path: Path) -> Path:
    return tmp_path / "run" / "data" / "references-training.safetensors"


@pytest.mark.usefixtures("group")
def test_figures_are_computed_once(tmp_path: Path, rows: RowTable) -> None:
    worker = Counter()
    for has_started in (False, True):
        found = add(tmp_path, rows, worker, has_started=has_started)
        assert [row.references for row in found.read([3, 1])] == [[3, -3], [1, -1]]
        assert worker.num_batches == 1
    assert len(found) == 5


@pytest.mark.usefixtures("group")
def test_missing_or_damaged_figures_stop_a_resumed_run(tmp_path: Path, rows: RowTable) -> None:
    with pytest.raises(CheckpointError, match="is missing"):
        add(tmp_path, rows, Counter(), has_started=True)
    add(tmp_path, rows, Counter(), has_started=False)
    content = find_file(tmp_path).read_bytes()
    find_file(tmp_path).write_bytes(content[:-3])
    with pytest.raises(CheckpointError, match="is damaged"):
        add(tmp_path, rows, Counter(), has_started=True)
