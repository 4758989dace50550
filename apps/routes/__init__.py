"""The HTTP API, one module per resource; each offers a `router`."""

from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import BaseModel

from apps.relay import UpstreamRelay
from apps.services import Services, TextGenerator


def get_services(request: Request) -> Services:
    """Hand a route what it works with."""
    services: Services = request.app.state.services
    return services


ServicesOf = Annotated[Services, Depends(get_services)]


def get_generator(services: ServicesOf) -> TextGenerator:
    """Hand a route the generators; there are none where other servers answer."""
    assert not isinstance(services.text, UpstreamRelay)
    return services.text


def get_relay(services: ServicesOf) -> UpstreamRelay:
    """Hand a route what hands requests on to other servers."""
    assert isinstance(services.text, UpstreamRelay)
    return services.text


GeneratorOf = Annotated[TextGenerator, Depends(get_generator)]
RelayOf = Annotated[UpstreamRelay, Depends(get_relay)]


def describe_body(model: type[BaseModel]) -> dict[str, Any]:
    """Describe a body that a route checks by itself, for `/openapi.json`."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    parts = schema.pop("$defs", {})
    return {"requestBody": {"content": {"application/json": {"schema": _inline(schema, parts)}}}}


def _inline(schema: Any, parts: dict[str, Any]) -> Any:
    """Put the parts of a schema where they are referred to; none of ours contains itself."""
    if isinstance(schema, list):
        return [_inline(item, parts) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if (reference := schema.get("$ref")) is not None:
        return _inline(parts[reference.rpartition("/")[2]], parts)
    return {key: _inline(value, parts) for key, value in schema.items()}
