import pytest

from training.cluster.failure_messages import choose_failure, summarise_exception

LOST = RuntimeError("[pair.cc:534] Connection closed by peer [192.0.2.7]:4711")


def test_the_cause_is_told_and_not_what_followed_from_it() -> None:
    full = OSError("No space left on device")
    assert choose_failure({0: LOST, 1: full}) == (1, full)
    assert choose_failure({0: full, 1: LOST}) == (0, full)
    assert choose_failure({2: LOST, 1: LOST}) == (1, LOST)
    traceback = RuntimeError(f"Traceback (most recent call last):\n  …\nOSError: {full}")
    assert choose_failure({0: LOST, 3: traceback}) == (3, traceback)
    assert summarise_exception(traceback) == "OSError: No space left on device"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "The actor died unexpectedly before finishing this task.\n\tclass_name: W\nThe actor "
            "is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker "
            "exit detail: Worker unexpectedly exits with a connection error code 2. End of file. "
            "Some common causes include: (1) the process was killed by the OOM killer due to high "
            "memory usage, (2) ray stop --force was called",
            "its process ended without a reason being recorded (Ray records SYSTEM_ERROR)",
        ),
        (
            "The actor is dead because its worker process has died. Worker exit type: USER_ERROR "
            "Worker exit detail: Worker exits with an exit code 3.",
            "its process ended with exit status 3",
        ),
        (
            "The actor is dead because its worker process has died. Worker exit type: "
            "NODE_OUT_OF_MEMORY Worker exit detail: 1 worker(s) were killed due to the node "
            "running low on memory.",
            "Ray's memory monitor killed its process, because its node ran low on memory",
        ),
        (
            "The actor died because its node has died. Node Id: 4f2a",
            "its node has left the cluster",
        ),
        (
            "The actor died unexpectedly before finishing this task.\nThe actor is dead because it "
            "was killed by `ray.kill`.",
            "it was killed by `ray.kill`",
        ),
        (
            "The actor ad01 is unavailable: The actor is temporarily unavailable: RpcError: RPC "
            "Error message: Socket closed; RPC Error details:  rpc_code: 14.",
            "the connection to its process was lost",
        ),
        (
            "A worker health check has been hanging for 600.25 seconds. Marking the worker as dead."
            "\nWorker info: Worker(...)\nSet the RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S "
            "environment variable to increase the timeout (current value: 600 seconds).",
            "it did not answer for 600 s",
        ),
    ],
)
def test_only_what_ray_recorded_is_reported_of_a_process_that_ended(
    text: str, expected: str
) -> None:
    assert summarise_exception(RuntimeError(text)) == expected
