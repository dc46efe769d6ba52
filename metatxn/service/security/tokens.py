"""Bearer tokens that a file lists by their hashes.

    token     mtx_<id: 16 hex digits>_<secret: 64 hex digits>

    file      [tokens.<id>]
    (TOML)    principal = "billing"
              sha256 = "<SHA-256 of the whole token, 64 hex digits>"
              admin = false
              topics = {"public/default/orders*" = ["produce", "consume"]}

The secret is 256 random bits, so one SHA-256 is enough: slow hashes (scrypt, argon2) protect secrets that can be
guessed, and this one cannot. The id is hashed with it, as a salt would be. The id selects the entry, and the hash is
compared in constant time. The id is not secret: it may appear in logs, and deleting its table revokes the token.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import tomllib
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from metatxn.service.security.principal import Grants, Principal, PrincipalName

_TOKEN = re.compile(r"mtx_([0-9a-f]{16})_[0-9a-f]{64}", re.ASCII)
PREFIX = "mtx_"

TokenId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class TokenEntry(Grants):
    principal: PrincipalName
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _TokenFile(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    tokens: dict[TokenId, TokenEntry] = {}


class InvalidToken(Exception):
    """A token that is not accepted. The message gives the reason, and contains nothing of the token."""


TokenTable = Mapping[str, tuple[str, Principal]]
"""The hash of each whole token and its principal, by id."""


def parse_tokens(data: bytes) -> TokenTable:
    """The tokens in a file. Raises `ValueError`, which names the place, but never the value."""
    try:
        listed = _TokenFile.model_validate(tomllib.loads(data.decode()))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"is not TOML: {error}") from None
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    except RecursionError:
        raise ValueError("is nested too deep") from None
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    return {
        token_id: (entry.sha256, Principal(entry.principal, Grants(admin=entry.admin, topics=entry.topics)))
        for token_id, entry in listed.tokens.items()
    }


def first_problem(error: ValidationError) -> str:
    """The place and the problem, without the value."""
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return ": ".join(filter(None, (where, first["msg"].removeprefix("Value error, "))))


def find_token(table: TokenTable, token: str) -> Principal | None:
    matched = _TOKEN.fullmatch(token)
    entry = table.get(matched[1]) if matched else None
    if entry is None:
        return None
    expected, principal = entry
    return principal if hmac.compare_digest(_hash(token), expected) else None


def create_token(principal: str, *, admin: bool = False, topics: Mapping[str, str] | None = None) -> tuple[str, str]:
    """A new token, and its entry for the file. `topics` maps patterns to rights, separated by commas.

    Raises `ValueError`. The token is not stored anywhere.
    """
    token_id = secrets.token_hex(8)
    token = f"{PREFIX}{token_id}_{secrets.token_hex(32)}"
    rights = {pattern: [right.strip() for right in text.split(",")] for pattern, text in (topics or {}).items()}
    try:
        entry = TokenEntry.model_validate(
            {"principal": principal, "sha256": _hash(token), "admin": admin, "topics": rights}
        )
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    return token, _as_toml(token_id, entry)


def _as_toml(token_id: str, entry: TokenEntry) -> str:
    topics = ", ".join(f"{_quoted(pattern)} = {json.dumps(sorted(r))}" for pattern, r in entry.topics.items())
    lines = [f"[tokens.{token_id}]", f"principal = {_quoted(entry.principal)}", f'sha256 = "{entry.sha256}"']
    if entry.admin:
        lines.append("admin = true")
    if topics:
        lines.append(f"topics = {{{topics}}}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """The text as a TOML string, which a JSON string of printable characters also is."""
    return json.dumps(text, ensure_ascii=False)


def _hash(token: str) -> str:
    return sha256(token.encode()).hexdigest()
