import math
from dataclasses import replace
from pathlib import Path

import pytest

from training.checkpoint.format import Checkpoint, CheckpointError
from training.checkpoint.selection import choose_result, choose_superseded
from training.run.progress import Progress


def make_checkpoints(*steps: int, best_step: int | None = None) -> list[Checkpoint]:
    return [
        Checkpoint(Path(f"c{step}"), 2, Progress(step=step, num_shares=2, best_step=best_step))
        for step in steps
    ]


def evaluate(checkpoint: Checkpoint, loss: float) -> Checkpoint:
    return replace(checkpoint, progress=checkpoint.progress.evaluate(loss))


def test_choose_result_returns_last_or_best_checkpoint() -> None:
    third, first, second = make_checkpoints(30, 10, 20)
    checkpoints = [evaluate(third, 0.5), evaluate(first, 0.2), evaluate(second, 0.9)]
    assert choose_result(checkpoints, "last").step == 30
    assert choose_result(checkpoints, "best").step == 10


def test_best_is_chosen_among_existing_checkpoints() -> None:
    """The best checkpoint may be missing if `keep` was changed to 'best' during a run."""
    third, second = make_checkpoints(30, 20, best_step=10)
    assert choose_result([third, evaluate(second, 0.9)], "best").step == 20
    assert choose_result([third, second], "best").step == 30


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_non_finite_loss_is_never_best(loss: float) -> None:
    third, second, first = make_checkpoints(30, 20, 10)
    checkpoints = [evaluate(third, loss), evaluate(second, loss), evaluate(first, 0.0)]
    assert choose_result(checkpoints, "best").step == 10
    assert choose_result(checkpoints[:2], "best").step == 30
    assert "eval_loss" not in checkpoints[0].progress.summarise()


def test_choose_result_without_checkpoints_raises() -> None:
    with pytest.raises(CheckpointError, match="^no complete checkpoint is on disk$"):
        choose_result([], "last")


@pytest.mark.parametrize(
    ("num_kept", "best_step", "superseded_steps"),
    [(2, None, [20, 10]), (2, 10, [20]), (1, 30, [20, 10]), (9, 10, [])],
)
def test_choose_superseded_keeps_newest_and_best(
    num_kept: int, best_step: int | None, superseded_steps: list[int]
) -> None:
    checkpoints = make_checkpoints(20, 40, 10, 30, best_step=best_step)
    superseded = choose_superseded(checkpoints, num_kept=num_kept)
    assert [checkpoint.step for checkpoint in superseded] == superseded_steps


def test_checkpoint_reports_only_loss_measured_at_its_step() -> None:
    """Previously, steps 12 and 16 reported the loss of step 9."""
    (ninth,) = make_checkpoints(9)
    progress = ninth.progress.evaluate(0.5)
    assert progress.summarise()["eval_loss"] == 0.5
    later = progress.model_copy(update={"step": 12})
    assert "eval_loss" not in later.summarise()
    assert later.measured_loss is None
    assert later.evaluate(0.4).summarise()["eval_loss"] == 0.4
