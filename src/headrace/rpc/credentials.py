"""Credentials of a run: a certificate authority and a token.

They are valid for one run. The authority's key stays in the process that created it. A task gets
its own certificate, the authority's certificate and the token, in a file that only its user can
read.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import json
import os
import secrets
import ssl
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from headrace.core.errors import MissingExtraError, SpecError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

TOKEN_BYTES = 32

# At any time: clocks of machines differ, and tasks trust only the authority of their own run.
_VALID = (datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))


class Secret:
    """Bytes that are never printed, logged or pickled."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    @classmethod
    def random(cls) -> Secret:
        """A new token of 256 bits, in ASCII characters."""
        return cls(base64.urlsafe_b64encode(secrets.token_bytes(TOKEN_BYTES)).rstrip(b"="))

    def reveal(self) -> bytes:
        """The bytes, for sending or storing them."""
        return self._value

    def matches(self, given: bytes) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(self._value, given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.matches(other._value)

    def __hash__(self) -> NoReturn:
        raise TypeError("a secret is not hashable")

    def __repr__(self) -> str:
        return "<secret>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled; write its credentials to a file")


@dataclass(frozen=True)
class Identity:
    """TLS certificate and key of a task, and the run's CA certificate (`authority`), in PEM."""

    certificate: bytes
    key: Secret
    authority: bytes

    @cached_property
    def client_context(self) -> ssl.SSLContext:
        """TLS settings of a client, which checks the server's address."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    @cached_property
    def server_context(self) -> ssl.SSLContext:
        """TLS settings of a server, which accepts clients of the run only."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        # A connection stays open; a session is not resumed.
        context.num_tickets = 0
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        # Version 1.3 has no renegotiation.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.authority.decode())
        # ssl reads keys from files only; this one never leaves the memory.
        fd = os.memfd_create("identity")
        try:
            os.write(fd, self.certificate + self.key.reveal())
            context.load_cert_chain(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
        return context


@dataclass(frozen=True)
class Credentials:
    """Credentials of a task: the run's token, and an identity if TLS is on."""

    token: Secret
    identity: Identity | None = None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that only this user can read."""
        fields = {"token": self.token.reveal().decode()}
        if self.identity is not None:
            fields["certificate"] = self.identity.certificate.decode()
            fields["key"] = self.identity.key.reveal().decode()
            fields["authority"] = self.identity.authority.decode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            fd = os.open(path, flags, 0o600)
        except OSError as error:
            problem = f"credentials cannot be written to {path}: {error.strerror}"
            raise SpecError(problem, "choose a new file in a directory you own") from None
        with open(fd, "w", encoding="ascii") as file:
            json.dump(fields, file)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Credentials:
        """Read a file written by `save`; raises `SpecError` if other users can read it."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            problem = f"credentials cannot be read from {path}: {error.strerror}"
            raise SpecError(problem, "use the credentials file of this run") from None
        with open(fd, encoding="ascii", errors="replace") as file:
            if stat.S_IMODE(os.fstat(fd).st_mode) & 0o077:
                problem = f"other users can read the credentials in {path}"
                raise SpecError(problem, f"create new ones and restrict them: chmod 600 {path}")
            text = file.read()
        try:
            fields = json.loads(text)
            token = Secret(fields["token"].encode("ascii"))
            identity = None
            if "key" in fields:
                identity = Identity(
                    fields["certificate"].encode(),
                    Secret(fields["key"].encode()),
                    fields["authority"].encode(),
                )
            _check_token(token)
        except (ValueError, KeyError, TypeError, AttributeError):
            # Not chained: the causes quote the file's content.
            problem = f"{path} contains no credentials"
            raise SpecError(problem, "use the credentials file of this run") from None
        return cls(token, identity)


def _check_token(token: Secret) -> None:
    try:
        raw = base64.urlsafe_b64decode(token.reveal() + b"=")
    except binascii.Error:
        raise ValueError("no token") from None
    if len(raw) != TOKEN_BYTES:
        raise ValueError("no token")


class Authority:
    """Certificate authority of one run; its certificates do not depend on the time."""

    def __init__(self) -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric import ec
        except ImportError:
            problem = "the package cryptography (for TLS certificates) is not installed"
            raise MissingExtraError(problem, "pip install 'headrace[train]'") from None
        from cryptography import x509

        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(f"headrace run {secrets.token_hex(8)}")
        self._certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(self._key, _sha256())
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("an authority cannot be pickled: its key stays in its process")

    def issue(self, task: str, hosts: Sequence[str] = ()) -> Identity:
        """Sign a certificate.

        Args:
            task: Name of the task.
            hosts: Host names and addresses of the task if it is a server; empty for clients.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = (
            self._builder(_named(task), key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if hosts:
            names = [_general_name(host) for host in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        pem = serialization.Encoding.PEM
        private = key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        certificate = builder.sign(self._key, _sha256())
        return Identity(
            certificate.public_bytes(pem), Secret(private), self._certificate.public_bytes(pem)
        )

    def _builder(self, subject: x509.Name, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        from cryptography import x509

        begin, end = _VALID
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
        )


def _sha256() -> hashes.SHA256:
    from cryptography.hazmat.primitives import hashes

    return hashes.SHA256()


def _named(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    # A common name has at most 64 characters.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
