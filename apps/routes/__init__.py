"""The HTTP API, one module per resource; each offers a `router`."""

from typing import Annotated

from fastapi import Depends, Request

from apps.services import Services


def get_services(request: Request) -> Services:
    """Hand a route what it works with."""
    services: Services = request.app.state.services
    return services


ServicesOf = Annotated[Services, Depends(get_services)]
