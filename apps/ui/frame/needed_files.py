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


@cache
def _read_script(name: str) -> tuple[str, list[str]]:
    """Return a script, and the files that its numbers refer to."""
    text = (_FRONTEND / "assets" / name).read_text()
    files = _FILES.search(text)
    return text, json.loads(files[1]) if files else []


def _find_imports(name: str, start: int = 0) -> Iterator[tuple[str, list[str]]]:
    """Yield each script that a script loads later, with all files that are needed for it."""
    text, files = _read_script(name)
    for found in _IMPORT.finditer(text, start):
        numbers = _NUMBERS.search(text, found.end(), found.end() + _MAX_DISTANCE)
        if numbers:
            yield found[1], [files[int(number)] for number in numbers[1].split(",")]


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
    loaded = dict(_find_imports(entry[1]))
    for files in loaded.values():
        common += files
    for name in loaded:
        common += next((files for _, files in _find_imports(name) if "Blocks-" in files[0]), [])
        text, _ = _read_script(name)
        for found in _COMPONENT.finditer(text):
            _, files = next(_find_imports(name, found.end()), ("", []))
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
