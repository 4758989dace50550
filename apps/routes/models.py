"""`/v1/models`: what can be chatted with and fine-tuned."""

from typing import Any

from fastapi import APIRouter

from apps.bundled import DEMONSTRATION_MODEL
from apps.queue import find_root
from apps.routes import ServicesOf
from apps.services import Services
from serving.model_store import StoredModel

router = APIRouter(prefix="/v1/models")


@router.get("")
async def list_models(services: ServicesOf) -> dict[str, Any]:
    """List all models, newest first."""
    models = sorted(services.models.list_models(), key=lambda model: model.created_at, reverse=True)
    return {"object": "list", "data": [describe_model(services, model) for model in models]}


@router.get("/{model_id}")
async def get_model(services: ServicesOf, model_id: str) -> dict[str, Any]:
    """Show one model, by its id or an alias."""
    return describe_model(services, services.models.resolve(model_id))


def describe_model(services: Services, model: StoredModel) -> dict[str, Any]:
    """Show a model as OpenAI does, with its aliases and where it came from."""
    aliases = services.models.read_aliases()
    return {
        "id": model.id,
        "object": "model",
        "created": model.created_at,
        "owned_by": "tuneserve",
        "aliases": [name for name, alias in aliases.items() if alias.model_id == model.id],
        "base": "run_id" not in model.lineage,
        "demonstration": find_root(services.models, model) == DEMONSTRATION_MODEL,
        "run_id": model.lineage.get("run_id"),
    }
