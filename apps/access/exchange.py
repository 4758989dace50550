"""What the middlewares know of one request, shared between them in its scope."""

from contextvars import ContextVar
from dataclasses import dataclass

from starlette.types import Scope

from apps.access.gate import LOCAL, Principal
from apps.access.roles import Permission

_KEY = "tuneserve.exchange"


@dataclass
class Exchange:
    """One request: who sent it, what it is for, and what became of it."""

    request_id: str
    principal: Principal | None = None
    """Whose key the request has, also where that key is expired or revoked."""
    permission: Permission | None = None
    subject: str | None = None
    """The id that the request is about: from its path, or of what it made."""
    created: str | None = None
    """The id of what it made."""
    refusal: str | None = None
    """The code of a refusal, if access was refused."""
    num_tokens: int = 0
    """Tokens of the prompt and the answer, as far as they are known."""
    is_counted: bool = False
    """Whether `num_tokens` is exact, and not what was counted before a stream was cut."""
    is_change: bool = False


_current: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


def begin_exchange(scope: Scope, exchange: Exchange) -> None:
    """Attach an exchange to a request, and to what runs for it."""
    scope[_KEY] = exchange
    _current.set(exchange)


def find_exchange(scope: Scope) -> Exchange | None:
    """Return the exchange of a request."""
    return scope.get(_KEY)


def find_principal(scope: Scope) -> Principal:
    """Return who sent a request that was let in."""
    exchange = find_exchange(scope)
    assert exchange is not None, "the request did not pass the access control"
    return exchange.principal or LOCAL


def count_tokens(num_tokens: int, *, is_exact: bool = False) -> None:
    """Count tokens of the current request; an exact count replaces what was counted before."""
    exchange = _current.get()
    if exchange is None or exchange.is_counted:
        return
    if is_exact:
        exchange.num_tokens, exchange.is_counted = num_tokens, True
    else:
        exchange.num_tokens += num_tokens


def note_creation(subject: str) -> None:
    """Note that the current request creates something, though its route alone does not say so."""
    exchange = _current.get()
    if exchange is not None:
        exchange.is_change, exchange.subject, exchange.created = True, subject, subject


def note_refusal(code: str, subject: str) -> None:
    """Note that a route refuses the current request because of what its key may not do."""
    exchange = _current.get()
    if exchange is not None:
        exchange.refusal, exchange.subject = code, subject
