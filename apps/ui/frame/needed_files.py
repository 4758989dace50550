"""The files of Gradio's frontend that a document needs, found in its scripts.

A script that loads another one names it with the numbers of all files that are needed for it, in a
list at its beginning (Vite, "Async Chunk Loading Optimization"). A document needs the scripts that
draw any page, and those of its components.
"""

import json
import logging
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import gradio

_FRONTEND = Path(gradio.__file__).parent / "templates" / "frontend"
_ENTRY = re.compile(r'<script type="module"[^>]* src="\./assets/([^"]+)"')
_FILES = re.compile(r"\bm\.f=(\[[^]]*\])")
_IMPORT = re.compile(r"\bimport\(`\./([^`]+)`\)")
_NUMBERS = re.compile(r"__vite__mapDeps\(\[([\d,]+)\]\)")
_COMPONENT = re.compile(r"\b([a-z]+):\{(?:[a-z]+:\(\)=>[^{}]*?,)?component:\(\)=>")
_MAX_DISTANCE = 200  # characters between a name and its numbers
_logger = logging.getLogger(__name__)


class _Script:
    """A script of the frontend."""

    def __init__(self, name: str) -> None:
        self.text = (_FRONTEND / "assets" / name).read_text()
        files = _FILES.search(self.text)
        self._files: list[str] = json.loads(files[1]) if files else []

    def find_imports(self, start: int = 0) -> Iterator[tuple[str, list[str]]]:
        """Yield each script that this one loads later, with all files that are needed for it."""
        for found in _IMPORT.finditer(self.text, start):
            numbers = _NUMBERS.search(self.text, found.end(), found.end() + _MAX_DISTANCE)
            if numbers:
                yield found[1], [self._files[int(number)] for number in numbers[1].split(",")]


@cache
def _find_frontend_files() -> tuple[list[str], dict[str, list[str]]]:
    """Return the files that every document needs, and by type those of each component.

    Without them, browsers load the files all the same, but later.
    """
    try:
        return _read_frontend()
    except (OSError, ValueError, IndexError) as exc:
        _logger.warning("The files of Gradio's frontend cannot be found in its scripts: %s", exc)
        return [], {}


def _read_frontend() -> tuple[list[str], dict[str, list[str]]]:
    entry = _ENTRY.search((_FRONTEND / "index.html").read_text())
    common: list[str] = []
    components: dict[str, list[str]] = {}
    if entry is None:
        return common, components
    for name, needed in _Script(entry[1]).find_imports():
        script = _Script(name)
        common += needed
        common += next((files for _, files in script.find_imports() if "Blocks-" in files[0]), [])
        for found in _COMPONENT.finditer(script.text):
            _, files = next(script.find_imports(found.end()), ("", []))
            components.setdefault(found[1], files)
    return common, components


def list_needed_files(types: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the scripts and the styles that components need, as addresses below the page's.

    Types that are unknown are ignored. Both lists are empty if Gradio's scripts have another form.
    """
    common, components = _find_frontend_files()
    names = [*common, *(name for kind in sorted(types) for name in components.get(kind, []))]
    addresses = dict.fromkeys(f"assets/{name.removeprefix('./')}" for name in names)
    scripts = [address for address in addresses if address.endswith(".js")]
    return scripts, [address for address in addresses if address.endswith(".css")]
