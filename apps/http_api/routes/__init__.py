"""The HTTP API: one module per resource, each with a `router`.

The dependencies of requests are `async`: FastAPI would run synchronous ones in the thread pool that
the routes share, and a request would wait while all threads are in use.
"""

from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import BaseModel

from apps.access.exchange import find_principal
from apps.access.gate import Principal
from apps.http_api.dependencies import Services, TextGenerator
from apps.upstream.proxy import UpstreamProxy


async def get_services(request: Request) -> Services:
    """Return the services for a route."""
    services: Services = request.app.state.services
    return services


ServicesOf = Annotated[Services, Depends(get_services)]


async def get_principal(request: Request) -> Principal:
    """Return the principal that sent the request."""
    return find_principal(request.scope)


async def get_generator(services: ServicesOf) -> TextGenerator:
    """Return the generator; an application with upstreams has none."""
    assert not isinstance(services.text, UpstreamProxy)
    return services.text


async def get_proxy(services: ServicesOf) -> UpstreamProxy:
    """Return the proxy, which forwards requests to upstreams."""
    assert isinstance(services.text, UpstreamProxy)
    return services.text


PrincipalOf = Annotated[Principal, Depends(get_principal)]
GeneratorOf = Annotated[TextGenerator, Depends(get_generator)]
ProxyOf = Annotated[UpstreamProxy, Depends(get_proxy)]


def describe_body(model: type[BaseModel] | str, *, is_required: bool = True) -> dict[str, Any]:
    """Describe a body that the route validates; its schema is in `apps.http_api.openapi`."""
    name = model if isinstance(model, str) else model.__name__
    schema = {"$ref": f"#/components/schemas/{name}"}
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": is_required, "content": content}}
