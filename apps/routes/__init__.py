"""The HTTP API, one module per resource; each offers a `router`."""

from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import BaseModel

from apps.services import Services


def get_services(request: Request) -> Services:
    """Hand a route what it works with."""
    services: Services = request.app.state.services
    return services


ServicesOf = Annotated[Services, Depends(get_services)]


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
