"""The process of a fine-tune whose cluster has ended does not block its run for other processes."""

import os
import subprocess
import sys

from benchmarks.application import find_free_port
from storage.layout import StorageLayout
from tests.apps.conftest import add_job
from training.run.lease import LeaseWatch

TIMEOUT_S = 60.0


def test_job_process_ends_when_its_cluster_has_ended(layout: StorageLayout) -> None:
    run = add_job(layout, "tiny")
    run.update_record(writer="job", job_id="job-1")
    command = [
        sys.executable,
        "-m",
        "apps.fine_tuning.cluster.job_main",
        "--storage",
        str(layout.root),
    ]
    ended = subprocess.run(
        [*command, run.path.name, "job-1"],
        env={**os.environ, "RAY_ADDRESS": f"127.0.0.1:{find_free_port()}"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 1
    assert "has ended" in ended.stderr
    assert run.read_record().status == "queued", "the queue does not start the run again"
    assert not LeaseWatch().is_alive(run)
