"""Fixtures of the other tiers that the fault tests share, and a disk that fills up."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.apps.conftest import client, jobs, layout, queue, services, tiny_model
from tests.e2e.conftest import ray_folder

__all__ = ["client", "jobs", "layout", "queue", "ray_folder", "services", "tiny_model"]


@dataclass(frozen=True)
class SmallDisk:
    """A file system of its own, in memory, whose size in bytes can be changed."""

    path: Path

    def resize(self, size_bytes: int) -> None:
        """Make the file system as large as this; what is on it stays."""
        subprocess.run(
            ["mount", "-o", f"remount,size={size_bytes}", self.path], check=True, timeout=30
        )

    def count_used_bytes(self) -> int:
        """Count the bytes that are taken."""
        found = subprocess.run(
            ["df", "--output=used", "-B1", self.path], check=True, capture_output=True, text=True
        )
        return int(found.stdout.split()[-1])

    def leave_free(self, size_bytes: int) -> None:
        """Leave this much room beside what is on it."""
        self.resize(self.count_used_bytes() + size_bytes)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"this user may not mount a file system: {mounted.stderr.strip()}")
    yield SmallDisk(folder)
    subprocess.run(["umount", "--lazy", folder], check=True, timeout=30)
