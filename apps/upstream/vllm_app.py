"""Serving of models from the store on GPUs: Ray Serve's LLM support with vLLM, behind our API keys.

`deploy.vllm.yaml` names this module; the API relays requests to it (`apps/upstream/proxy.py`). vLLM
is imported only when an application is built, since it is an optional dependency.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypedDict

from pydantic import BaseModel, ConfigDict, Field
from ray.serve import Application

from apps.access.exposure_check import check_exposure, find_serve_host
from apps.access.gate import Gate, read_api_key
from apps.access.keys import KeyStore
from apps.upstream.vllm_adapters import build_adapter_arguments
from model_files.refused_keys import check_keys
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from storage.layout import DEFAULT_ROOT, open_storage

BASE_MODEL_TIMEOUT_S = 60.0  # within which the API's application adds its base models
_POLL_S = 0.5
SHUTDOWN_TIMEOUT_S = 150.0  # for requests in progress


class VllmSettings(BaseModel):
    """Arguments of `apps.upstream.vllm_app:build_app`; an unknown key is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    storage: str = Field(DEFAULT_ROOT, min_length=1, description="The API's storage folder.")
    models: tuple[str, ...] = Field(
        min_length=1,
        description="Ids of models and adapters in the store; an adapter is loaded beside its base "
        "model, which is served too. Aliases are the API's matter.",
    )
    accelerator_type: str | None = Field(
        None, description="The kind of GPU, as Ray calls it; any if absent."
    )
    engine: Mapping[str, object] = Field(
        default_factory=dict, description="Arguments of vLLM's engine, for every model."
    )
    deployment: Mapping[str, object] = Field(
        default_factory=dict, description="Serve's options for the replicas of every model."
    )
    max_requests: int = Field(
        256, ge=1, description="Requests that may be under way at once; as many may wait."
    )
    require_key: bool = Field(
        False, description="Whether every request needs a key, also while none exists."
    )


class ModelSource(TypedDict):
    """The id of a model, and the folder that it is loaded from."""

    model_id: str
    model_source: str


class ModelConfig(TypedDict):
    """The fields of Ray's `LLMConfig` for one model."""

    model_loading_config: ModelSource
    accelerator_type: str | None
    engine_kwargs: Mapping[str, object]
    deployment_config: Mapping[str, object]


def build_app(settings: VllmSettings) -> Application:
    """Build an application that serves models of the store, each on its own GPUs.

    Adapters are loaded beside their base model. Raises `ModelNotFoundError` for an unknown model,
    `EngineDeadError` for an adapter without its base model, `DamagedDirectoryError` for one whose
    files have changed, `NewerFormatError` for one of a newer release, and `ValueError` if vLLM is
    not installed, the settings of a model name a file to open, or vLLM would compute an adapter
    differently.
    """
    layout = open_storage(settings.storage)
    gate = Gate(read_api_key(), KeyStore(layout), require_key=settings.require_key)
    check_exposure(gate, find_serve_host())
    store = ModelStore(layout)
    configs = list(describe_models(store, settings))
    try:
        from apps.upstream.vllm_ingress import bind_ingress
    except ImportError as exc:
        raise ValueError(
            f"vLLM cannot be used here ({exc}); install it with: pip install 'tuneserve[vllm]'"
        ) from exc
    return bind_ingress(configs, settings)


def describe_models(store: ModelStore, settings: VllmSettings) -> Iterator[ModelConfig]:
    """Yield Ray's `LLMConfig` for every complete model, after checking that files are unchanged.

    Raises as `build_app` does.
    """
    options: dict[str, object] = {"graceful_shutdown_timeout_s": SHUTDOWN_TIMEOUT_S}
    if "autoscaling_config" not in settings.deployment:
        options["num_replicas"] = 1
    for model, adapters in _group_by_base(store, settings.models).items():
        for loaded in (model, *adapters):
            loaded.verify()
            _check_settings(loaded)
        yield {
            "model_loading_config": {"model_id": model.id, "model_source": str(model.path)},
            "accelerator_type": settings.accelerator_type,
            "engine_kwargs": {**build_adapter_arguments(model, adapters), **settings.engine},
            "deployment_config": {**options, **settings.deployment},
        }


def list_adapter_ids(config: ModelConfig) -> list[str]:
    """List the ids of the adapters that `describe_models` put beside a model."""
    listed: Any = config["engine_kwargs"].get("lora_modules", [])
    return [adapter["name"] for adapter in listed]


def _group_by_base(
    store: ModelStore, model_ids: Iterable[str]
) -> dict[StoredModel, list[StoredModel]]:
    """Return the complete models to load, each with the adapters that are loaded beside it."""
    groups: dict[StoredModel, list[StoredModel]] = {}
    for model_id in dict.fromkeys(model_ids):
        model = _wait_for(store, model_id)
        if model.is_adapter:
            groups.setdefault(store.get_base(model), []).append(model)
        else:
            groups.setdefault(model, [])
    return groups


def _check_settings(model: StoredModel) -> None:
    """Refuse a model whose settings would make vLLM open a file.

    Earlier releases accepted such models.
    """
    try:
        check_keys(model.path)
    except ValueError as exc:
        raise ValueError(
            f"model {model.id!r} is not given to vLLM: {exc}; delete the model and import it again"
        ) from exc


def _wait_for(store: ModelStore, model_id: str) -> StoredModel:
    """Return a model; on the first start, wait until the API's application has added it."""
    if model_id in store.read_aliases():
        raise ValueError(f"{model_id!r} is an alias; name the model that it points to")
    deadline = time.monotonic() + BASE_MODEL_TIMEOUT_S
    while store.find(model_id) is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return store.get(model_id)
