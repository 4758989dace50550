"""The page "HTTP API": each request of the API's description, with an example for curl."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from shlex import quote
from typing import Any

from apps.ui.markup import API_PAGE, keep_english

_METHODS = ("get", "post", "put", "delete")
_GROUPS = {
    "models": "Models",
    "aliases": "Aliases",
    "files": "Files",
    "fine_tuning": "Fine-tuning",
    "evaluations": "Evaluations",
    "chat": "Chat",
    "completions": "Completions",
    "classify": "Classification",
    "embeddings": "Embeddings",
    "access": "Access",
}
_OTHERS = "Health"
_INTRODUCTION = (
    "<p>Everything that this page can do, programs can do by these requests. Those for chats, "
    "files, models and fine-tuning jobs have the formats of OpenAI, so OpenAI's clients work with "
    '<code><span data-origin></span>/v1</code> as their address. <a href="/openapi.json" '
    'target="_blank" rel="noopener">openapi.json</a> describes every field, for programs.</p>'
    "<p>A server with keys expects one: <code>export TUNESERVE_API_KEY=…</code> before the "
    "examples. Replace the words in capitals by your own ids.</p>"
)
_ORIGIN = "ORIGIN"
"""The placeholder of the address of the server, which only the browser knows."""
_MAX_DEPTH = 6


@dataclass(frozen=True)
class ApiCall:
    """One request that the API answers: an operation of its OpenAPI description."""

    method: str
    path: str
    operation: Mapping[str, Any]

    @property
    def group(self) -> str:
        """Return the heading below which the request is listed."""
        tag = next(iter(self.operation.get("tags") or ()), None)
        return _OTHERS if tag is None else _GROUPS.get(str(tag), str(tag).capitalize())

    @property
    def parameters(self) -> Sequence[Mapping[str, Any]]:
        """Return the parameters in path, query and headers."""
        found: Sequence[Mapping[str, Any]] = self.operation.get("parameters") or ()
        return found


def list_calls(description: Mapping[str, Any]) -> dict[str, list[ApiCall]]:
    """Return the requests of a description by their groups, in the order of `_GROUPS`."""
    groups: dict[str, list[ApiCall]] = {name: [] for name in _GROUPS.values()}
    for path, operations in description.get("paths", {}).items():
        for method in _METHODS:
            if method in operations:
                call = ApiCall(method.upper(), path, operations[method])
                groups.setdefault(call.group, []).append(call)
    return {name: calls for name, calls in groups.items() if calls}


def render_reference(description: Mapping[str, Any]) -> str:
    """Render all requests as HTML; `page.js` fills in the address that the browser uses."""
    groups = list_calls(description)
    schemas = description.get("components", {}).get("schemas", {})
    contents = "".join(
        f'<li><a href="./{API_PAGE}#{_name_anchor(name)}">{escape(name)}</a></li>'
        for name in groups
    )
    parts = "".join(
        f'<h2 id="{_name_anchor(name)}">{escape(name)}</h2>'
        + "".join(_render_call(call, schemas) for call in calls)
        for name, calls in groups.items()
    )
    return f'{_INTRODUCTION}<ul class="ts-contents">{contents}</ul>{parts}'


def _name_anchor(group: str) -> str:
    return re.sub(r"\W+", "-", group.lower())


def _render_call(call: ApiCall, schemas: Mapping[str, Any]) -> str:
    summary, _, rest = str(call.operation.get("description", "")).partition("\n\n")
    summary = summary or str(call.operation.get("summary", ""))
    paragraphs = "".join(
        f"{keep_english(part, 'p')}" for part in rest.split("\n\n") if part.strip()
    )
    example = escape(build_curl(call, schemas)).replace(_ORIGIN, "<span data-origin></span>")
    return (
        f'<details class="ts-call" data-method="{call.method}"><summary>'
        f'<b translate="no">{call.method}</b>'
        f"<code>{escape(call.path)}</code>{keep_english(summary)}</summary>"
        f"<div>{paragraphs}{_render_parameters(call)}"
        f'<pre tabindex="0" aria-label="Example for curl">{example}</pre></div></details>'
    )


def _render_parameters(call: ApiCall) -> str:
    rows = "".join(
        f"<tr translate='no' lang='en'>"
        f"<td><code>{escape(str(one.get('name')))}</code></td><td>{escape(str(one.get('in')))}"
        f"{', required' if one.get('required') else ''}</td>"
        f"<td>{escape(_describe_schema(one.get('schema', {})))}</td>"
        f"<td>{escape(str(one.get('description', '')))}</td></tr>"
        for one in call.parameters
    )
    if not rows:
        return ""
    heads = "".join(f"<th>{name}</th>" for name in ("Name", "In", "Type", "Meaning"))
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _describe_schema(schema: Mapping[str, Any]) -> str:
    kinds = [one.get("type") for one in schema.get("anyOf", (schema,))]
    text = " or ".join(str(kind) for kind in kinds if kind and kind != "null") or "any"
    return f"{text}, default {schema['default']}" if schema.get("default") is not None else text


def build_curl(call: ApiCall, schemas: Mapping[str, Any]) -> str:
    """Build a command for curl that sends a request, with the values that it requires."""
    path = re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), call.path)
    required = [
        f"{one['name']}={str(one['name']).upper()}"
        for one in call.parameters
        if one.get("in") == "query" and one.get("required")
    ]
    address = f"{_ORIGIN}{path}{'?' if required else ''}{'&'.join(required)}"
    options = [] if call.method in ("GET", "POST") else ["-X", call.method]
    lines = [" ".join(["curl", *options, f'"{address}"'])]
    lines.append('-H "Authorization: Bearer $TUNESERVE_API_KEY"')
    body = list(_build_body(call.operation, schemas))
    if call.method == "POST" and not body:
        lines[0] = lines[0].replace("curl", "curl -X POST", 1)
    return " \\\n  ".join([*lines, *body])


def _build_body(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options of curl for a body."""
    content = operation.get("requestBody", {}).get("content", {})
    for kind, body in content.items():
        schema = body.get("schema", {})
        if kind == "application/json":
            yield '-H "Content-Type: application/json"'
            yield f"-d {quote(json.dumps(build_example(schema, schemas), ensure_ascii=False))}"
        elif kind == "multipart/form-data":
            example = build_example(schema, schemas)
            for name, value in example.items() if isinstance(example, dict) else ():
                yield f"-F {quote(f'{name}={value}')}"
        else:
            yield "-T FILE"
        return


def build_example(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int = 0) -> Any:
    """Build a value with what a JSON schema requires; its own example if it has one."""
    if "$ref" in schema:
        schema = schemas.get(str(schema["$ref"]).rpartition("/")[2], {})
    if schema.get("examples"):
        return schema["examples"][0]
    for key in ("const", "default"):
        if schema.get(key) is not None:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    choices = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if choices and depth < _MAX_DEPTH:
        return build_example(choices[0], schemas, depth + 1)
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        required = schema.get("required", ()) if depth < _MAX_DEPTH else ()
        return {
            name: _name_value(name, build_example(schema["properties"][name], schemas, depth + 1))
            for name in required
            if name in schema.get("properties", {})
        }
    if kind == "array":
        items = schema.get("items", {})
        return [build_example(items, schemas, depth + 1)] if depth < _MAX_DEPTH else []
    if kind == "string":
        return "@FILE" if schema.get("format") == "binary" else "…"
    return {"integer": schema.get("minimum", 1), "number": 1.0, "boolean": True}.get(str(kind))


def _name_value(name: str, value: Any) -> Any:
    """Return the name of a field, in capitals, instead of a text that says nothing."""
    return name.upper() if value == "…" else value
