import logging

import pytest

from system.fault_log import FaultLog


def test_a_fault_is_logged_when_it_begins_changes_and_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    faults = FaultLog(logging.getLogger("scan"))
    for problem in ["disk", "disk", "disk", "format", None, None, "disk"]:
        with faults.guard("run a"):
            if problem is not None:
                raise OSError(problem)
    assert [record.getMessage() for record in caplog.records] == [
        "run a: OSError: disk",
        "run a: OSError: format",
        "run a: works again",
        "run a: OSError: disk",
    ]
    assert caplog.records[0].exc_info
    faults.keep_only([])
    with faults.guard("run a"):
        raise OSError("disk")
    assert len(caplog.records) == 5
