"""The web application: pages with their own URLs and a common theme."""

import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import gradio as gr
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.middleware.flow_control import ConsumptionReporting, WindowedSending
from apps.ui import markup
from apps.ui.chat.chat_page import build_chat_page
from apps.ui.classify import build_classify_page
from apps.ui.cluster.cluster_page import build_cluster_page
from apps.ui.compare.compare_page import build_compare_page
from apps.ui.error_messages import describe_error
from apps.ui.evaluate.evaluate_page import build_evaluate_page
from apps.ui.evaluate.evaluation_download import add_row_download
from apps.ui.fine_tune.fine_tune_page import build_fine_tune_page
from apps.ui.frame.api_reference import render_reference
from apps.ui.frame.assets import ASSETS, send_asset
from apps.ui.frame.document import render_document
from apps.ui.frame.first_views import FirstViews
from apps.ui.frame.page_frame import PageFrame, send_not_found
from apps.ui.gradio_internals import build_without_apps, complete_cancelled_calls
from apps.ui.models.model_download import ARCHIVE_TYPE, add_download
from apps.ui.models.models_page import build_models_page
from apps.ui.protection.access import PageGuard, read_password
from apps.ui.protection.key_check import KeyCheck
from apps.ui.protection.route_allowlist import RouteGuard
from apps.ui.protection.unread_calls import UnreadCalls
from apps.ui.protection.uploads import UPLOAD_LIFETIME_S, UploadFolder
from apps.ui.protection.visitor import find_visitor_key
from apps.ui.runs.runs_page import build_runs_page
from apps.ui.settings import UiSettings

MAX_CONCURRENT_EVENTS = 64
MAX_SESSIONS = 1000
"""Most tabs whose state is kept; beyond that Gradio drops the least recently used ones."""
QUEUE_POLL_S = 0.02
MIN_COMPRESSED_BYTES = 500
TEXTS = {"common.complete": "Done"}
"""Texts that Gradio's own translations lack: it would show their names."""


def build_blocks(client: ApiClient, uploads: UploadFolder, first_views: FirstViews) -> gr.Blocks:
    """Build the pages; they call the API only when a browser opens them."""
    blocks: gr.Blocks
    with gr.Blocks(
        analytics_enabled=False,
        title="Tuneserve",
        delete_cache=(UPLOAD_LIFETIME_S, UPLOAD_LIFETIME_S),
    ) as blocks:
        _start_page("")
        build_fine_tune_page(client, uploads, first_views)
    others: Mapping[str, Callable[[ApiClient], None]] = {
        "runs": partial(build_runs_page, first_views=first_views),
        "chat": partial(build_chat_page, first_views=first_views),
        "compare": partial(build_compare_page, first_views=first_views),
        "evaluate": partial(build_evaluate_page, first_views=first_views),
        "classify": partial(build_classify_page, uploads=uploads),
        "models": partial(build_models_page, first_views=first_views),
        "cluster": partial(build_cluster_page, first_views=first_views),
    }
    for path, build in others.items():
        with blocks.route(markup.TITLES[path], path):
            _start_page(path)
            build(client)
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
        app.state.functions,
        keys.may_write_files,
        app.state.unread,
        send_not_found,
    )
    return PageGuard(
        ConsumptionReporting(WindowedSending(guarded)), keys.check, needs_key=settings.needs_key()
    )


def build_gradio(settings: UiSettings, client: ApiClient, uploads: UploadFolder) -> FastAPI:
    """Build the page with all routes of Gradio; it must not be exposed without its guards.

    `state.functions` of the result has the functions of the pages by their ids; `state.unread`
    counts the calls whose results were not read.
    """

    @asynccontextmanager
    async def clean_up(_: FastAPI) -> AsyncIterator[None]:
        yield
        await client.close()
        uploads.remove()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=clean_up)
    uploads.set_as_gradio_folder()
    complete_cancelled_calls()
    with build_without_apps():
        blocks = build_blocks(client, uploads, first_views := FirstViews())
    _add_routes(app, client)
    app.add_middleware(PageFrame, blocks=blocks, first_views=first_views)
    app.add_middleware(
        GZipMiddleware,
        minimum_size=MIN_COMPRESSED_BYTES,
        exclude_content_types=(*DEFAULT_EXCLUDED_CONTENT_TYPES, ARCHIVE_TYPE),
    )
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
            i18n=gr.I18n(en=TEXTS),
        )
    # Gradio checks the paths of files only in an application that is marked as launched.
    blocks.has_launched = True
    app.state.functions = blocks.default_config.fns
    app.state.unread = UnreadCalls(partial(_count_events, blocks), partial(_forget, blocks))
    return app


def _add_routes(app: FastAPI, client: ApiClient) -> None:
    """Add the routes that are not of Gradio."""

    @app.get("/{page}/")
    async def drop_trailing_slash(page: str) -> RedirectResponse:  # Gradio's own loses the prefix
        return RedirectResponse(f"../{page}")

    @app.get("/page-assets/{name}")
    async def send_file(name: str, request: Request) -> Response:
        return send_asset(name, request.url.query)

    add_download(app, client)
    add_row_download(app, client)

    @app.get("/favicon.ico")
    async def send_icon() -> Response:
        return FileResponse(ASSETS / "icon.svg", media_type="image/svg+xml")

    @app.get(f"/{markup.API_PAGE}")
    async def describe_api(request: Request) -> Response:
        key = read_password(request.headers.get("authorization", ""))
        try:
            content, status = render_reference(await client.description.read(key)), 200
        except ApiClientError as exc:
            content, status = markup.render_notice(describe_error(exc), "error"), 503
        return HTMLResponse(render_document("HTTP API", markup.API_PAGE, content), status)


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
        # Gradio's own greys have a contrast of 2.5; 4.5 is needed to read them.
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_400",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_400",
        input_placeholder_color="*neutral_500",
        input_placeholder_color_dark="*neutral_400",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_800",
        button_primary_text_color="white",
        block_shadow="none",
    )


def _start_page(path: str) -> None:
    title = markup.TITLES[path]
    gr.HTML(f'<h1 class="ts-hidden">{title}</h1>', elem_id="page-title")
