import subprocess
import sys
from pathlib import Path

import pytest

from training.command.full_output import drop_output_on_full_disk

WRITE = """
import sys
from training.command.full_output import drop_output_on_full_disk
with drop_output_on_full_disk():
    print("fox", file=sys.stderr)
    sys.stderr.write("\\udcff")
raise SystemExit(75)
"""


def run(target: Path) -> int:
    with target.open("ab") as output:
        done = subprocess.run([sys.executable, "-c", WRITE], stderr=output, check=False)
    return done.returncode


def test_full_disk_of_output_keeps_exit_status() -> None:
    assert run(Path("/dev/full")) == 75


def test_lines_are_written_at_once_if_disk_has_space(tmp_path: Path) -> None:
    assert run(tmp_path / "log") == 75
    assert (tmp_path / "log").read_bytes() == b"fox\n\\udcff"


def test_stream_without_file_is_not_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    stream = sys.stderr
    with drop_output_on_full_disk():
        print("fox", file=sys.stderr)
    assert sys.stderr is stream
    assert capsys.readouterr().err == "fox\n"
