"""One fine-tuning run as a process of its own, which the queue submits as a Ray job.

The process does not depend on the page or the API: it knows only the storage root and the run. If
it ends without recording a result, the queue starts it again.
"""

import argparse
import logging
import sys

from apps.fine_tuning.cluster.cluster_connection import connect_to_cluster
from apps.fine_tuning.index.run_lookup import name_model
from apps.fine_tuning.run_endings import finish_published, finish_unpublished
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout, open_storage
from storage.privacy import keep_files_private
from system.priority import lower_process_priority, lower_session_priority
from training import launch
from training.cluster.ray_train import ClusterLostError
from training.run import run_state
from training.run.folder import RunFolder
from training.run.lease import acquire_lease
from training.run.run_log import log_to_file

logger = logging.getLogger(__name__)

_LEASE_TIMEOUT_S = 60.0  # the previous process of a paused or lost run may still end


def main(arguments: list[str] | None = None) -> int:
    """Compute one queued run and publish its model; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m apps.fine_tuning.cluster.job_main", description=__doc__
    )
    parser.add_argument("run_id")
    parser.add_argument("job_id", help="the Ray Job that this is; the run's record must name it")
    parser.add_argument("--storage", required=True, help="the storage root")
    options = parser.parse_args(arguments)
    keep_files_private()
    layout = open_storage(options.storage)
    run = RunFolder(layout.run(options.run_id))
    with log_to_file(run.log_file):
        return execute_queued_run(layout, run, options.job_id)


def execute_queued_run(layout: StorageLayout, run: RunFolder, job_id: str) -> int:
    """Train a run, publish its model and point `latest` to it.

    Returns the exit status; a failure is already in the record.
    """
    with acquire_lease(run, timeout_s=_LEASE_TIMEOUT_S):
        record = run.read_record()
        is_ours = record.writer == "job" and record.job_id == job_id
        if record.is_final or not is_ours or run.is_cancel_requested:
            logger.error("job %s may not compute run %s: %s", job_id, record.id, record.status)
            return 1
        if run.is_pause_requested:
            run.events.add("Paused before it began")
            run_state.pause(run)
            return 0
        launch.disable_progress_bars()
        try:
            with connect_to_cluster():
                return _compute_and_publish(layout, run, job_id)
        except ClusterLostError as exc:
            logger.exception("run %s was interrupted", record.id)
            print(exc, file=sys.stderr)  # noqa: T201 - the queue reads it and reports it
            return 1


def _compute_and_publish(layout: StorageLayout, run: RunFolder, job_id: str) -> int:
    """Train and publish; returns the exit status, and raises `ClusterLostError`."""
    try:
        model = launch.execute_run(run, run.read_spec())
        if model is None:
            return 0  # paused, as the record states
        record = run.read_record()
        if record.job_id != job_id or record.is_final or run.is_cancel_requested:
            logger.error("job %s may not publish run %s any more", job_id, record.id)
            return 1
        if not model.is_dir():
            finish_unpublished(layout, run)
            return 0
        ModelStore(layout).publish(model, name_model(record))
    except ClusterLostError:
        raise
    except Exception as exc:  # noqa: BLE001 - the process ends here; its record must state why
        launch.fail_run(run, exc)
        return 1
    # The model is published: if this call fails, the queue repeats it.
    finish_published(layout, run)
    return 0


if __name__ == "__main__":
    lower_process_priority()
    lower_session_priority()  # Ray Jobs starts it in a session of its own
    sys.exit(main())
