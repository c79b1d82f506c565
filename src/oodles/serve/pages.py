"""Pages of the service, each with a policy that lets a browser run nothing from elsewhere."""

import base64
import hashlib
import re
from importlib.resources import files

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

PART = re.compile(r"<!-- ([a-z]+)\.(css|js) -->")
TAGS = {"css": "style", "js": "script"}
ASSETS = "/docs/assets"
POLICY = "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def add_pages(app: FastAPI) -> None:
    """Add our own page at ``/``, and Swagger UI at ``/docs`` with the files of the package fastapi_offline."""
    own = _read_page()
    _add_page(app, "/", own, f"script-src {_hashes(own, 'script')}; style-src {_hashes(own, 'style')}")
    swagger = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=f"{app.title} API",
        swagger_js_url=f"{ASSETS[1:]}/swagger-ui-bundle.js",
        swagger_css_url=f"{ASSETS[1:]}/swagger-ui.css",
        swagger_favicon_url=f"{ASSETS[1:]}/favicon.png",
    )
    docs = bytes(swagger.body).decode()
    # Swagger UI writes styles into its elements, which no hash allows
    _add_page(app, "/docs", docs, f"script-src 'self' {_hashes(docs, 'script')}; style-src 'self' 'unsafe-inline'")
    app.mount(ASSETS, StaticFiles(directory=str(files("fastapi_offline") / "static")))


def _add_page(app: FastAPI, path: str, html: str, sources: str) -> None:
    headers = {"Content-Security-Policy": f"default-src 'none'; {sources}; {POLICY}"}

    @app.get(path, include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(html, headers=headers)


def _read_page() -> str:
    """Read the page with the styles and scripts that it names inside it."""
    folder = files("oodles.serve") / "page"

    def insert(found: re.Match[str]) -> str:
        tag = TAGS[found[2]]
        return f"<{tag}>{(folder / f'{found[1]}.{found[2]}').read_text('utf-8')}</{tag}>"

    return PART.sub(insert, (folder / "index.html").read_text("utf-8"))


def _hashes(html: str, tag: str) -> str:
    """Return the hashes of the scripts or styles inside a page, as a policy names them."""
    contents = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in contents)
    return " ".join(f"'sha256-{each}'" for each in digests)
