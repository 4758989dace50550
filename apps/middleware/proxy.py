"""The middleware that Serve's proxy loads (`RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`)."""

from starlette.middleware import Middleware

from apps.middleware.cached_files import CachedFiles
from apps.middleware.connection_limits import install_connection_limits
from apps.middleware.drain import DrainGate
from apps.middleware.flow_control import DeliveryReporting, WindowedReading
from apps.middleware.proxy_limits import BodyCap, CleanScope
from apps.middleware.starting import StartingGate


def build_middlewares() -> list[Middleware]:
    """Return the middleware of the proxy in the order that Serve expects: outermost last.

    Serve calls this before it starts uvicorn, so it also installs the connection limits.
    """
    install_connection_limits()
    return [
        Middleware(CachedFiles),
        Middleware(WindowedReading),
        Middleware(DeliveryReporting),
        Middleware(StartingGate),
        Middleware(BodyCap),
        Middleware(DrainGate),
        Middleware(CleanScope),
    ]
