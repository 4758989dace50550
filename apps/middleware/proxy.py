"""The middleware that Serve's proxy loads (`RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`)."""

from starlette.middleware import Middleware

from apps.middleware.connection_limits import install_connection_limits
from apps.middleware.drain import DrainGate
from apps.middleware.flow_control import TellTaken, WindowedReading
from apps.middleware.proxy_limits import BodyCap, CleanScope
from apps.middleware.starting import StartingGate


def build_middlewares() -> list[Middleware]:
    """List the middleware of the proxy, as Serve asks for it; the last one is outermost.

    Serve calls this before it starts uvicorn, which gets the limits of connections here.
    """
    install_connection_limits()
    return [
        Middleware(WindowedReading),
        Middleware(TellTaken),
        Middleware(StartingGate),
        Middleware(BodyCap),
        Middleware(DrainGate),
        Middleware(CleanScope),
    ]
