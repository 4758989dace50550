"""What a tab already has, so that a message contains only what has changed.

A tab sends the number of the last message that it has applied. If that is another one than the
server's last, because a message was lost or the session was dropped, the next one is complete.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Protocol, TypedDict

from apps.client.resources import Event


class PlaceRequest(Protocol):
    """What a tab asks for: the place that it shows, and the last message that it has applied."""

    @property
    def place(self) -> str:
        """What is shown: another place starts with an empty view."""

    @property
    def applied(self) -> int:
        """The number of the last message."""


@dataclass(frozen=True)
class KnownEvents:
    """The newest events of one run that a tab has, newest first."""

    run_id: str = ""
    events: tuple[Event, ...] = ()


NO_EVENTS = KnownEvents()


@dataclass(frozen=True)
class CurveEnd:
    """The last step of a run's curves that a tab has, and how many it has."""

    num_points: int = 0
    last: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Known:
    """How far a tab has received what only grows."""

    events: KnownEvents = NO_EVENTS
    curve: CurveEnd = CurveEnd()
    log_end: int | None = None
    models: Mapping[int, str] = field(default_factory=dict)
    """The published checkpoints of the run: its steps and their models."""


NOTHING_KNOWN = Known()


@dataclass(frozen=True)
class Content:
    """The content of a view at one moment."""

    parts: Mapping[str, str] = field(default_factory=dict)
    """HTML by the name of its place; the entry of a list is named LIST/ID."""
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The ids of the entries of each list, in their order."""
    values: Mapping[str, object] = field(default_factory=dict)
    """Other JSON values."""
    additions: Mapping[str, object] = field(default_factory=dict)
    """What is added to what the tab has; always sent."""
    known: Known = NOTHING_KNOWN
    """What the tab knows once it has this."""


class TabMessage(TypedDict):
    """A message to a tab: the changes since the message `base`, which is 0 in a complete one."""

    serial: int
    base: int
    place: str
    now: float
    parts: Mapping[str, str]
    lists: Mapping[str, Sequence[str]]
    values: Mapping[str, object]
    additions: Mapping[str, object]


@dataclass(frozen=True)
class TabState:
    """The last message that was sent to a tab, with digests of all that it has."""

    serial: int = 0
    place: str = ""
    digests: Mapping[str, str] = field(default_factory=dict)
    known: Known = NOTHING_KNOWN

    def has_part(self, name: str) -> bool:
        """Return whether the tab has a part."""
        return f"parts {name}" in self.digests

    def has_value(self, name: str) -> bool:
        """Return whether the tab has a JSON value."""
        return f"values {name}" in self.digests

    def select_for(self, asked: PlaceRequest) -> "TabState":
        """Return this state, or one of an empty tab if the tab has or shows something else."""
        if asked.applied == self.serial and asked.place == self.place:
            return self
        return TabState(place=asked.place)


class FirstStates:
    """The states after messages that were sent in documents, before a tab had a session."""

    def __init__(self, max_states: int = 256) -> None:
        self._max_states = max_states
        self._states: dict[int, TabState] = {}

    def keep(self, message: TabMessage, state: TabState) -> TabMessage:
        """Keep the state after a message; return the message with a number that no other has."""
        serial = message["serial"]
        while serial in self._states:
            serial += 1
        if len(self._states) >= self._max_states:
            del self._states[next(iter(self._states))]
        self._states[serial] = replace(state, serial=serial)
        return {**message, "serial": serial}

    def select_for(self, asked: PlaceRequest, state: TabState) -> TabState:
        """Return the state of the session, of the document, or of an empty tab."""
        if asked.applied != state.serial:
            state = self._states.get(asked.applied, state)
        return state.select_for(asked)


def write_message(content: Content, state: TabState) -> tuple[TabMessage, TabState]:
    """Return a message with what has changed, and the state after it.

    The first message, and one with changes, has a new number.
    """
    digests = dict(state.digests)

    def select_changed(group: str, entries: Mapping[str, Any]) -> dict[str, Any]:
        new = {name: (f"{group} {name}", _digest(value)) for name, value in entries.items()}
        changed = [name for name, (key, digest) in new.items() if digests.get(key) != digest]
        digests.update(new.values())
        return {name: entries[name] for name in changed}

    parts = select_changed("parts", content.parts)
    lists = select_changed("lists", content.lists)
    values = select_changed("values", content.values)
    now = time.time()
    is_new = bool(not state.serial or parts or lists or values or content.additions)
    # A number is unlike all those of former sessions.
    serial = max(state.serial + 1, int(now * 1000)) if is_new else state.serial
    message: TabMessage = {
        "serial": serial,
        "base": state.serial,
        "place": state.place,
        "now": now,
        "parts": parts,
        "lists": lists,
        "values": values,
        "additions": content.additions,
    }
    return message, TabState(serial, state.place, digests, content.known)


def _digest(value: object) -> str:
    return blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()
