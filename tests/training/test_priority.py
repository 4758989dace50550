"""Which of a machine's processes goes first."""

import subprocess
import sys

import pytest

SHOW = (
    "import os; from training.priority import yield_to_others; yield_to_others(); print(os.nice(0))"
)


@pytest.mark.parametrize(("before", "after"), [("0", "15"), ("17", "17")])
def test_it_lets_others_go_first_and_never_takes_more(before: str, after: str) -> None:
    command = ["nice", "-n", before, sys.executable, "-c", SHOW]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == after
