"""The process of a transfer: its environment, and its end while the parent still writes to it."""

import subprocess

import pytest

from apps.hub.transfer_process import _VARIABLES, _let_continue
from system.child_environment import build_child_environment


def test_process_that_has_ended_raises_no_error_of_its_input() -> None:
    with subprocess.Popen(["true"], stdin=subprocess.PIPE, text=True) as process:
        process.wait()
        _let_continue(process)


def test_process_uses_no_backend_that_writes_outside_the_scratch_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "0")
    monkeypatch.setenv("HF_TOKEN", "t")
    environment = build_child_environment(_VARIABLES)
    assert (environment["HF_HUB_DISABLE_XET"], environment["HF_TOKEN"]) == ("1", "t")
