"""Scripts, styles, translations and the icon, which the page serves as `page-assets/NAME`.

All styles of what Gradio draws are one file, `page.css`. Gradio would send them with every document
and rewrite each rule in the browser, which takes a tenth of a second.
"""

from functools import cache
from hashlib import sha256
from pathlib import Path

from fastapi.responses import FileResponse, PlainTextResponse, Response

from apps.middleware.cached_files import CACHED_FILE_HEADERS

ASSETS = Path(__file__).parent.parent / "assets"
LANGUAGES = ASSETS / "languages"
FRAME_STYLE = "frame.css"
_COMMON_STYLE = "style.css"
PAGE_STYLE = "page.css"


def link_asset(name: str) -> str:
    """Return the address of a file in `assets`, which changes with its content."""
    return f"page-assets/{name}?v={_hash_asset(name)}"


def link_script(name: str, attributes: str = "") -> str:
    """Render the element that loads a script in `assets`."""
    return f'<script src="{link_asset(name)}"{attributes}></script>'


@cache
def _hash_asset(name: str) -> str:
    if name == PAGE_STYLE:
        return _hash(_join_page_styles())
    path = _find_asset(name)
    return "" if path is None else _hash(path.read_bytes())


def _hash(content: bytes) -> str:
    return sha256(content).hexdigest()[:12]


def _find_asset(name: str) -> Path | None:
    """Return the file with a name, which comes from a browser; None if there is none."""
    paths = (path for folder in (ASSETS, LANGUAGES) for path in folder.iterdir())
    return next((path for path in paths if path.name == name and path.is_file()), None)


@cache
def _join_page_styles() -> bytes:
    """Return the styles of what Gradio draws as one, more specific than those of Gradio itself.

    Those of a view follow the common ones. None may be a rule that cannot be nested, such as
    `@keyframes`.
    """
    common = ASSETS / _COMMON_STYLE
    of_views = sorted({*ASSETS.glob("*.css")} - {common, ASSETS / FRAME_STYLE})
    rules = "".join(path.read_text() for path in (common, *of_views))
    return f":root:root:root {{\n{rules}}}\n".encode()


def send_asset(name: str, query: str = "") -> Response:
    """Answer with a file in `assets`, or 404; browsers keep it if the query is its version."""
    path = _find_asset(name)
    if path is None and name != PAGE_STYLE:
        return PlainTextResponse("not found", 404)
    is_current = query == f"v={_hash_asset(name)}"
    headers = CACHED_FILE_HEADERS if is_current else {"cache-control": "no-cache"}
    if path is None:
        return Response(_join_page_styles(), headers=headers, media_type="text/css")
    return FileResponse(path, headers=headers)
