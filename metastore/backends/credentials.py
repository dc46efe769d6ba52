"""The credentials of a client and the authorities it trusts: the same files for every store that has servers.

They are read when a store is opened, and what is wrong with them is then reported by name. The libraries below would
report it late (as a server that does not answer) or end the process (gRPC, for a certificate without its key).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

File = str | Path


class InvalidCredentials(ValueError):
    """A file that was named for TLS or for a user is missing or wrong. The message names the file."""


def _read(what: str, file: File) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidCredentials(f"the {what} file {file} cannot be read: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the authorities to trust (None: those of the system), and the client's own certificate with its key,
    if any."""

    ca: File | None = None
    cert: File | None = None
    key: File | None = field(default=None, repr=False)

    @classmethod
    def of(cls, ca: File | None, cert: File | None, key: File | None) -> Tls | None:
        """The TLS settings, or None if no file is given: then there is no TLS. Raises `InvalidCredentials`."""
        if not (ca or cert or key):
            return None
        if bool(cert) != bool(key):
            raise InvalidCredentials("a client certificate needs both files, cert and key")
        tls = cls(ca, cert, key)
        tls.context()
        return tls

    def context(self) -> ssl.SSLContext:
        """The context of a client that requires a trusted certificate with the right host name. Raises
        `InvalidCredentials`."""
        for what, file in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if file:
                _read(what, file)
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except ssl.SSLError:
            raise InvalidCredentials(f"the ca file {self.ca} contains no certificate in PEM form") from None
        if self.cert and self.key:
            try:
                # With an empty password, OpenSSL does not ask for one on the terminal.
                context.load_cert_chain(self.cert, self.key, password="")
            except ssl.SSLError as error:
                raise InvalidCredentials(
                    f"the cert file {self.cert} and the key file {self.key} are not a pair in PEM form, "
                    f"with a key without a password: {error.reason or error}"
                ) from None
        return context

    def pem(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """The contents of `ca`, `key` and `cert`. Raises `InvalidCredentials`."""
        files = (("ca", self.ca), ("key", self.key), ("cert", self.cert))
        ca, key, cert = (_read(what, file) if file else None for what, file in files)
        return ca, key, cert


@dataclass(frozen=True, slots=True)
class Login:
    """A user of the store's own authentication."""

    user: str
    password: str = field(repr=False)

    @classmethod
    def of(cls, user: str | None, password_file: File | None) -> Login | None:
        """The login, or None without a user. The password is the content of the file without the end of its line.

        Raises `InvalidCredentials`.
        """
        if not user and not password_file:
            return None
        if not user:
            raise InvalidCredentials("a password_file needs a user")
        if not password_file:
            raise InvalidCredentials(f"the user {user!r} needs a password_file")
        try:
            password = _read("password", password_file).decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise InvalidCredentials(f"the password file {password_file} is not UTF-8 text") from None
        if not password:
            raise InvalidCredentials(f"the password file {password_file} is empty")
        return cls(user, password)
