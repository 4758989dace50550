"""The version of all stored formats; `storage.versioned_json` describes the compatibility rules."""

from typing import NamedTuple

FORMAT_KEY = "format_version"


class FormatVersion(NamedTuple):
    """A version of the stored formats; compares by major, then by minor."""

    major: int
    minor: int

    def __str__(self) -> str:
        """Return the version in the form that files contain."""
        return f"{self.major}.{self.minor}"


FIRST_FORMAT = FormatVersion(1, 0)
"""The format of release 0.1, whose files have no version."""

CURRENT_FORMAT = FormatVersion(1, 0)
"""The format that this release writes."""


def parse_version(text: object) -> FormatVersion:
    """Parse 'MAJOR.MINOR'; raises `ValueError`."""
    parts = text.split(".") if isinstance(text, str) else []
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise ValueError(f"{FORMAT_KEY} is {text!r}, expected 'MAJOR.MINOR' such as '1.0'")
    return FormatVersion(int(parts[0]), int(parts[1]))
