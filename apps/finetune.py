"""One fine-tune as a process of its own: what the queue submits as a Ray Job.

It outlives the page and the API that asked for it: it knows only the storage root and the run.
"""

import argparse
import logging
import sys

from apps.queue import finish_published
from apps.runs import name_model
from serving.model_store import ModelStore
from storage.layout import StorageLayout, open_storage
from training import launch
from training.priority import yield_to_others
from training.runs import RunFolder, log_to_file

logger = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Compute one queued run and publish its model; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m apps.finetune", description=__doc__)
    parser.add_argument("run_id")
    parser.add_argument("--storage", required=True, help="the storage root")
    options = parser.parse_args(arguments)
    layout = open_storage(options.storage)
    run = RunFolder(layout.run(options.run_id))
    with log_to_file(run.log_file):
        return execute_queued_run(layout, run)


def execute_queued_run(layout: StorageLayout, run: RunFolder) -> int:
    """Train, publish, point `latest` at the result; a failure is in the record already."""
    import ray  # slow to import; --help is not

    record = run.read_record()
    if record.is_final or record.writer != "job" or run.is_cancel_requested:
        logger.error("run %s is not to be computed: %s", record.id, record.status)
        return 1
    launch.quiet_libraries()
    ray.init(log_to_driver=False)
    try:
        with run.hold("driver", timeout_s=0):
            run.pause_file.unlink(missing_ok=True)
            if launch.execute_run(run, run.read_spec()) is None:
                return 0  # paused, and in the record as that
            ModelStore(layout).publish(run.model, name_model(record))
            finish_published(layout, run)
    except Exception as exc:  # noqa: BLE001 - the process ends here, and its record must say why
        if not run.read_record().is_final:
            launch.fail_run(run, exc)
        return 1
    finally:
        ray.shutdown()
    return 0


if __name__ == "__main__":
    yield_to_others()
    sys.exit(main())
