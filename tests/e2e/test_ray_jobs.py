"""Jobs run on the cluster of the submitting process, even if another local cluster exists."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.trains, pytest.mark.long]

TIMEOUT_S = 90.0
START_CLUSTER = """
import sys, ray
ray.init(address="local", num_cpus=1, log_to_driver=False)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""
REPORT_CLUSTER = """
import sys, ray
ray.init(log_to_driver=False)
open(sys.argv[1], "w").write(ray.get_runtime_context().gcs_address)
"""
SUBMIT = """
import sys, time, ray
from apps.fine_tuning.cluster.ray_jobs import RayJobRunner
from training.cluster.agent_port import choose_free_agent_port
with choose_free_agent_port():
    ray.init(address="local", num_cpus=1, include_dashboard=True, log_to_driver=False)
own = ray.get_runtime_context().gcs_address
print("own", own, flush=True)
sys.stdin.readline()
runner = RayJobRunner()
for job_id, command in (("report", sys.argv[1]), ("killed", sys.argv[2])):
    while True:
        try:
            runner.start(job_id, command)
            break
        except RuntimeError as exc:  # until the cluster's agent is up, as the queue does
            print("waiting", exc, flush=True)
            time.sleep(0.5)
    while runner.find_state(job_id) != "ended":
        time.sleep(0.1)
    print(job_id, runner.find_exit(job_id), flush=True)
"""


@pytest.fixture
def other_cluster() -> Iterator[str]:
    """The address of another cluster, to which Ray resolves `auto`."""
    command = [sys.executable, "-c", START_CLUSTER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        record = Path(os.environ["RAY_TMPDIR"], "ray", "ray_current_cluster")
        record.write_text(address)
        yield address
        record.unlink()
        process.stdin.close()
        process.wait(30)


def test_job_joins_cluster_of_submitting_process(other_cluster: str, tmp_path: Path) -> None:
    found = tmp_path / "found"
    report = shlex.join([sys.executable, "-c", REPORT_CLUSTER, str(found)])
    killed = shlex.join(
        [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    )
    log = tmp_path / "submit.log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            [sys.executable, "-c", SUBMIT, report, killed],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        try:

            def read_answers() -> dict[str, str]:
                words = [line.split(" ", 1) for line in log.read_text().splitlines()]
                return {pair[0]: pair[1] for pair in words if len(pair) == 2}

            def has(name: str) -> bool:
                assert process.poll() in (None, 0), log.read_text()
                return name in read_answers()

            wait_until(lambda: has("own"), TIMEOUT_S, "our cluster is up")
            assert read_answers()["own"] != other_cluster
            process.stdin.write("\n")
            process.stdin.flush()
            wait_until(lambda: has("killed"), TIMEOUT_S, "both jobs have ended")
        finally:
            process.stdin.close()
            process.terminate()
            process.wait(TIMEOUT_S * PATIENCE)
    answers = read_answers()
    assert answers["report"] == "its process ended with exit status 0"
    assert found.read_text() == answers["own"]
    assert answers["killed"] == "its process ended with signal 9 (SIGKILL)"
