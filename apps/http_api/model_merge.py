"""Merging of stored adapters into their base models, in the background, one at a time."""

import json
import logging
from contextlib import ExitStack
from threading import Thread

from apps.errors import ApiError, to_response
from apps.fine_tuning.index.merge_notes import (
    MergeFailure,
    MergeNote,
    begin_note,
    list_merging,
    reserve_merge,
    write_merge,
)
from apps.fine_tuning.index.run_lookup import check_new_model
from apps.http_api.dependencies import Services
from apps.http_api.merge_process import check_merge_memory, run_merge
from apps.usage_limits import check_model_space
from serving.errors import EngineDeadError, InvalidRequestError, OverloadedError
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from storage.locks import lock_exclusive
from storage.scratch import ScratchFolder

logger = logging.getLogger(__name__)

_MAX_MERGES = 4
_RETRY_AFTER_S = 60


def begin_merge(services: Services, adapter: StoredModel, model_id: str) -> MergeNote:
    """Start merging an adapter into its base model; reserve the id of the new model.

    The result is in the note of the merge. Adapter and base are locked until then. Raises
    `InvalidRequestError` for a complete model, `ApiError` 409 for an id that is taken and a base
    that is not in the store, and 507 if disk or memory have no room, and `OverloadedError` if too
    many merges wait.
    """
    if not adapter.is_adapter:
        message = (
            f"{adapter.id!r} is a complete model, which needs no merging; expected the id of an "
            "adapter: those have the kind 'adapter' in the list of models"
        )
        raise InvalidRequestError(message, param="model", code="not_an_adapter")
    try:
        base = services.models.get_base(adapter)
    except EngineDeadError as exc:  # trying again does not help
        raise ApiError(409, exc.message, param="model", code="base_missing") from exc
    layout = services.layout
    with ExitStack() as locks:
        locks.enter_context(adapter.lock_shared())
        locks.enter_context(base.lock_shared())
        with lock_exclusive(layout.store.merge_lock):
            check_new_model(layout, services.runs, model_id)
            if (num_merges := len(list_merging(layout))) >= _MAX_MERGES:
                message = f"{num_merges} adapters are being merged; try again when one is done"
                raise OverloadedError(message, retry_after_s=_RETRY_AFTER_S)
            _check_space(services, base)
            check_merge_memory(adapter, base)
            scratch = reserve_merge(layout, model_id)
            locks.callback(scratch.remove)
            note = begin_note(model_id, adapter.id)
            write_merge(layout, note)
        work = (services, adapter, base, note, scratch, locks.pop_all())
        Thread(target=_finish, args=work, name="merge-model", daemon=True).start()
    return note


def _finish(
    services: Services,
    adapter: StoredModel,
    base: StoredModel,
    note: MergeNote,
    scratch: ScratchFolder,
    locks: ExitStack,
) -> None:
    """Merge, and write the result into the note; the body of the thread."""
    with locks:
        try:
            _merge(services, adapter, base, note.id, scratch)
        except Exception as exc:  # noqa: BLE001 - the thread ends here, and the note has the reason
            logger.warning("adapter %s was not merged into %s: %s", adapter.id, note.id, exc)
            response = to_response(exc)
            error = json.loads(bytes(response.body))["error"]
            failure = MergeFailure(
                status=response.status_code, message=error["message"], code=error["code"]
            )
            ended = note.model_copy(update={"status": "failed", "error": failure})
        else:
            ended = note.model_copy(update={"status": "succeeded"})
        write_merge(services.layout, ended)  # before the folder is removed, which says it works


def _merge(
    services: Services,
    adapter: StoredModel,
    base: StoredModel,
    model_id: str,
    scratch: ScratchFolder,
) -> None:
    """Merge and publish; waits for exports and merges on the same storage, which need memory."""
    layout = services.layout
    output = scratch.path / "merged"
    with lock_exclusive(layout.export_lock):
        store = ModelStore(layout)
        try:
            store.names.check_new_id(model_id)  # much may have happened while it waited
            _check_space(services, base)
            run_merge(adapter, base, output, scratch.lock_descriptor, layout.root)
            store.publish(output, model_id)
        except FileExistsError as exc:
            raise ApiError(409, str(exc), param="model") from None


def _check_space(services: Services, base: StoredModel) -> None:
    """Raise `ApiError` 507 if there is no room for a model as large as the base."""
    new_bytes = services.model_sizes.measure_model(base.id)
    check_model_space(services.model_sizes.measure(), services.limits, new_bytes)
