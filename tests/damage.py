"""Files as a bad disk or a careless hand leaves them."""

from pathlib import Path


def damage(file: Path, fault: str) -> None:
    """Leave a file with a byte `flipped`, its last byte `cut` off, or `gone`."""
    content = bytearray(file.read_bytes())
    if fault == "gone":
        file.unlink()
    elif fault == "cut":
        file.write_bytes(content[:-1])
    else:
        assert fault == "flipped"
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
