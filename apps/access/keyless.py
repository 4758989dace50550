"""Detection of the requests that are served without a key: those of programs on this machine.

Nothing in a request proves that it comes from this machine: a proxy here can forward requests from
anywhere and look like any local program. The checks detect browsers and every proxy that leaves a
trace. `require_key` covers the rest; `docs/security.md` describes the remaining risk.
"""

import ipaddress
import re

from starlette.datastructures import Headers

API_KEY_VARIABLE = "TUNESERVE_API_KEY"

_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST = re.compile(r"(?:([A-Za-z0-9.-]+)|\[([0-9A-Fa-f:.]+)\])(?::[0-9]{1,5})?")
_FORWARDING_HEADERS = frozenset(
    {
        "client-ip",
        "fastly-client-ip",
        "fly-client-ip",
        "forwarded",
        "forwarded-for",
        "front-end-https",
        "incap-client-ip",
        "proxy-client-ip",
        "true-client-ip",
        "via",
        "wl-proxy-client-ip",
        "x-amzn-trace-id",
        "x-appengine-user-ip",
        "x-client-ip",
        "x-cloud-trace-context",
        "x-cluster-client-ip",
        "x-host",
        "x-nf-client-connection-ip",
        "x-proxyuser-ip",
        "x-remote-addr",
        "x-remote-ip",
        "x-scheme",
        "x-sucuri-clientip",
    }
)
_FORWARDING_PREFIXES = (
    "cdn-",
    "cf-",
    "tailscale-",
    "x-akamai-",
    "x-azure-",
    "x-arr-",
    "x-envoy-",
    "x-forward",
    "x-original-",
    "x-real-",
    "x-vercel-",
)
_ADVICE = f"create a key with 'tuneserve keys create', or set {API_KEY_VARIABLE} and start again"


def find_foreign_request(
    headers: Headers, client: tuple[str, int] | None, http_version: str = "1.1"
) -> str | None:
    """Explain why a request may be from another machine or another site's page, or return None."""
    return (
        find_foreign_client(client)
        or find_forwarding(headers, http_version)
        or find_foreign_host(headers)
        or find_foreign_origin(headers)
    )


def is_loopback(address: str) -> bool:
    """Return whether an IP address is a loopback address, which no other machine can reach."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def is_loopback_host(host: str) -> bool:
    """Return whether a host to listen on can be reached from this machine only."""
    return host == "localhost" or is_loopback(host)


def find_foreign_client(client: tuple[str, int] | None) -> str | None:
    """Explain that a request came from another machine, or return None."""
    if client is None or is_loopback(client[0]):
        return None
    return f"without a key only this machine is served, not {client[0]}; {_ADVICE}"


def find_forwarding(headers: Headers, http_version: str = "1.1") -> str | None:
    """Explain which trace shows that a proxy forwarded a request, or return None.

    HTTP/1.0 is a trace: nginx's plain `proxy_pass` uses it (before 1.29.7), adds no header, and
    names our own address as the host. Programs on this machine have used 1.1 for decades.
    """
    if http_version == "1.0":
        return (
            "the request uses HTTP/1.0, as proxies do; without a key that is refused; send it by "
            f"HTTP/1.1, or {_ADVICE}"
        )
    for name in headers:
        if name in _FORWARDING_HEADERS or name.startswith(_FORWARDING_PREFIXES):
            return (
                f"the header {name!r} shows that a proxy forwarded the request; without a key that "
                f"is refused; {_ADVICE}"
            )
    return None


def find_foreign_host(headers: Headers) -> str | None:
    """Explain why a request was not sent to this machine's own address, or return None."""
    hosts = headers.getlist("host")
    host = ", ".join(hosts)
    found = _HOST.fullmatch(host)
    if found is not None and (found[1] or found[2]).lower() in _LOOPBACK_HOSTS:
        return None
    return (
        f"{host!r} is not this machine's loopback address, and without a key only that is served; "
        f"{_ADVICE}"
    )


def find_foreign_origin(headers: Headers) -> str | None:
    """Explain which other site's page sent a request, or return None."""
    origin = headers.get("origin")
    # A browser sends no origin for resources that another site's page embeds, such as pictures.
    is_foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
    if origin is None and is_foreign and headers.get("sec-fetch-mode") != "navigate":
        return "a page of another site may not use this application: it is not part of it"
    if origin is None or origin.partition("://")[2] == headers.get("host", ""):
        return None
    return f"the page {origin!r} may not use this application: it is not part of it"
