"""The page as a Serve deployment: one replica, because Gradio keeps its sessions in process."""

from ray import serve
from ray.serve import Application

from apps.logical_cpus import PAGE_CPUS
from apps.ui.page import build_http
from apps.ui.protection.access import PageGuard
from apps.ui.settings import UiSettings
from storage.privacy import keep_files_private


@serve.deployment(
    num_replicas=1,
    max_ongoing_requests=512,  # an open page keeps a stream open
    max_queued_requests=512,
    ray_actor_options={"num_cpus": PAGE_CPUS},
    graceful_shutdown_timeout_s=2,
)
@serve.ingress()
class Ui:
    """The page behind Serve, under any `route_prefix`."""

    def __init__(self, settings: UiSettings) -> None:
        keep_files_private()
        self._settings = settings

    def __serve_build_asgi_app__(self) -> PageGuard:
        """Return the ASGI application to Serve, once this replica is initialized."""
        return build_http(self._settings)


def build_app(settings: UiSettings) -> Application:
    """Build the application that `deploy.yaml` names, with typed and checked settings."""
    return Ui.bind(settings)  # type: ignore[attr-defined,no-any-return] # serve.ingress hides it
