"""Merging of a stored adapter into its base model, in a process of its own."""

import logging
import os
import subprocess
import sys

from apps.errors import ApiError
from apps.fine_tuning.index.run_lookup import check_new_model
from apps.http_api.dependencies import Services
from apps.usage_limits import check_model_space
from serving.errors import InvalidRequestError
from serving.store.clean_up import ADDED_PREFIX
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from storage.layout import StorageLayout
from storage.locks import lock_exclusive
from storage.scratch import build_in_scratch

logger = logging.getLogger(__name__)


def check_merge(services: Services, adapter: StoredModel, model_id: str) -> StoredModel:
    """Return the base model of an adapter that may be merged into a model with a new id.

    Raises `InvalidRequestError` for a complete model, `EngineDeadError` if the base is not in the
    store, and `ApiError` 409 for an id that is taken and 507 if there is no room for the model.
    """
    if not adapter.is_adapter:
        message = f"{adapter.id!r} is a complete model; only an adapter can be merged"
        raise InvalidRequestError(message, param="model", code="not_an_adapter")
    base = services.models.get_base(adapter)
    check_new_model(services.layout, services.runs, model_id)
    new_bytes = services.model_sizes.measure_model(base.id)
    check_model_space(services.model_sizes.measure(), services.limits, new_bytes)
    return base


def merge_stored_adapter(
    layout: StorageLayout, adapter: StoredModel, base: StoredModel, model_id: str
) -> StoredModel:
    """Publish the base model with an adapter merged into its weights; block until it is verified.

    Waits for exports on the same storage: each may need much memory. Raises `ApiError` 409 if the
    adapter cannot be merged, and what the store raises.
    """
    with (
        adapter.lock_shared(),
        base.lock_shared(),
        lock_exclusive(layout.export_lock),
        build_in_scratch(layout.models, ADDED_PREFIX) as building,
    ):
        output = building / "merged"
        command = [sys.executable, "-m", "training.export.merge"]
        ended = subprocess.run(  # noqa: S603 - our own command
            [*command, str(adapter.path), str(base.path), str(output)],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "1",
            },
        )
        if ended.returncode != 0:
            raise _explain_failure(adapter.id, ended)
        return ModelStore(layout).publish(output, model_id)


def _explain_failure(adapter_id: str, ended: "subprocess.CompletedProcess[str]") -> ApiError:
    logger.error("adapter %s was not merged: %s", adapter_id, ended.stderr)
    lines = [line for line in ended.stderr.splitlines() if line.startswith("failed: ")]
    if ended.returncode == 1 and lines:
        reason = lines[-1].removeprefix("failed: ")
    else:
        reason = f"its process ended with status {ended.returncode}; the server's log has more"
    message = f"adapter {adapter_id!r} was not merged: {reason}"
    return ApiError(409, message, param="model", code="merge_failed")
