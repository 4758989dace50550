"""A cache of complete token tables by their inputs, so that a second run starts immediately.

<cache>/<key>/    train.arrow, perhaps validation.arrow, summary.json, manifest.json

An entry is published complete or not at all. If two processes build the same entry, the first to
finish publishes it, and the other uses it. The modification time of an entry's manifest is the time
of its last use.
"""

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from storage import durable

logger = logging.getLogger(__name__)

MAX_CACHE_BYTES = 20 << 30
_UNFINISHED_PREFIX = ".unfinished-"
_UNFINISHED_LIFETIME_S = 7 * 86_400


def default_cache() -> Path:
    """Return the user's cache: `tuneserve/tokens` under `$XDG_CACHE_HOME`, or `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "tuneserve" / "tokens"


def use_entry(cache: Path, key: str) -> bool:
    """Return whether there is a complete entry, and record its use; remove a damaged one."""
    entry = cache / key
    if _is_whole(entry):
        with suppress(FileNotFoundError):  # another process has just removed it
            os.utime(entry / durable.MANIFEST_NAME)
            return True
    if entry.exists():
        logger.warning("the cached tokens %s are damaged and are made again", key)
        _remove(entry)
    return False


@contextmanager
def build_entry(cache: Path, key: str) -> Iterator[Path]:
    """Yield a folder to build an entry in; it is published if the body raises nothing."""
    cache.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=cache, prefix=_UNFINISHED_PREFIX))
    try:
        yield building
        _publish(building, cache / key)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def prune_cache(
    cache: Path, kept: Collection[str] | None, max_bytes: int = MAX_CACHE_BYTES
) -> None:
    """Evict entries, least recently used first, until the total is at most `max_bytes`.

    The entries `kept`, by default the most recently used one, always stay. Unfinished entries
    older than 7 days are also removed. An entry that cannot be read or removed is logged and
    skipped. Raises `OSError` if the cache itself cannot be read.
    """
    if not cache.is_dir():
        return
    _remove_leftovers(cache)
    used = sorted(entry for path in cache.iterdir() if (entry := _find_entry(path)) is not None)
    if kept is None:
        kept = [entry.name for entry in used[-1:]]
    total = sum(entry.size_bytes for entry in used)
    for entry in used:
        if total <= max_bytes:
            return
        if entry.name not in kept and _try_remove(cache / entry.name):
            total -= entry.size_bytes


class _CachedEntry(NamedTuple):
    """An entry as a candidate for eviction; entries sort by their last use."""

    used_at: float
    name: str
    size_bytes: int


def _find_entry(path: Path) -> _CachedEntry | None:
    """Measure an entry; None for anything else, and for an entry that cannot be read, logged."""
    try:
        if not durable.is_published(path):
            return None
        return _CachedEntry(_get_last_use(path), path.name, _measure(path))
    except OSError as exc:
        logger.warning("the cached tokens %s cannot be read and stay: %s", path, exc)
        return None


def _try_remove(entry: Path) -> bool:
    try:
        _remove(entry)
    except OSError as exc:
        logger.warning("the cached tokens %s cannot be removed: %s", entry, exc)
        return False
    return True


def _publish(building: Path, entry: Path) -> None:
    try:
        durable.publish_directory(building, entry)
    except OSError:
        if not _is_whole(entry):  # else another process published the same entry first
            raise


def _is_whole(entry: Path) -> bool:
    """Compare the sizes of an entry's files with its manifest, in time independent of the sizes."""
    try:
        files = durable.read_json(entry / durable.MANIFEST_NAME)["files"]
        return all(
            (entry / name).stat().st_size == expected["size_bytes"]
            for name, expected in files.items()
        )
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _remove(entry: Path) -> None:
    """Remove an entry atomically for other processes."""
    gone = Path(tempfile.mkdtemp(dir=entry.parent, prefix=_UNFINISHED_PREFIX))
    with suppress(FileNotFoundError):  # another process removed it
        entry.rename(gone / entry.name)
    shutil.rmtree(gone, ignore_errors=True)


def _remove_leftovers(cache: Path) -> None:
    for path in cache.glob(f"{_UNFINISHED_PREFIX}*"):
        try:
            is_old = time.time() - path.lstat().st_mtime > _UNFINISHED_LIFETIME_S
        except FileNotFoundError:
            continue
        except OSError as exc:
            logger.warning("unfinished tokens %s cannot be read and stay: %s", path, exc)
            continue
        if is_old:
            shutil.rmtree(path, ignore_errors=True)


def _get_last_use(entry: Path) -> float:
    with suppress(FileNotFoundError):  # another process has just removed it
        return (entry / durable.MANIFEST_NAME).stat().st_mtime
    return 0.0


def _measure(entry: Path) -> int:
    with suppress(FileNotFoundError):
        return sum(path.stat().st_size for path in entry.iterdir())
    return 0
