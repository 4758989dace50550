"""The web application: six pages with their own URLs and a common theme."""

import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import gradio as gr
from fastapi import FastAPI
from fastapi.responses import FileResponse, PlainTextResponse, RedirectResponse, Response

from apps.client.client import ApiClient
from apps.middleware.flow_control import ConsumptionReporting, WindowedSending
from apps.ui import markup
from apps.ui.chat.chat_page import build_chat_page
from apps.ui.classify import build_classify_page
from apps.ui.cluster.cluster_page import build_cluster_page
from apps.ui.fine_tune.fine_tune_page import build_fine_tune_page
from apps.ui.models.model_download import add_download
from apps.ui.models.models_page import build_models_page
from apps.ui.protection.access import PageGuard
from apps.ui.protection.key_check import KeyCheck
from apps.ui.protection.route_allowlist import RouteGuard
from apps.ui.protection.unread_calls import UnreadCalls
from apps.ui.protection.uploads import UPLOAD_LIFETIME_S, UploadFolder
from apps.ui.protection.visitor import find_visitor_key
from apps.ui.runs.runs_page import build_runs_page
from apps.ui.settings import UiSettings

ASSETS = Path(__file__).with_name("assets")
"""Scripts and styles of our own, which the page serves as `page-assets/NAME`."""
MAX_CONCURRENT_EVENTS = 64
MAX_SESSIONS = 1000
"""Most tabs whose state is kept; beyond that Gradio drops the least recently used ones."""
QUEUE_POLL_S = 0.02
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Cpath d='M2 3c3 9 6 10 12 10' fill='none' stroke='%230d9488' stroke-width='2.5' "
    "stroke-linecap='round'/%3E%3C/svg%3E"
)

SCRIPT = '<script src="page-assets/page.js" defer></script>'


def build_blocks(client: ApiClient, uploads: UploadFolder) -> gr.Blocks:
    """Build the pages; they call the API only when a browser opens them."""
    blocks: gr.Blocks
    with gr.Blocks(
        analytics_enabled=False,
        title="Tuneserve",
        delete_cache=(UPLOAD_LIFETIME_S, UPLOAD_LIFETIME_S),
    ) as blocks:
        _start_page("")
        build_fine_tune_page(client, uploads)
    with blocks.route("Runs", "runs"):
        _start_page("runs")
        build_runs_page(client)
    with blocks.route("Chat", "chat"):
        _start_page("chat")
        build_chat_page(client)
    with blocks.route("Classify", "classify"):
        _start_page("classify")
        build_classify_page(client, uploads)
    with blocks.route("Models", "models"):
        _start_page("models")
        build_models_page(client)
    with blocks.route("Cluster", "cluster"):
        _start_page("cluster")
        build_cluster_page(client)
    blocks.state_session_capacity = MAX_SESSIONS
    blocks.queue(default_concurrency_limit=MAX_CONCURRENT_EVENTS)
    # By default Gradio polls its queue a thousand times a second.
    blocks._queue.sleep_when_free = QUEUE_POLL_S
    return blocks


def build_http(settings: UiSettings) -> PageGuard:
    """Build the page's ASGI application; it works under any path prefix."""
    uploads = UploadFolder()
    client = ApiClient(settings.api_url, find_visitor_key)
    keys = KeyCheck(client.access)
    app = build_gradio(settings, client, uploads)
    guarded = RouteGuard(
        app,
        uploads,
        settings.max_upload_bytes,
        app.state.has_function,
        keys.may_write_files,
        app.state.unread,
    )
    return PageGuard(
        ConsumptionReporting(WindowedSending(guarded)), keys.check, needs_key=settings.needs_key()
    )


def build_gradio(settings: UiSettings, client: ApiClient, uploads: UploadFolder) -> FastAPI:
    """Build the page with all routes of Gradio; it must not be exposed without its guards.

    `state.has_function` of the result returns whether a session has a function, given their ids;
    `state.unread` counts the calls whose results were not read.
    """

    @asynccontextmanager
    async def clean_up(_: FastAPI) -> AsyncIterator[None]:
        yield
        await client.close()
        uploads.remove()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=clean_up)
    uploads.set_as_gradio_folder()
    blocks = build_blocks(client, uploads)

    @app.get("/{page}/")
    async def drop_trailing_slash(page: str) -> RedirectResponse:  # Gradio's own loses the prefix
        return RedirectResponse(f"../{page}")

    @app.get("/page-assets/{name}")
    async def send_asset(name: str) -> Response:
        path = next((path for path in ASSETS.iterdir() if path.name == name), None)
        return FileResponse(path) if path else PlainTextResponse("not found", 404)

    add_download(app, client)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="SSR mode")  # it is off
        gr.mount_gradio_app(
            app,
            blocks,
            path="/",
            footer_links=[],
            run_history=False,
            max_file_size=settings.max_upload_bytes,
            show_error=False,  # internal errors are only logged
            ssr_mode=False,
            mcp_server=False,
            enable_monitoring=False,
            pwa=False,
            theme=build_theme(),
            css_paths=sorted(ASSETS.glob("*.css")),
            head=f'<link rel="icon" href="{ICON}">{SCRIPT}',
        )
    # Gradio checks the paths of files only in an application that is marked as launched.
    blocks.has_launched = True
    app.state.has_function = partial(_has_function, blocks)
    app.state.unread = UnreadCalls(partial(_count_events, blocks), partial(_forget, blocks))
    return app


def _has_function(blocks: gr.Blocks, session: str, function: int) -> bool:
    """Return whether a session has a function; those of `gr.render` exist only in one session."""
    found = blocks.state_holder.session_data.get(session)
    return function in (blocks if found is None else found.blocks_config).fns


def _count_events(blocks: gr.Blocks, session: str) -> int:
    """Return the number of events queued for the stream of a session."""
    events = blocks._queue.pending_messages_per_session.get(session)
    return 0 if events is None else events.qsize()


def _forget(blocks: gr.Blocks, session: str) -> None:
    """Drop the unread results and the state of a session."""
    blocks._queue.pending_messages_per_session.pop(session, None)
    blocks._queue.pending_event_ids_session.pop(session, None)
    blocks.state_holder.session_data.pop(session, None)
    blocks.state_holder.time_last_used.pop(session, None)


def build_theme() -> gr.themes.Base:
    """Build the theme; it uses system fonts, so that no font is loaded from another server."""
    return gr.themes.Base(
        primary_hue="teal",
        secondary_hue="teal",
        neutral_hue="slate",
        radius_size="md",
        font=["ui-sans-serif", "system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    ).set(
        body_background_fill="*neutral_50",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_text_color="white",
        block_shadow="none",
    )


def _start_page(path: str) -> None:
    gr.HTML(markup.render_header(path), elem_id="page-header")
