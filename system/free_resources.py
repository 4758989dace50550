"""Memory and disk space of this machine, within the limits of its container."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_NVIDIA_SMI_TIMEOUT_S = 3.0


class Memory(NamedTuple):
    """Total bytes, and bytes that are free now."""

    total: int
    free: int


def measure_host_memory() -> Memory:
    """Measure the memory of this machine or of its container, including swap space."""
    found, swap = psutil.virtual_memory(), psutil.swap_memory()
    total, free = found.total + swap.total, found.available + swap.free
    limit, used = _read_number("memory.max"), _read_number("memory.current")
    if limit is not None and limit < total:
        total, free = limit, min(free, max(0, limit - (used or 0)))
    return Memory(total, free)


def _read_number(name: str) -> int | None:
    try:
        text = (_CGROUP / name).read_text().strip()
    except OSError:  # another system, or no limits
        return None
    return int(text) if text.isdecimal() else None


def measure_gpu_memory() -> list[Memory]:
    """Measure the memory of each GPU of this machine; empty if the driver does not answer."""
    if (program := shutil.which("nvidia-smi")) is None:
        return []
    query = ["--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(  # noqa: S603 - the driver's own program
            [program, *query],
            check=True,
            capture_output=True,
            text=True,
            timeout=_NVIDIA_SMI_TIMEOUT_S,
        ).stdout
        rows = [line.split(",") for line in answer.splitlines() if line.strip()]
        return [Memory(int(total) << 20, int(free) << 20) for total, free in rows]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


def measure_free_disk(folder: Path) -> int:
    """Measure the free bytes of the disk that a folder is on or will be on."""
    return shutil.disk_usage(_find_existing(folder)).free


def has_free_space(folder: Path, needed_bytes: int | None) -> bool:
    """Return whether a folder and temporary files each have the bytes free; None needs none."""
    if needed_bytes is None:
        return True
    folders = (folder, Path(tempfile.gettempdir()))
    return all(measure_free_disk(folder) >= needed_bytes for folder in folders)


def measure_size(folder: Path) -> int:
    """Measure the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def are_on_one_disk(one: Path, other: Path) -> bool:
    """Return whether two folders share their free space."""
    return _find_existing(one).stat().st_dev == _find_existing(other).stat().st_dev


def _find_existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
