"""Pages of the service, each with a policy that lets a browser run nothing from elsewhere."""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

PART = re.compile(r"<!-- ([a-z]+)\.(css|js) -->")
INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)
TAGS = {"css": "style", "js": "script"}
POLICY = "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


class Page(NamedTuple):
    """The document and its Content-Security-Policy."""

    html: str
    policy: str


@cache
def read_page() -> Page:
    """Read the page with the styles and scripts that it names inside it."""
    folder = files("oodles.serve") / "page"

    def insert(found: re.Match[str]) -> str:
        tag = TAGS[found[2]]
        return f"<{tag}>{(folder / f'{found[1]}.{found[2]}').read_text('utf-8')}</{tag}>"

    html = PART.sub(insert, (folder / "index.html").read_text("utf-8"))
    return Page(
        html, f"default-src 'none'; script-src {_hashes(html, 'script')}; style-src {_hashes(html, 'style')}; {POLICY}"
    )


def add_docs(app: FastAPI) -> None:
    """Add Swagger UI at ``/docs``, with its scripts and styles from the package fastapi_offline."""
    assets = "/docs/assets"
    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title=f"{app.title} API",
        swagger_js_url=f"{assets}/swagger-ui-bundle.js",
        swagger_css_url=f"{assets}/swagger-ui.css",
        swagger_favicon_url=f"{assets}/favicon.png",
    )
    html = bytes(page.body).decode()
    # Swagger UI writes styles into its elements, which no hash allows; scripts it needs are its own file and ours
    policy = (
        f"default-src 'none'; script-src 'self' {_hashes(html, 'script')}; style-src 'self' 'unsafe-inline'; {POLICY}"
    )

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(html, headers={"Content-Security-Policy": policy})

    app.mount(assets, StaticFiles(directory=str(files("fastapi_offline") / "static")))


def _hashes(html: str, tag: str) -> str:
    """The hashes of the scripts or styles inside a page, as a policy names them."""
    digests = (hashlib.sha256(content.encode()).digest() for kind, content in INLINE.findall(html) if kind == tag)
    return " ".join(f"'sha256-{base64.b64encode(each).decode()}'" for each in digests)
