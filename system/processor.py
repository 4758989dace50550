"""What this machine's processor computes fast."""

import re
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def has_bf16_instructions() -> bool:
    """Return whether this machine's CPU has bf16 instructions: x86 AVX-512 or AMX, or Arm's."""
    try:
        text = _CPU_INFO.read_text()
    except OSError:  # not Linux
        return False
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return flags is not None and not _BF16_FLAGS.isdisjoint(flags.group(1).split())
