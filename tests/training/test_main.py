import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from training.__main__ import end_leftovers, main


def test_what_outlives_its_cluster_is_killed() -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as hanging:
        assert hanging.stdout is not None
        hanging.stdout.readline()
        end_leftovers([psutil.Process(hanging.pid)], timeout_s=0.1)
        assert hanging.wait(5) < 0
    gone = subprocess.Popen([sys.executable, "-c", ""])
    found = psutil.Process(gone.pid)
    gone.wait()
    end_leftovers([found])


def test_an_output_that_is_a_url_is_refused_and_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run went into a local folder 's3:'."""
    monkeypatch.chdir(tmp_path)
    assert main(["spec.yaml", "--output", "s3://bucket/run"]) == 2
    assert "--output is 's3://bucket/run', expected a path" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
