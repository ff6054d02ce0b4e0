"""Warnings at start about servers without credentials and about weak credentials."""

from collections import defaultdict
from collections.abc import Iterator
from ipaddress import ip_address

from perdure.server.settings import Settings

TOKEN_LENGTH_MIN = 16
_PLACEHOLDERS = frozenset({"change-me", "changeme", "change_me", "secret", "password", "token"})


def startup_warnings(settings: Settings) -> list[str]:
    """Sentences for the log. None contains a credential."""
    return [*_open_server(settings), *_weak_credentials(settings)]


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _open_server(settings: Settings) -> Iterator[str]:
    if settings.auth_driver == "none" and not is_loopback(settings.host):
        yield (
            f"ANYONE who can reach {settings.host} controls this server: it asks for no "
            "credentials. Set DW_AUTH_TOKEN, or listen on 127.0.0.1."
        )


def _weak_credentials(settings: Settings) -> Iterator[str]:
    if settings.auth_driver == "none":
        return
    names_by_token: dict[str, list[str]] = defaultdict(list)
    for name, token in _credentials(settings):
        names_by_token[token].append(name)
    for token, names in names_by_token.items():
        shown = " and ".join(names)
        if token.lower() in _PLACEHOLDERS and not is_loopback(settings.host):
            yield (
                f"{shown} is a well-known placeholder and the server listens on {settings.host}: "
                "choose a random credential of 32 characters"
            )
        elif len(token) < TOKEN_LENGTH_MIN:
            yield (
                f"{shown} has fewer than {TOKEN_LENGTH_MIN} characters and can be guessed: "
                "choose a random credential of 32 characters"
            )
        if len(names) > 1:
            yield f"{shown} are the same credential: one role includes the others"


def _credentials(settings: Settings) -> Iterator[tuple[str, str]]:
    """Every credential that is accepted, with the name of its variable."""
    if settings.auth_driver == "signature":
        if settings.signature_key and settings.shared_credential:
            yield "DW_SIGNATURE_KEY", settings.signature_key
        for role, key in settings.role_signature_keys.items():
            yield f"DW_{role.upper()}_SIGNATURE_KEY", key
    else:
        if settings.auth_token and settings.shared_credential:
            yield "DW_AUTH_TOKEN", settings.auth_token
        for role, token in settings.role_tokens.items():
            yield f"DW_{role.upper()}_TOKEN", token
        for principal in settings.principals:
            yield f"the token of {principal.subject} in DW_PRINCIPAL_TOKENS", principal.token
    for key in settings.api_keys:
        yield "a key in PERDURE_API_KEYS", key
    for key in settings.read_keys:
        yield "a key in PERDURE_READ_KEYS", key
