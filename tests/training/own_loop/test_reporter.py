from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray.train
import torch
import torch.distributed as dist

from training.checkpoint.format import find_damage, list_checkpoints
from training.checkpoint.selection import choose_result
from training.monitoring.journal import Journal
from training.own_loop.function import LoopError
from training.own_loop.reporter import LoopPausedError, Reporter, _choose_files
from training.place import Place
from training.run.folder import RunFolder
from training.spec import TrainingSpec

PLACE = Place(0, 1, torch.device("cpu"))
SPEC = {"base_model": "m", "train_file": "f", "loop": "a:b"}


@pytest.fixture(autouse=True)
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


def make_reporter(run: RunFolder, **settings: Any) -> Reporter:
    spec = TrainingSpec.model_validate({**SPEC, **settings})
    found = list_checkpoints(run.checkpoints)
    return Reporter(run, spec, PLACE, Journal(run, PLACE, [], 0), found[0] if found else None)


def report(
    reporter: Reporter, folder: Path | None = None, content: str = "x", **metrics: Any
) -> None:
    checkpoint = None
    if folder is not None:
        (folder / "part").mkdir(parents=True, exist_ok=True)
        (folder / "part" / "state.txt").write_text(content)
        checkpoint = ray.train.Checkpoint.from_directory(folder)
    reporter.report(metrics, checkpoint, is_moved=False)


def list_messages(run: RunFolder) -> list[str]:
    return [event["message"] for event in run.events.read()]


def test_metrics_become_lines(run: RunFolder) -> None:
    reporter = make_reporter(run)
    report(reporter, loss=torch.tensor(2.0), epoch=0, accuracy=0.5)
    report(reporter, loss=1.0, step=10, num_steps=20)
    report(reporter, loss=0.5, step=4, num_steps=20)
    lines = run.metrics.read()
    assert [line["step"] for line in lines] == [1, 10, 11]
    assert lines[0]["accuracy"] == 0.5
    assert "num_steps" not in lines[0]
    assert lines[1]["remaining_s"] == pytest.approx(lines[1]["elapsed_s"], abs=0.01)
    assert all("created_at" in line for line in lines)


def test_values_that_are_no_finite_numbers_are_left_out_and_named_once(run: RunFolder) -> None:
    reporter = make_reporter(run)
    for _ in range(2):
        metrics = {"loss": float("nan"), "name": "3", "pair": torch.ones(2), "x" * 200: 1}
        reporter.report(metrics, is_moved=False)
    assert set(run.metrics.read()[0]) == {"step", "elapsed_s", "created_at"}
    left_out = [text for text in list_messages(run) if "is left out" in text]
    assert len(left_out) == 4
    assert left_out[0].startswith("The metric 'loss' is 'nan', and is left out: expected")


def test_checkpoint_is_complete_and_found_again(run: RunFolder, tmp_path: Path) -> None:
    reporter = make_reporter(run)
    assert reporter.get_checkpoint() is None
    report(reporter, tmp_path / "one", "first", loss=2.0, epoch=0, eval_accuracy=0.25)
    report(reporter, tmp_path / "two", "second", loss=1.0, epoch=1)
    newest, older = list_checkpoints(run.checkpoints)
    assert (newest.step, older.step) == (2, 1)
    assert find_damage(newest, 0, 1) is None
    assert older.progress.summarise() == {
        "step": 1,
        "epoch": 1,
        "loss": 2.0,
        "trained_tokens": 0,
        "eval_accuracy": 0.25,
    }
    resumed = make_reporter(run)
    with resumed.get_checkpoint().as_directory() as folder:
        assert (Path(folder) / "part" / "state.txt").read_text() == "second"
    report(resumed, loss=0.5)
    assert run.metrics.read()[-1]["step"] == 3
    assert run.metrics.read()[-1]["elapsed_s"] >= newest.progress.elapsed_s


def test_best_checkpoint_is_kept_and_chosen(run: RunFolder, tmp_path: Path) -> None:
    reporter = make_reporter(run, keep="best", best_metric="eval_f1", keep_checkpoints=1)
    for number, f1 in enumerate([0.25, 0.75, 0.5, 0.5]):
        report(reporter, tmp_path / str(number), f1=f1)
    found = list_checkpoints(run.checkpoints)
    assert [checkpoint.step for checkpoint in found] == [4, 2]
    spec = TrainingSpec.model_validate({**SPEC, "keep": "best", "best_metric": "f1"})
    assert choose_result(found, "best", spec.criterion).step == 2


def test_results_reported_with_a_checkpoint_are_an_evaluation(
    run: RunFolder, tmp_path: Path
) -> None:
    reporter = make_reporter(run)
    report(reporter, loss=3.0, accuracy=0.1)
    report(reporter, tmp_path / "one", loss=2.0, eval_accuracy=0.5)
    report(reporter, tmp_path / "two", loss=1.0, eval_loss=1.5, accuracy=0.75)
    report(reporter, tmp_path / "three", loss=0.5)
    newest, before = run.evaluations.read_newest(9)
    assert (newest.step, newest.loss, newest.metrics) == (3, 1.5, {"accuracy": 0.75})
    assert (before.step, before.loss, before.metrics) == (2, None, {"accuracy": 0.5})


def test_loss_of_training_is_compared_only_on_request(run: RunFolder, tmp_path: Path) -> None:
    report(make_reporter(run), tmp_path / "one", loss=2.0)
    assert list_checkpoints(run.checkpoints)[0].progress.eval_loss is None
    report(make_reporter(run, keep="best"), tmp_path / "two", loss=1.0)
    assert list_checkpoints(run.checkpoints)[0].progress.best_value == 1.0


def test_missing_metric_of_best_checkpoint_is_refused(run: RunFolder, tmp_path: Path) -> None:
    reporter = make_reporter(run, keep="best", best_metric="f1")
    report(reporter, loss=1.0)  # no checkpoint to compare
    with pytest.raises(LoopError, match="keep is 'best' by 'f1', which the loop .* found 'loss'"):
        report(reporter, tmp_path / "one", loss=1.0)
    assert list_checkpoints(run.checkpoints) == []


def test_pause_ends_the_loop_once_a_checkpoint_is_complete(run: RunFolder, tmp_path: Path) -> None:
    reporter = make_reporter(run)
    assert not reporter.should_stop()
    run.request_pause()
    assert reporter.should_stop()
    for _ in range(2):
        report(reporter, loss=1.0)
    assert list_messages(run) == ["Pausing with the next checkpoint that the loop reports"]
    with pytest.raises(LoopPausedError):
        report(reporter, tmp_path / "one", loss=1.0)
    assert not issubclass(LoopPausedError, Exception), "a loop must not handle it by accident"
    assert list_checkpoints(run.checkpoints)[0].step == 3
    assert run.metrics.read()[-1]["step"] == 3


def test_moved_folder_is_removed(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a").write_text("a")
    checkpoint = ray.train.Checkpoint.from_directory(tmp_path / "own")
    make_reporter(run).report({"loss": 1.0}, checkpoint, is_moved=True)
    assert not (tmp_path / "own").exists()
    assert (list_checkpoints(run.checkpoints)[0].path / "a").read_text() == "a"


def test_report_without_process_group_is_explained(run: RunFolder) -> None:
    reporter = make_reporter(run)
    dist.destroy_process_group()
    with pytest.raises(LoopError, match="process group .* which the loop has destroyed"):
        report(reporter, loss=1.0)


def test_files_of_one_name_come_from_the_lowest_rank() -> None:
    files = [["a", "latest"], ["a", "b"], ["b", "c"]]
    assert [_choose_files(files, rank) for rank in range(3)] == [["a", "latest"], ["b"], ["c"]]
