"""Steps and tokens that are counted before a run are those that runs recorded."""

import json
from pathlib import Path

import numpy as np
import pytest

from apps.bundled import find_demonstration_model, find_handbook
from training.batching import BatchPlan
from training.data.prepare import prepare_data
from training.data.row_table import RowTable
from training.data.text.token_layout import TOKEN_LAYOUT
from training.preflight import step_estimate
from training.preflight.step_estimate import count_run, estimate_run
from training.spec import TrainingSpec

RESULT = Path(__file__).parents[3] / "benchmarks" / "results" / "2026-11-26-worker-memory.json"
PLAN = BatchPlan("padded", 64, None, 2, 1, 0)


@pytest.mark.parametrize("number", range(3))
def test_recorded_runs_took_the_counted_steps_and_tokens(tmp_path: Path, number: int) -> None:
    run = json.loads(RESULT.read_text())["runs"][number]
    sources = {
        "base_model": str(find_demonstration_model()),
        "train_file": str(find_handbook()),
    }
    spec = TrainingSpec.model_validate({**sources, **run["settings"]})
    prepared = prepare_data(spec, tmp_path, None, {}, None)
    lengths = RowTable(prepared.train, TOKEN_LAYOUT).lengths
    plan = BatchPlan.from_spec(spec, "padded", spec.num_replicas)
    found = count_run(lengths, plan, spec.epochs, spec.max_steps)
    assert found == (run["num_steps"], run["trained_tokens"], True)
    whole = count_run(lengths, plan, spec.epochs, None)
    assert whole.num_tokens == int(lengths.sum())
    rough = estimate_run(len(lengths), int(lengths.sum()), plan, spec.epochs, None)
    assert rough.num_steps == pytest.approx(whole.num_steps, rel=0.2)
    assert not rough.is_exact


def test_epochs_beyond_the_limit_count_as_the_planned_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.arange(1, 33, dtype=np.int32)
    exact = count_run(lengths, PLAN, 40, None)
    monkeypatch.setattr(step_estimate, "_MAX_PLANNED_ROWS", 64)
    found = count_run(lengths, PLAN, 40, None)
    assert found.num_tokens == exact.num_tokens
    assert found.num_steps == pytest.approx(exact.num_steps, rel=0.05)
    assert not found.is_exact
    assert count_run(lengths, PLAN, 40, 7).num_steps == 7


def test_limit_of_steps_cuts_the_estimate() -> None:
    found = estimate_run(100, 6400, PLAN, 4, 50)
    assert (found.num_steps, found.num_tokens) == (50, 6400)
