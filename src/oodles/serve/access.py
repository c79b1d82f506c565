"""Who may call what: clients with the token, and administrators with the admin token."""

import secrets
from typing import Annotated

from fastapi import Depends, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from oodles.serve.service import Serving

Credentials = Annotated[
    HTTPAuthorizationCredentials | None,
    Depends(HTTPBearer(auto_error=False, description="The service's token, if it has one.")),
]


def _is_one_of(credentials: Credentials, *tokens: str | None) -> bool:
    given = "" if credentials is None else credentials.credentials
    return any(
        secrets.compare_digest(given.encode("latin-1", "replace"), token.encode())
        for token in tokens
        if token is not None
    )


async def authorise(service: Serving, credentials: Credentials) -> None:
    """Raise for a request without a token of the service; probes, metrics and pages without data need none."""
    settings = service.settings
    if settings.token is not None and not _is_one_of(credentials, settings.token, settings.admin_token):
        message = "the token is missing or wrong; send the header Authorization: Bearer TOKEN"
        raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})


async def administer(service: Serving, credentials: Credentials) -> None:
    """Raise for a request that changes something without the admin token."""
    if service.settings.admin_token is None:
        raise HTTPException(403, "nothing can be changed: the service was started without --admin-token-file")
    if not _is_one_of(credentials, service.settings.admin_token):
        raise HTTPException(403, "changes need the admin token; send the header Authorization: Bearer TOKEN")
