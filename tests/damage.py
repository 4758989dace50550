"""Damaged files, as after a disk fault or an operator's mistake."""

from pathlib import Path


def damage(file: Path, fault: str) -> None:
    """Damage a file: one bit `flipped`, its last byte `cut` off, or the whole file `gone`."""
    content = bytearray(file.read_bytes())
    if fault == "gone":
        file.unlink()
    elif fault == "cut":
        file.write_bytes(content[:-1])
    else:
        assert fault == "flipped"
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
