"""State of one request that the middlewares share in its scope."""

from contextvars import ContextVar
from dataclasses import dataclass

from starlette.types import Scope

from apps.access.gate import LOCAL, Principal
from apps.access.roles import Permission

_KEY = "tuneserve.exchange"


@dataclass
class Exchange:
    """One request: its principal, its purpose and its outcome."""

    request_id: str
    principal: Principal | None = None
    """The owner of the request's key, even if that key is expired or revoked."""
    permission: Permission | None = None
    subject: str | None = None
    """The id that the request is about: from its path, or of what it created."""
    created: str | None = None
    """The id of what it created."""
    refusal: str | None = None
    """The code of a refusal, if access was refused."""
    num_tokens: int = 0
    """Tokens of the prompt and the response, as far as they are known."""
    is_counted: bool = False
    """Whether `num_tokens` is exact, not a partial count of an interrupted stream."""
    is_change: bool = False


_current: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


def begin_exchange(scope: Scope, exchange: Exchange) -> None:
    """Attach an exchange to a request, and to the context of the code that runs for it."""
    scope[_KEY] = exchange
    _current.set(exchange)


def find_exchange(scope: Scope) -> Exchange | None:
    """Return the exchange of a request."""
    return scope.get(_KEY)


def find_principal(scope: Scope) -> Principal:
    """Return the principal of a request that has passed the access control."""
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


def record_creation(subject: str) -> None:
    """Record that the current request creates something, which its route does not imply."""
    exchange = _current.get()
    if exchange is not None:
        exchange.is_change, exchange.subject, exchange.created = True, subject, subject


def record_refusal(code: str, subject: str) -> None:
    """Record that a route refuses the current request because its key lacks a permission."""
    exchange = _current.get()
    if exchange is not None:
        exchange.refusal, exchange.subject = code, subject
