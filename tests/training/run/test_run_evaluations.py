from pathlib import Path

import pytest

from training.run.run_evaluations import RunEvaluations
from training.task import ConfusionMatrix

MATRIX = ConfusionMatrix(("no", "yes"), ((3, 1), (0, 2)))


@pytest.fixture
def evaluations(tmp_path: Path) -> RunEvaluations:
    evaluations = RunEvaluations(tmp_path / "evaluations.jsonl")
    for step in (2, 4, 6):
        evaluations.add(step, 1 / step, {"accuracy": step / 10}, MATRIX)
    return evaluations


def test_newest_evaluations_are_first(evaluations: RunEvaluations) -> None:
    newest, before = evaluations.read_newest(2)
    assert (newest.step, before.step) == (6, 4)
    assert newest.metrics == {"accuracy": 0.6}
    assert newest.confusion_matrix == MATRIX


def test_figure_that_is_not_finite_is_absent(evaluations: RunEvaluations) -> None:
    evaluations.add(8, float("nan"), {"accuracy": 0.5, "pearson": float("inf")}, None)
    (newest,) = evaluations.read_newest(1)
    assert (newest.loss, newest.metrics) == (None, {"accuracy": 0.5})


def test_evaluations_of_repeated_steps_are_dropped(evaluations: RunEvaluations) -> None:
    evaluations.drop_after(4)
    assert [one.step for one in evaluations.read_newest(9)] == [4, 2]


def test_damaged_lines_are_skipped(evaluations: RunEvaluations) -> None:
    with evaluations.path.open("ab") as file:
        file.write(b'{"step": 8, "lo\n\xff\n[1]\n{"loss": 1.0}\n')
    evaluations.add(10, 0.1, {}, None)
    assert [one.step for one in evaluations.read_newest(2)] == [10, 6]


def test_only_end_of_large_file_is_read(evaluations: RunEvaluations) -> None:
    labels = tuple(str(number) * 400 for number in range(10))
    large = ConfusionMatrix(labels, ((0,) * 10,) * 10)
    for step in range(10, 410):
        evaluations.add(step, 1.0, {}, large)
    steps = [one.step for one in evaluations.read_newest(1000)]
    assert evaluations.path.stat().st_size > 1 << 20
    assert steps == list(range(409, 409 - len(steps), -1))
    assert 200 < len(steps) < 400


def test_no_evaluations_before_the_first(tmp_path: Path) -> None:
    assert RunEvaluations(tmp_path / "evaluations.jsonl").read_newest(5) == []
