"""Scripts, styles, translations and the icon, which the page serves as `page-assets/NAME`."""

from functools import cache
from hashlib import sha256
from pathlib import Path

from fastapi.responses import FileResponse, PlainTextResponse, Response

from apps.middleware.cached_files import CACHED_FILE_HEADERS

ASSETS = Path(__file__).parent.parent / "assets"
LANGUAGES = ASSETS / "languages"
FRAME_STYLE = "frame.css"


def link_asset(name: str) -> str:
    """Return the address of a file in `assets`, which changes with its content."""
    return f"page-assets/{name}?v={_hash_asset(name)}"


def link_script(name: str) -> str:
    """Render the element that loads a script in `assets`, for the `head` of a component."""
    return f'<script src="{link_asset(name)}"></script>'


@cache
def _hash_asset(name: str) -> str:
    path = _find_asset(name)
    return "" if path is None else sha256(path.read_bytes()).hexdigest()[:12]


def _find_asset(name: str) -> Path | None:
    """Return the file with a name, which comes from a browser; None if there is none."""
    paths = (path for folder in (ASSETS, LANGUAGES) for path in folder.iterdir())
    return next((path for path in paths if path.name == name and path.is_file()), None)


def list_page_styles() -> list[Path]:
    """List the styles of what Gradio draws; those of the frame are linked by its head."""
    return [path for path in sorted(ASSETS.glob("*.css")) if path.name != FRAME_STYLE]


def send_asset(name: str, query: str = "") -> Response:
    """Answer with a file in `assets`, or 404; browsers keep it if the query is its version."""
    path = _find_asset(name)
    if path is None:
        return PlainTextResponse("not found", 404)
    is_current = query == f"v={_hash_asset(name)}"
    headers = CACHED_FILE_HEADERS if is_current else {"cache-control": "no-cache"}
    return FileResponse(path, headers=headers)
