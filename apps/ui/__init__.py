"""The web page: start fine-tunes, watch them, chat with the result; it speaks only our HTTP API."""

from apps.ui.deployment import build_app
from apps.ui.settings import UiSettings

__all__ = ["UiSettings", "build_app"]
