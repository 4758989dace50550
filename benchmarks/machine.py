"""The description of the machine, which accompanies every measured figure."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("ray", "deepspeed", "torch", "transformers", "gradio")


def describe_machine() -> dict[str, Any]:
    """Return processor, cores, memory in GiB, system, and versions of Python and key packages."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _find_processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def _find_processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
