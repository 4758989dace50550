"""The part of the stub API about the hub: what is permitted, and transfers that the test sets."""

from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI


@dataclass
class StubHub:
    """What may be installed and pushed, and the transfers, newest first."""

    install: list[str] = field(default_factory=list)
    push: list[str] = field(default_factory=list)
    transfers: list[dict[str, Any]] = field(default_factory=list)

    def add(self, kind: str, status: str, **changes: Any) -> None:
        """Add a transfer to the front of the list."""
        transfer = {
            "id": f"transfer-{len(self.transfers) + 1}",
            "object": "hub.transfer",
            "kind": kind,
            "model": "base",
            "repository": "org/model",
            "revision": None,
            "commit": None,
            "created": 1_700_000_000,
            "step": "downloading",
            "bytes": 0,
            "total_bytes": None,
            "status": status,
            "url": None,
            "error": None,
            **changes,
        }
        self.transfers.insert(0, transfer)


def add_hub_routes(app: FastAPI, hub: StubHub) -> None:
    """Add the routes that the page reads."""

    @app.get("/v1/hub")
    def show_hub() -> dict[str, Any]:
        return {"object": "hub", "install": hub.install, "push": hub.push}

    @app.get("/v1/hub/transfers")
    def list_transfers() -> dict[str, Any]:
        return {"object": "list", "data": hub.transfers}
