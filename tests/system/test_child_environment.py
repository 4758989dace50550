"""The environment of child processes: the import path, and what is set for them."""

import subprocess
import sys
from pathlib import Path

import pytest

from system.child_environment import build_child_environment


def test_child_imports_what_this_process_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("REPLACED", "1")
    program = "import os, only_here; print(os.environ['KEPT'], os.environ['REPLACED'])"
    environment = build_child_environment({"REPLACED": "2"})
    found = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert found.split() == ["1", "2"]
