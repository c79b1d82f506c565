"""The page at ``/docs``: the API's description as one document that needs nothing from elsewhere."""

import json
from typing import Any

from jinja2 import Environment

from oodles.serve.page import Page, read_page


def describe_api(schema: dict[str, Any]) -> Page:
    """The OpenAPI schema for people: every route with its parameters, bodies and answers."""
    html, policy = read_page("docs.html")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(html.decode())
    routes = [
        _route(method, path, about) for path, methods in schema["paths"].items() for method, about in methods.items()
    ]
    bodies = {name: _fields(body) for name, body in schema.get("components", {}).get("schemas", {}).items()}
    return Page(template.render(about=schema["info"], routes=routes, bodies=bodies).encode(), policy)


def _route(method: str, path: str, about: dict[str, Any]) -> dict[str, Any]:
    content = about.get("requestBody", {}).get("content", {})
    return {
        "method": method.upper(),
        "path": path,
        "summary": about.get("summary", ""),
        "description": about.get("description", ""),
        "parameters": [
            {"name": each["name"], "where": each["in"], "kind": _kind(each["schema"])}
            for each in about.get("parameters", [])
        ],
        "bodies": {kind: _kind(each["schema"]) for kind, each in content.items()},
        "answers": {
            status: (each.get("description", ""), [_kind(part["schema"]) for part in each.get("content", {}).values()])
            for status, each in sorted(about["responses"].items())
        },
    }


def _fields(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "description": body.get("description", ""),
        "fields": {
            name: (_kind(field), field.get("description", "")) for name, field in body.get("properties", {}).items()
        },
    }


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if kind == "object" and "properties" in schema:
        return json.dumps({name: _kind(each) for name, each in schema["properties"].items()})
    return f"{kind} ({schema['format']})" if "format" in schema else kind
