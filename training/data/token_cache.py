"""Complete token tables by what they were made from, so that a second run starts at once.

<cache>/<key>/    train.arrow, perhaps validation.arrow, summary.json, manifest.json

An entry appears whole or not at all. Two processes may make the same one: the first to finish
publishes it, the other takes that one. The time of its manifest says when an entry was last used.
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
    """The user's own cache: `tuneserve/tokens` under `$XDG_CACHE_HOME`, or under `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "tuneserve" / "tokens"


def use_entry(cache: Path, key: str) -> bool:
    """Tell whether there is a complete entry, and note its use; a damaged one is removed."""
    entry = cache / key
    if _is_whole(entry):
        with suppress(FileNotFoundError):  # removed by somebody else just now
            os.utime(entry / durable.MANIFEST_NAME)
            return True
    if entry.exists():
        logger.warning("the cached tokens %s are damaged and are made again", key)
        _remove(entry)
    return False


@contextmanager
def build_entry(cache: Path, key: str) -> Iterator[Path]:
    """Give a folder to build an entry in; it is published when the body ends well."""
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
    """Remove entries, the longest unused first, until all have at most `max_bytes`.

    The entries `kept`, by default the one used last, stay in any case. What processes that died
    left unfinished is removed too. An entry that cannot be read or removed is logged and left out.
    Raises `OSError` if the cache itself cannot be read.
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
    """An entry as it is chosen for removal; entries sort by their last use."""

    used_at: float
    name: str
    size_bytes: int


def _find_entry(path: Path) -> _CachedEntry | None:
    """Measure an entry; None for anything else and, logged, for one that cannot be read."""
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
        if not _is_whole(entry):  # else somebody published the same before us
            raise


def _is_whole(entry: Path) -> bool:
    """Compare the sizes of an entry's files with its manifest; that is quick at any size."""
    try:
        files = durable.read_json(entry / durable.MANIFEST_NAME)["files"]
        return all(
            (entry / name).stat().st_size == expected["size_bytes"]
            for name, expected in files.items()
        )
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _remove(entry: Path) -> None:
    """Remove an entry; nobody ever sees half of it."""
    gone = Path(tempfile.mkdtemp(dir=entry.parent, prefix=_UNFINISHED_PREFIX))
    with suppress(FileNotFoundError):  # somebody else removed it
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
    with suppress(FileNotFoundError):  # removed by somebody else just now
        return (entry / durable.MANIFEST_NAME).stat().st_mtime
    return 0.0


def _measure(entry: Path) -> int:
    with suppress(FileNotFoundError):
        return sum(path.stat().st_size for path in entry.iterdir())
    return 0
