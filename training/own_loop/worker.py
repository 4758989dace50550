"""A loop on one Ray Train worker."""

from typing import Literal

from training.checkpoint.restore import find_start
from training.deepspeed.process import set_accelerator
from training.monitoring.journal import Journal
from training.monitoring.trackers import open_trackers
from training.own_loop.function import build_config, call_loop, import_loop
from training.own_loop.reporter import LoopPausedError, Reporter
from training.own_loop.train_functions import use_reporter
from training.place import Place
from training.run.folder import RunFolder
from training.spec import TrainingSpec


def run_loop(spec: TrainingSpec, run: RunFolder, place: Place) -> Literal["finished", "paused"]:
    """Call the loop that a spec names, and return how it ended.

    Its reports become metrics and checkpoints of the run. Raises `LoopError`, `CheckpointError`, or
    what the loop raises.
    """
    assert spec.loop is not None
    set_accelerator(place.device)  # the loop may use DeepSpeed
    start = find_start(run, place)
    with open_trackers(
        spec, run, start.step if start else 0, is_reporting=place.rank == 0
    ) as trackers:
        journal = Journal(run, place, trackers, num_steps=0)
        resuming = f", which resumes after step {start.step}" if start else ""
        journal.log_event(
            f"{place.world_size} workers are up on {place.device.type} and call the loop "
            f"{spec.loop}{resuming}"
        )
        reporter = Reporter(run, spec, place, journal, start)
        try:
            with use_reporter(reporter):
                call_loop(import_loop(spec.loop), build_config(spec))
        except LoopPausedError:
            journal.log_event("Pausing after this checkpoint", code="pausing")
            return "paused"
        journal.log_event("The loop has ended")
    return "finished"
