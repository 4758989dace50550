"""Ray's ingress for language models, behind our API keys; importing it requires vLLM."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.llm._internal.serve.core.configs.openai_api_models import (
    ModelCard,
    ModelList,
    to_model_metadata,
)
from ray.llm._internal.serve.core.ingress.ingress import init
from ray.serve import Application
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.llm import LLMConfig, build_llm_deployment
from ray.serve.llm.ingress import OpenAiIngress, make_fastapi_ingress
from vllm.entrypoints.openai.models.protocol import LoRAModulePath

from apps.logical_cpus import INGRESS_CPUS
from apps.middleware.admin_guard import AdminGuard
from apps.upstream.vllm_app import (
    SHUTDOWN_TIMEOUT_S,
    ModelConfig,
    VllmSettings,
    list_adapter_ids,
)

logger = logging.getLogger(__name__)

_RETRY_S = 1.0


class LoadedModelsIngress(OpenAiIngress):
    """An ingress that lists a model only once it is loaded.

    Ray's own ingress lists what is configured, and an alias would switch to a model that is still
    loading.
    """

    def __init__(
        self,
        llm_deployments: dict[str, DeploymentHandle[Any]],
        model_cards: dict[str, ModelCard],
    ) -> None:
        super().__init__(llm_deployments, model_cards)
        self._loading = {
            model_id: asyncio.ensure_future(_wait_until_loaded(model_id, handle))
            for model_id, handle in llm_deployments.items()
        }

    async def models(self) -> ModelList:
        """List the models that are loaded."""
        listed = await super().models()
        return ModelList(data=[card for card in listed.data if self._is_loaded(card.id)])

    def _is_loaded(self, model_id: str) -> bool:
        waiting = self._loading[model_id]
        return waiting.done() and waiting.exception() is None


async def _wait_until_loaded(model_id: str, handle: DeploymentHandle[Any]) -> None:
    """Return when a replica has responded: it accepts calls once its engine is up."""
    while True:
        try:
            await handle.check_health.remote()
        except (RayError, RayServeException) as exc:
            logger.warning("model %s is not loaded: %s", model_id, exc)
            await asyncio.sleep(_RETRY_S)
        else:
            return


def bind_ingress(configs: Sequence[ModelConfig], settings: VllmSettings) -> Application:
    """Bind the models of some `LLMConfig`s to one ingress with access control."""
    max_requests = settings.max_requests
    deployments: dict[str, Application] = {}
    cards: dict[str, ModelCard] = {}
    for config in configs:
        checked = LLMConfig.model_validate(_convert_adapters(config))
        deployment = build_llm_deployment(checked)
        for model_id in (checked.model_id, *list_adapter_ids(config)):
            deployments[model_id] = deployment  # the engine finds an adapter by the request's model
            cards[model_id] = to_model_metadata(model_id, checked)
    app = init()
    # The outermost middleware.
    app.add_middleware(AdminGuard, storage=settings.storage, require_key=settings.require_key)
    ingress: Any = serve.deployment(  # Ray's annotation is that of a decorator with arguments
        make_fastapi_ingress(LoadedModelsIngress, app=app),
        name="Ingress",
        num_replicas=1,
        max_ongoing_requests=max_requests,
        max_queued_requests=max_requests,
        ray_actor_options={"num_cpus": INGRESS_CPUS},
        graceful_shutdown_timeout_s=SHUTDOWN_TIMEOUT_S,
    )
    bound: Application = ingress.bind(llm_deployments=deployments, model_cards=cards)
    return bound


def _convert_adapters(config: ModelConfig) -> dict[str, object]:
    """Replace descriptions of adapters by vLLM's objects: Ray passes them on unchanged."""
    arguments = dict(config["engine_kwargs"])
    listed: Any = arguments.get("lora_modules")
    if listed is not None:
        arguments["lora_modules"] = [LoRAModulePath(**adapter) for adapter in listed]
    return {**config, "engine_kwargs": arguments}
