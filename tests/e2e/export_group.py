"""DeepSpeed workers that train any architecture for one step and save it, as training does.

They also record whether rows of a flattened batch influence each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from tests.e2e.training_group import join_group, write_table
from tests.e2e.worker_group import run_in_group
from training.batching import BatchPlan, plan_epoch
from training.checkpoint.format import TAG
from training.checkpoint.reference_logits import PROBE_NAME, compute_probe
from training.data.row_table import RowTable
from training.data.text.token_layout import TOKEN_LAYOUT
from training.engine import take_step
from training.model import load_model
from training.place import Place
from training.preflight.flattening_check import find_leak
from training.spec import TrainingSpec
from training.strategies.zero import STRATEGY
from training.task import open_default_objective

VOCABULARY = 160
LEAK_NAME = "leak.txt"


@dataclass(frozen=True)
class ExportCase:
    """One model to train for a step: its folder, the settings, and the checkpoint to write."""

    model: Path
    checkpoint: Path
    settings: dict[str, Any] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()  # name prefixes of parameters that are not trained


def save_in_group(world_size: int, folder: Path, cases: Sequence[ExportCase]) -> None:
    """Train and save the cases in sequence with `world_size` workers."""
    rows = folder / "rows.arrow"
    if not rows.exists():
        write_table(rows, num_rows=8, vocabulary=VOCABULARY)
    run_in_group(_work, world_size, folder, rows, list(cases))


def _work(rank: int, world_size: int, rendezvous: str, rows: Path, cases: list[ExportCase]) -> None:
    place = join_group(rank, world_size, rendezvous)
    for case in cases:
        _save(case, RowTable(rows, TOKEN_LAYOUT), place)
    dist.barrier()
    dist.destroy_process_group()


def _save(case: ExportCase, rows: RowTable, place: Place) -> None:
    spec = TrainingSpec.model_validate(
        {
            "base_model": str(case.model),
            "train_file": "-",
            "learning_rate": 0.01,
            "micro_batch_tokens": 256,
            "precision": "fp32",
            "num_workers": place.world_size,
            **case.settings,
        }
    )
    plan = BatchPlan.from_spec(spec, "padded", place.world_size)
    with patch("training.strategies.zero.load_model", partial(_load_frozen, case.frozen)):
        engine = STRATEGY.start_engine(spec, place, plan, open_default_objective())
    (step, *_) = plan_epoch(rows.lengths, plan, 0)
    take_step(engine, place, open_default_objective(), rows, step, "padded", 0.01, seed="0")
    probe = compute_probe(engine, place, open_default_objective())
    leak = find_leak(engine, engine.module.config, place.device)
    engine.save_checkpoint(str(case.checkpoint), tag=TAG)
    if place.rank == 0:
        probe.write(case.checkpoint / PROBE_NAME)
        (case.checkpoint / LEAK_NAME).write_text(leak or "")


def _load_frozen(frozen: tuple[str, ...], *arguments: Any, **settings: Any) -> torch.nn.Module:
    model = load_model(*arguments, **settings)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    return model
