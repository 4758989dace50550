"""The web page to start jobs, watch them and chat with the result; it uses only our HTTP API."""

from apps.ui.deployment import build_app
from apps.ui.settings import UiSettings

__all__ = ["UiSettings", "build_app"]
