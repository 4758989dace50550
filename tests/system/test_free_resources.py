import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from system.free_resources import (
    are_on_one_disk,
    has_free_space,
    measure_free_disk,
    measure_gpu_memory,
    measure_host_memory,
    measure_size,
)

Usage = namedtuple("Usage", "total used free")


def test_free_memory_is_a_part_of_all_memory() -> None:
    memory = measure_host_memory()
    assert 0 < memory.free <= memory.total


def test_a_folder_that_does_not_exist_yet_has_the_disk_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "a" / "b"
    assert are_on_one_disk(tmp_path, new)
    measured = []

    def measure(folder: Path) -> Usage:
        measured.append(folder)
        return Usage(1000, 400, 600)

    monkeypatch.setattr(shutil, "disk_usage", measure)
    assert measure_free_disk(new) == 600
    assert measured == [tmp_path]
    assert [has_free_space(new, size) for size in (None, 600, 601)] == [True, True, False]


def test_the_size_of_a_folder_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"123")
    (tmp_path / "file").write_bytes(b"12")
    assert measure_size(tmp_path) == 5


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            "echo '81559, 80000'; echo '100, 50'",
            [(81559 << 20, 80000 << 20), (100 << 20, 50 << 20)],
        ),
        ("exit 9", []),
        ("echo 'No devices were found'", []),
    ],
)
def test_gpus_are_measured_by_their_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: list[tuple[int, int]]
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert measure_gpu_memory() == expected


def test_without_a_driver_there_are_no_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert measure_gpu_memory() == []
