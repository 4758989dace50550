import os
import sys

import pytest

from training.deepspeed.cpu_op import set_build_folder

VARIABLE = "TORCH_EXTENSIONS_DIR"


def test_each_installation_has_its_build_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two virtual environments recompiled each other's operation at every start."""
    folders = set()
    for prefix in ("/opt/first", "/opt/second", "/opt/first"):
        monkeypatch.delenv(VARIABLE, raising=False)
        monkeypatch.setattr(sys, "prefix", prefix)
        set_build_folder()
        folders.add(os.environ[VARIABLE])
    assert len(folders) == 2


def test_configured_build_folder_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/opt/builds")
    set_build_folder()
    assert os.environ[VARIABLE] == "/opt/builds"
