"""The example systemd unit."""

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[3] / "examples" / "tuneserve.service"
ANALYZE = shutil.which("systemd-analyze")


def read_unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # names keep their case
    parser.read_string(UNIT.read_text())
    return parser["Service"]


def test_unit_continues_after_oom_kill_of_one_process() -> None:
    """By default systemd stops a unit if the kernel's OOM killer kills one of its processes."""
    assert read_unit()["OOMPolicy"] == "continue"


def test_unit_stop_timeout_exceeds_drain_timeout() -> None:
    service = read_unit()
    command = service["ExecStart"].split()
    drain_timeout_s = float(command[command.index("--drain-timeout") + 1])
    assert float(service["TimeoutStopSec"]) > drain_timeout_s


@pytest.mark.skipif(ANALYZE is None, reason="systemd is not installed")
def test_systemd_accepts_each_setting(tmp_path: Path) -> None:
    assert ANALYZE is not None
    unit = tmp_path / UNIT.name
    text = UNIT.read_text()
    unit.write_text(text.replace("/opt/tuneserve/bin/tuneserve", sys.executable))
    done = subprocess.run(
        [ANALYZE, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert complaints == []
