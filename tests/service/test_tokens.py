"""Goal: exactly the listed and the well-signed tokens are taken, and nobody learns anything from a refusal.

Method: real keys and files; every forgery of RFC 8725 that applies to a service that only verifies.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from metatxn.service.security import signed_tokens, watched_file
from metatxn.service.security.authentication import Authenticator
from metatxn.service.security.principal import ANYONE, Grants, Principal
from metatxn.service.security.signed_tokens import LEEWAY_S, SignedTokens
from metatxn.service.security.tokens import InvalidToken, create_token, find_token, parse_tokens
from metatxn.service.security.watched_file import InvalidSecurityFile, WatchedFile
from metatxn.wire import errors
from metatxn.wire.errors import ErrorCode
from metatxn.wire.problems import problem_of
from tests.service.security import NEVER_S, PrivateKey, TokenFile, public_pem, signed

NOW_S = 2_000_000_000
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
KEYS: list[tuple[str, PrivateKey]] = [("RS256", RSA_KEY), ("ES256", EC_KEY), ("EdDSA", ED_KEY)]


def verifier(directory: Path, *keys: PrivateKey, audience: str | None = None) -> SignedTokens:
    path = directory / "keys.pem"
    path.write_bytes(b"".join(map(public_pem, keys)))
    return SignedTokens(path, audience, now=lambda: NOW_S)


def unpadded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


# -- the token file ------------------------------------------------------------------------------------------------


def test_a_created_token_is_found_and_its_entry_does_not_hold_it() -> None:
    token, entry = create_token('bill"in\\g é', topics={"public/default/*": "produce, consume", "a/b/c": "admin"})
    assert token not in entry and token.rpartition("_")[2] not in entry
    found = find_token(parse_tokens(entry.encode()), token)
    assert found is not None and found.name == 'bill"in\\g é' and not found.superuser
    assert found.may("produce", "public/default/x") and found.may("admin", "a/b/c")
    assert not found.may("admin", "public/default/x") and not found.may("consume", "a/b/c")


def test_no_other_token_is_found() -> None:
    """Neither with another secret, nor another id, nor in another spelling."""
    token, entry = create_token("billing")
    other, other_entry = create_token("other")
    table = parse_tokens(f"{entry}\n{other_entry}".encode())
    _, token_id, secret = token.split("_")
    _, other_id, _ = other.split("_")
    wrong = ("0" if secret[-1] != "0" else "1",)
    for forged in (
        f"mtx_{token_id}_{secret[:-1]}{wrong[0]}",
        f"mtx_{other_id}_{secret}",
        token.upper(),
        token + "\n",
        token[:-1],
        f"mtx_{token_id}_",
        entry.partition('sha256 = "')[2][:64],
        "",
    ):
        assert find_token(table, forged) is None, forged
    assert find_token(table, token) is not None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[tokens", "is not TOML"),
        ("tokens = " + 3_000 * "[", "is nested too deep"),
        ("[tokens.0123456789abcdef]\nprincipal = 'x'", "tokens.0123456789abcdef.sha256: Field required"),
        ("[tokens.short]\nprincipal = 'x'\nsha256 = '" + "0" * 64 + "'", "tokens.short"),
        ("[tokens.0123456789abcdef]\nprincipal = 'x'\nsha256 = 'SECRET'", "sha256: String should match"),
        ("[tokens.0123456789abcdef]\nprincipal = 'x'\ntoken = 'SECRET'\nsha256 = '" + "0" * 64 + "'", "Extra inputs"),
        ("[tokens.0123456789abcdef]\nprincipal = ''\nsha256 = '" + "0" * 64 + "'", "principal"),
        ("[tokens.0123456789abcdef]\nprincipal = 'x'\nadmin = 'false'\nsha256 = '" + "0" * 64 + "'", "admin"),
        ("topics = {}", "topics: Extra inputs"),
        ("\xff", "is not"),
    ],
)
def test_a_wrong_file_is_refused_by_place_and_not_by_value(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidSecurityFile) as refused:
        Authenticator(path, None)
    assert problem in str(refused.value) and str(path) in str(refused.value)
    assert "SECRET" not in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSecurityFile, match="No such file"):
        Authenticator(tmp_path / "none.toml", None)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_changed_file_holds_within_a_second_and_a_broken_one_does_not(tmp_path: Path) -> None:
    """Between two looks there is no system call: the file is gone, and nothing is noticed until the second is over."""
    path, clock = tmp_path / "file", Clock()
    path.write_bytes(b"1")
    watched = WatchedFile(path, int, clock)
    path.write_bytes(b"22")
    assert watched.current() == 1
    clock.now_s += watched_file.LOOK_EVERY_S
    assert (watched.current(), watched.version) == (22, 1)
    for broken in (b"x", None):
        path.write_bytes(broken) if broken else path.unlink()
        clock.now_s += watched_file.LOOK_EVERY_S
        assert (watched.current(), watched.version) == (22, 1)
    path.write_bytes(b"4")
    clock.now_s += watched_file.LOOK_EVERY_S
    assert (watched.current(), watched.version) == (4, 2)


def test_a_file_of_the_same_size_and_time_is_noticed_when_it_was_replaced(tmp_path: Path) -> None:
    path, clock = tmp_path / "file", Clock()
    path.write_bytes(b"1")
    watched = WatchedFile(path, int, clock)
    before = path.stat()
    (tmp_path / "new").write_bytes(b"2")
    os.utime(tmp_path / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (tmp_path / "new").replace(path)
    clock.now_s += watched_file.LOOK_EVERY_S
    assert watched.current() == 2


# -- grants --------------------------------------------------------------------------------------------------------


def test_rights_add_up_over_patterns_and_name_what_is_missing() -> None:
    topics: Any = {"public/default/*": ["consume"], "public/default/orders-?": ["produce"]}
    principal = Principal("p", Grants.model_validate({"topics": topics}))
    assert principal.may("consume", "public/default/orders-1") and principal.may("produce", "public/default/orders-1")
    assert not principal.may("produce", "public/default/orders-10")
    assert not principal.may("consume", "Public/default/orders-1"), "names differ by case"
    with pytest.raises(errors.MetatxnError, match="lacks the right admin on topic public/default/orders-1") as refused:
        principal.require("admin", "public/default/orders-1")
    assert refused.value.code is ErrorCode.NOT_ALLOWED and refused.value.members["right"] == "admin"
    assert Principal("boss", Grants(admin=True)).may("admin", "any/topic/there-is")


def test_what_a_caller_is_told_is_what_is_granted() -> None:
    """A client that offers what `AccessInfo` allows offers nothing that is refused, and leaves nothing out."""
    topics: Any = {"public/default/*": ["consume"], "public/default/orders-?": ["produce"], "a/b/c": []}
    for principal in (
        Principal("p", Grants.model_validate({"topics": topics})),
        Principal("r", Grants(admin=True)),
        ANYONE,
    ):
        told = principal.access()
        for topic in ("public/default/x", "public/default/orders-1", "public/default/orders-10", "a/b/c", "a/b/d"):
            assert told.may_see(topic) == principal.may_see(topic)
            for right in ("produce", "consume", "admin"):
                assert told.may(right, topic) == principal.may(right, topic)


def test_what_nobody_owns_is_everybodys() -> None:
    """B15. An owner of none is not an owner called "None"."""
    ada, root = Principal("ada", Grants()), Principal("root", Grants(admin=True))
    assert ada.owns(None) and ada.owns("ada") and not ada.owns("bob") and not ada.owns("None")
    assert root.owns("ada") and ANYONE.owns("ada") and ANYONE.owns(None)


# -- signed tokens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("algorithm", "key"), KEYS, ids=[name for name, _ in KEYS])
def test_each_kind_of_key_verifies_its_own_tokens(tmp_path: Path, algorithm: str, key: PrivateKey) -> None:
    grants = {"topics": {"public/default/*": ["consume"]}}
    found = verifier(tmp_path, key).principal(signed(key, algorithm, metatxn=grants))
    assert found.name == "ada" and found.may("consume", "public/default/x") and not found.superuser


def test_while_keys_are_exchanged_both_hold(tmp_path: Path) -> None:
    both = verifier(tmp_path, EC_KEY, ED_KEY, RSA_KEY)
    for algorithm, key in KEYS:
        assert both.principal(signed(key, algorithm)).name == "ada"


def test_a_key_that_was_taken_away_ends_what_was_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_file, "LOOK_EVERY_S", 0)
    both = verifier(tmp_path, EC_KEY, ED_KEY)
    token = signed(EC_KEY, "ES256")
    assert both.principal(token).name == "ada"
    (tmp_path / "keys.pem").write_bytes(public_pem(ED_KEY))
    with pytest.raises(InvalidToken, match="not signed with a key of this service"):
        both.principal(token)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": NOW_S - LEEWAY_S - 1_000_000_000}, "it has expired"),
        ({"exp": float("inf")}, "it is not a signed token"),
        ({"exp": "soon"}, "it is not a signed token"),
        ({"exp": None}, "it lacks the claim exp"),
        ({"sub": None}, "it lacks the claim sub"),
        ({"sub": ""}, "its claims do not fit"),
        ({"sub": "a\nb"}, "its claims do not fit"),
        ({"sub": "x" * 257}, "its claims do not fit"),
        ({"nbf": NEVER_S}, "it is not valid yet"),
        ({"aud": "others"}, "it is for another audience"),
        ({"metatxn": {"admin": 1}}, "its claims do not fit: admin"),
        ({"metatxn": {"topics": {"a/b/c": ["everything"]}}}, "its claims do not fit: topics"),
        ({"metatxn": "admin"}, "its claims do not fit"),
    ],
)
def test_claims_that_are_refused(tmp_path: Path, claims: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidToken, match=why):
        verifier(tmp_path, EC_KEY).principal(signed(EC_KEY, "ES256", **claims))


def test_an_audience_must_be_named(tmp_path: Path) -> None:
    ours = verifier(tmp_path, EC_KEY, audience="metatxn")
    assert ours.principal(signed(EC_KEY, "ES256", aud=["other", "metatxn"])).name == "ada"
    for aud in (None, "other"):
        with pytest.raises(InvalidToken):
            ours.principal(signed(EC_KEY, "ES256", aud=aud))


def test_what_is_told_of_accepted_tokens_lets_nobody_in(tmp_path: Path) -> None:
    listed, key = TokenFile(tmp_path), ec.generate_private_key(ec.SECP256R1())
    token = listed.add("ada", topics={"a/b/*": "consume"})
    (tmp_path / "key.pem").write_bytes(public_pem(key))
    signed_tokens = SignedTokens(tmp_path / "key.pem", "us")
    signed_, ada = Authenticator(listed.path, signed_tokens).accepted()
    assert (signed_.kind, signed_.algorithm, signed_.audience) == ("signed", "ES256", "us")
    assert (ada.principal, ada.id, ada.topics) == ("ada", token.split("_")[1], {"a/b/*": ["consume"]})
    told = ada.model_dump_json()
    assert token.split("_")[2] not in told and hashlib.sha256(token.encode()).hexdigest() not in told
    assert Authenticator(None, None).accepted() == []


def test_a_remembered_token_ends_with_its_time(tmp_path: Path) -> None:
    """Remembering a verified signature must not make a token live forever."""
    path, now = tmp_path / "keys.pem", [0.0]
    path.write_bytes(public_pem(EC_KEY))
    tokens = SignedTokens(path, now=lambda: now[0])
    expired = signed(EC_KEY, "ES256", exp=1_000_000_000)
    tokens._verified[hashlib.sha256(expired.encode()).digest()] = ANYONE, 1_000_000_000.0
    assert tokens.principal(expired) is ANYONE
    now[0] = 1_000_000_000.0
    with pytest.raises(InvalidToken, match="expired"):
        tokens.principal(expired)


def test_no_more_tokens_are_remembered_than_memory_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone who may sign could fill it; one that was forgotten is verified once more."""
    monkeypatch.setattr(signed_tokens, "REMEMBERED", 2)
    tokens = verifier(tmp_path, ED_KEY)
    all_of_them = [signed(ED_KEY, "EdDSA", sub=f"service-{number}") for number in range(4)]
    for _ in range(2):
        assert [tokens.principal(token).name for token in all_of_them] == [f"service-{number}" for number in range(4)]
        assert len(tokens._verified) == 2


def test_alg_none_is_refused(tmp_path: Path) -> None:
    """RFC 8725 §2.1: a token that says it needs no signature, in the spellings that fooled libraries."""
    payload = unpadded(json.dumps({"sub": "root", "exp": NEVER_S, "metatxn": {"admin": True}}).encode())
    for name in ("none", "None", "NONE", "nOnE", ""):
        header = unpadded(json.dumps({"alg": name, "typ": "JWT"}).encode())
        for signature in (b"", signed(EC_KEY, "ES256").rpartition(".")[2].encode()):
            with pytest.raises(InvalidToken):
                verifier(tmp_path, EC_KEY, RSA_KEY).principal(b".".join((header, payload, signature)).decode())


def test_a_public_key_is_no_password(tmp_path: Path) -> None:
    """RFC 8725 §2.1: everybody has the public key, so an HMAC keyed with it proves nothing."""
    for algorithm, key in KEYS:
        payload = unpadded(json.dumps({"sub": "root", "exp": NEVER_S, "metatxn": {"admin": True}}).encode())
        signing_input = unpadded(json.dumps({"alg": "HS256", "typ": "JWT"}).encode()) + b"." + payload
        for secret in (public_pem(key), public_pem(key).strip()):
            signature = unpadded(hmac.digest(secret, signing_input, "sha256"))
            with pytest.raises(InvalidToken, match="not signed with a key of this service"):
                verifier(tmp_path, key).principal((signing_input + b"." + signature).decode())
        assert verifier(tmp_path, key).principal(signed(key, algorithm)).name == "ada"


def test_a_token_cannot_bring_its_own_key(tmp_path: Path) -> None:
    """`jwk`, `jku`, `x5u` and `kid` of the header are not looked at."""
    mine = ec.generate_private_key(ec.SECP256R1())
    own = {"jwk": json.loads(jwt.algorithms.ECAlgorithm.to_jwk(mine.public_key())), "kid": "../../dev/null"}
    token = jwt.encode({"sub": "root", "exp": NEVER_S}, mine, algorithm="ES256", headers=own)
    with pytest.raises(InvalidToken, match="not signed with a key of this service"):
        verifier(tmp_path, EC_KEY).principal(token)


def test_a_token_with_one_changed_bit_is_refused(tmp_path: Path) -> None:
    tokens = verifier(tmp_path, ED_KEY)
    token = signed(ED_KEY, "EdDSA")
    for place in range(0, len(token) - 1, 7):
        forged = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        with pytest.raises(InvalidToken):
            tokens.principal(forged)


@pytest.mark.parametrize("text", ["", ".", "..", "a.b.c", "." * 100, "eyJhbGciOiJFUzI1NiJ9..", "é.é.é"])
def test_what_is_no_token_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidToken):
        verifier(tmp_path, EC_KEY).principal(text)


def test_a_header_of_a_thousand_brackets_is_refused(tmp_path: Path) -> None:
    bomb = unpadded(b"[" * 5000).decode()
    with pytest.raises(InvalidToken, match="it is not a signed token"):
        verifier(tmp_path, EC_KEY).principal(f"{bomb}.{bomb}.")


@pytest.mark.parametrize(
    ("pem", "problem"),
    [
        (b"", "contains no public key"),
        (public_pem(EC_KEY)[:60] + b"\n-----END PUBLIC KEY-----", "something other than public keys"),
        (public_pem(rsa.generate_private_key(public_exponent=65537, key_size=1024)), "at least 2048 bits"),
        (public_pem(ec.generate_private_key(ec.SECP384R1())), "P-256"),
    ],
)
def test_keys_that_are_refused(tmp_path: Path, pem: bytes, problem: str) -> None:
    path = tmp_path / "keys.pem"
    path.write_bytes(pem)
    with pytest.raises(InvalidSecurityFile, match=problem):
        SignedTokens(path)


# -- the header ----------------------------------------------------------------------------------------------------


def test_how_the_header_is_read(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path)
    token = tokens.add("ada").encode()
    authenticator = Authenticator(tokens.path, None)
    for value in (b"Bearer " + token, b"bearer " + token, b"BEARER  " + token + b" "):
        assert authenticator.principal([(b"authorization", value)]).name == "ada"
    refused: list[list[tuple[bytes, bytes]]] = [
        [],
        [(b"authorization", token)],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Basic " + token)],
        [(b"authorization", b"Bearer " + token), (b"authorization", b"Bearer " + token)],
        [(b"cookie", b"token=" + token)],
        [(b"authorization", b"Bearer \xff" + token)],
        [(b"authorization", b"Bearer " + b"x" * 10_000)],
        [(b"authorization", b"Bearer eyJhbGciOiJub25lIn0.e30.")],
    ]
    for headers in refused:
        with pytest.raises(errors.MetatxnError) as error:
            authenticator.principal(headers)
        assert error.value.code is ErrorCode.UNAUTHENTICATED
        assert token.decode() not in str(problem_of(error.value))
