"""Automatic removal: cached tokens beyond a size, and the remains of killed processes."""

import logging
from threading import Event, Thread

from apps.evaluations import evaluation_store
from apps.fine_tuning.submission import BUILDING_PREFIX
from serving.store.clean_up import clean_up_models
from storage.layout import UPLOAD_PREFIX, StorageLayout
from storage.scratch import remove_abandoned_scratch
from storage.temporary_files import remove_old_temporaries
from system.priority import lower_thread_priority
from training.data.token_cache import prune_cache

logger = logging.getLogger(__name__)

INTERVAL_S = 600.0


def enforce_retention(layout: StorageLayout, max_token_cache_bytes: int) -> None:
    """Limit the size of the token cache, and remove unfinished work of killed processes.

    The newest entry of the cache always stays: a job may be about to use it. A fault of one folder
    is logged and does not prevent the rest.
    """
    try:
        prune_cache(layout.token_cache, None, max_token_cache_bytes)
    except OSError:
        logger.exception("the cache of tokens cannot be pruned")
    try:
        clean_up_models(layout)
    except (OSError, RuntimeError):
        logger.exception("remains of killed processes in the model store cannot be removed")
    remove_abandoned_scratch(layout.files, UPLOAD_PREFIX)
    remove_abandoned_scratch(layout.runs, BUILDING_PREFIX)
    remove_abandoned_scratch(layout.evaluations.folder, evaluation_store.BUILDING_PREFIX)
    try:
        remove_old_temporaries(layout)
    except OSError:
        logger.exception("the temporary files of killed processes cannot be listed")


def start_retention(
    layout: StorageLayout, max_token_cache_bytes: int, interval_s: float = INTERVAL_S
) -> Event:
    """Enforce retention now and every `interval_s` seconds, on a thread.

    The thread ends with this process, or once the returned event is set.
    """
    stopped = Event()

    def keep_enforcing() -> None:
        lower_thread_priority()
        is_stopped = False
        while not is_stopped:
            try:
                enforce_retention(layout, max_token_cache_bytes)
            except Exception:
                logger.exception("retention failed; it is repeated in %g s", interval_s)
            is_stopped = stopped.wait(interval_s)

    Thread(target=keep_enforcing, name="retention", daemon=True).start()
    return stopped
