"""The HTTP API, one module per resource; each offers a `router`.

What every request depends on is `async`: FastAPI would run it on one of the threads that routes
share, and wait for one while they are all in use.
"""

from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import BaseModel

from apps.access.exchange import find_principal
from apps.access.gate import Principal
from apps.relay import UpstreamRelay
from apps.services import Services, TextGenerator


async def get_services(request: Request) -> Services:
    """Hand a route what it works with."""
    services: Services = request.app.state.services
    return services


ServicesOf = Annotated[Services, Depends(get_services)]


async def get_principal(request: Request) -> Principal:
    """Tell a route who sent the request."""
    return find_principal(request.scope)


async def get_generator(services: ServicesOf) -> TextGenerator:
    """Hand a route the generators; there are none where other servers answer."""
    assert not isinstance(services.text, UpstreamRelay)
    return services.text


async def get_relay(services: ServicesOf) -> UpstreamRelay:
    """Hand a route what hands requests on to other servers."""
    assert isinstance(services.text, UpstreamRelay)
    return services.text


PrincipalOf = Annotated[Principal, Depends(get_principal)]
GeneratorOf = Annotated[TextGenerator, Depends(get_generator)]
RelayOf = Annotated[UpstreamRelay, Depends(get_relay)]


def describe_body(model: type[BaseModel] | str, *, is_required: bool = True) -> dict[str, Any]:
    """Describe a body that a route validates by itself; `apps.http_api.description` has schemas."""
    name = model if isinstance(model, str) else model.__name__
    schema = {"$ref": f"#/components/schemas/{name}"}
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": is_required, "content": content}}
