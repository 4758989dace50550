import subprocess
import sys
from pathlib import Path

import pytest

from training.command.full_output import drop_what_finds_no_room

WRITE = """
import sys
from training.command.full_output import drop_what_finds_no_room
with drop_what_finds_no_room():
    print("fox", file=sys.stderr)
    sys.stderr.write("\\udcff")
raise SystemExit(75)
"""


def run(target: Path) -> int:
    with target.open("ab") as output:
        done = subprocess.run([sys.executable, "-c", WRITE], stderr=output, check=False)
    return done.returncode


def test_a_full_disk_under_the_output_does_not_change_the_exit_status() -> None:
    assert run(Path("/dev/full")) == 75


def test_lines_that_find_room_are_written_at_once(tmp_path: Path) -> None:
    assert run(tmp_path / "log") == 75
    assert (tmp_path / "log").read_bytes() == b"fox\n\\udcff"


def test_a_stream_that_is_no_file_stays(capsys: pytest.CaptureFixture[str]) -> None:
    stream = sys.stderr
    with drop_what_finds_no_room():
        print("fox", file=sys.stderr)
    assert sys.stderr is stream
    assert capsys.readouterr().err == "fox\n"
