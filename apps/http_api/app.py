"""Assembly of the HTTP API, and the replica that runs it.

Nothing here imports torch: a replica of the API needs a third of the memory of one that does.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle
from starlette.routing import Route

from apps.access.audit import AuditLog
from apps.access.exposure_check import check_exposure, find_serve_host
from apps.access.gate import Gate, read_api_key
from apps.access.keys import KeyStore
from apps.access.rate_limit import RateLimiter
from apps.access.roles import Permission, requires
from apps.access.settings import AccessSettings
from apps.errors import install_error_handlers
from apps.file_store import FileStore
from apps.http_api.cluster.cluster_view import ClusterView
from apps.http_api.dependencies import Services
from apps.http_api.openapi.description import install_description
from apps.http_api.readiness import Readiness
from apps.http_api.routes import (
    access,
    aliases,
    classify,
    cluster,
    embeddings,
    evaluations,
    files,
    health,
    job_events,
    jobs,
    model_cards,
    models,
    row_listing,
    text,
    upstream,
)
from apps.http_api.serve_handles import QueueClient, QueueEvaluations, RemoteClassifier, RemoteText
from apps.hub import hub_routes
from apps.middleware.admission import Admission
from apps.middleware.audit import RequestLog
from apps.middleware.auth import AccessControl
from apps.middleware.body_limit import MAX_IMAGES_BYTES, MAX_JSON_BYTES, MAX_TEXT_BYTES, BodyLimit
from apps.middleware.flow_control import ConsumptionReporting, WindowedSending
from apps.middleware.rate_limit import RateLimit
from apps.settings import ApplicationSettings
from apps.upstream.proxy import UpstreamProxy
from serving.serve_log import log_to_serve
from serving.store.model_store import ModelStore
from storage.layout import open_storage
from storage.privacy import keep_files_private
from system.allocator import return_large_blocks

MULTIPART_BYTES = 100_000  # overhead of a form on top of its file
TRANSPORT_S = 5.0  # transport time, added to a generator's deadline


def build_http(
    services: Services, api_key: str | None, settings: AccessSettings | None = None
) -> RequestLog:
    """Build the ASGI application with all middlewares; the same with and without Serve."""
    settings = settings or AccessSettings()
    app = build_routes(services)
    limits = {
        f"POST {files.router.prefix}": services.max_upload_bytes + MULTIPART_BYTES,
        f"PUT {models.router.prefix}": services.max_model_bytes,
        "POST /v1/chat/completions": MAX_TEXT_BYTES,
        "POST /v1/completions": MAX_TEXT_BYTES,
        "POST /v1/classify": MAX_IMAGES_BYTES,
        "POST /v1/embeddings": MAX_TEXT_BYTES,
    }
    admitted = Admission(BodyLimit(app, MAX_JSON_BYTES, limits), services.max_streams)
    limited = ConsumptionReporting(WindowedSending(admitted))
    gate = Gate(api_key, KeyStore(services.layout), require_key=settings.require_key)
    audit = AuditLog(
        services.layout, max_bytes=settings.audit_max_bytes, num_old=settings.audit_num_old
    )
    guarded = AccessControl(RateLimit(limited, RateLimiter()), gate, app.routes)
    return RequestLog(guarded, audit)


def build_routes(services: Services) -> FastAPI:
    """Build the routes without the middlewares in front of them."""
    app = FastAPI(
        title="Tuneserve",
        lifespan=_open_proxy if isinstance(services.text, UpstreamProxy) else None,
        docs_url=None,  # it loads scripts from another site; /openapi.json describes the API
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,  # for generated clients
    )
    app.state.services = services
    app.state.readiness = Readiness(services)
    app.state.cluster = ClusterView(
        services.runs, services.model_sizes, services.nodes, services.machine
    )
    install_error_handlers(app)
    for resource in (access, health, files, jobs, job_events, aliases, classify, embeddings):
        app.include_router(resource.router)
    for resource in (row_listing, models, hub_routes, model_cards, evaluations, cluster):
        app.include_router(resource.router)
    install_description(app)
    app.include_router((upstream if isinstance(services.text, UpstreamProxy) else text).router)
    for route in app.routes:  # FastAPI adds this route automatically
        if isinstance(route, Route) and route.path == app.openapi_url:
            requires(Permission.ANY_KEY)(route.endpoint)
    return app


@asynccontextmanager
async def _open_proxy(app: FastAPI) -> AsyncIterator[None]:
    proxy: UpstreamProxy = app.state.services.text
    await proxy.open()
    try:
        yield
    finally:
        await proxy.close()


class ApiReplica:
    """The HTTP API; all its state is on disk or in the other deployments."""

    def __init__(
        self,
        storage: str,
        settings: ApplicationSettings,
        generator: DeploymentHandle[Any] | None,
        queue: DeploymentHandle[Any],
        classifier: DeploymentHandle[Any],
    ) -> None:
        keep_files_private()
        return_large_blocks()
        log_to_serve()
        layout = open_storage(Path(storage))
        self._access = settings.read_access()
        gate = Gate(read_api_key(), KeyStore(layout), require_key=settings.require_key)
        check_exposure(gate, find_serve_host())
        models = ModelStore(layout)
        self._services = Services(
            layout=layout,
            files=FileStore(layout),
            models=models,
            text=_find_text(settings, models, generator),
            classifier=RemoteClassifier(
                classifier,
                timeout_s=settings.classifier.request_timeout_s + TRANSPORT_S,
                log_texts=settings.log_texts,
            ),
            fine_tuning=QueueClient(queue),
            evaluating=QueueEvaluations(queue),
            max_upload_bytes=settings.max_upload_bytes,
            max_model_bytes=settings.max_model_bytes,
            limits=settings.to_limits(),
            hub=settings.hub,
            min_free_bytes=settings.min_free_bytes,
            max_streams=settings.max_streams,
            max_stream_age_s=settings.max_stream_age_s,
        )
        self._services.machine.start()

    def __serve_build_asgi_app__(self) -> RequestLog:
        """Return the ASGI application to Serve, after this replica is set up."""
        return build_http(self._services, read_api_key(), self._access)


def _find_text(
    settings: ApplicationSettings, models: ModelStore, generator: DeploymentHandle[Any] | None
) -> RemoteText | UpstreamProxy:
    """Return the service for text requests: generators or upstreams."""
    timeout_s = settings.engine.request_timeout_s
    if generator is None:
        return UpstreamProxy(models, settings.upstreams, timeout_s=timeout_s)
    return find_generators(settings, models, generator)


def find_generators(
    settings: ApplicationSettings, models: ModelStore, generator: DeploymentHandle[Any]
) -> RemoteText:
    """Return the generators behind a Serve handle."""
    return RemoteText(
        generator,
        models=models if settings.replicas.max > 1 else None,
        timeout_s=settings.engine.request_timeout_s + TRANSPORT_S,
        may_sleep=settings.replicas.min == 0,
        log_texts=settings.log_texts,
    )
