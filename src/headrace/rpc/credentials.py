"""Who may talk to a store: a certificate authority and a token per run.

Nothing here outlives a run. The authority's key stays in the process that made it; a task gets a
certificate of its own, the authority's certificate and the token, in a file only its user can read.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import json
import os
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NoReturn

from headrace.core.errors import MissingExtraError, SpecError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

TOKEN_BYTES = 32

# Clocks of machines differ; a certificate is valid a little before it was made.
_CLOCK_SKEW = timedelta(minutes=10)


class Secret:
    """Bytes that are never shown: not printed, not logged, not pickled."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    @classmethod
    def random(cls) -> Secret:
        """A new token of 256 bits, as letters that fit a header."""
        return cls(base64.urlsafe_b64encode(secrets.token_bytes(TOKEN_BYTES)).rstrip(b"="))

    def reveal(self) -> bytes:
        """The bytes themselves, for the one place that sends or stores them."""
        return self._value

    def matches(self, given: bytes) -> bool:
        """Compare in a time that does not depend on where they differ."""
        return hmac.compare_digest(self._value, given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.matches(other._value)

    def __hash__(self) -> NoReturn:
        raise TypeError("a secret is no key")

    def __repr__(self) -> str:
        return "<secret>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled; write its credentials to a file")


@dataclass(frozen=True)
class Identity:
    """What one task shows others and checks others by, in PEM.

    Attributes:
        certificate: Of the task.
        key: Belongs to the certificate.
        authority: Certificate of the run's authority, which signed all others.
    """

    certificate: bytes
    key: Secret
    authority: bytes


@dataclass(frozen=True)
class Credentials:
    """What a task needs to talk to others of its run.

    Attributes:
        token: The run's token.
        identity: For TLS; none where it was switched off.
    """

    token: Secret
    identity: Identity | None = None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that only this user can read.

        Raises:
            SpecError: Something is there already.
        """
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
            raise SpecError(problem, "choose a new file in a folder of your own") from None
        with open(fd, "w", encoding="ascii") as file:
            json.dump(fields, file)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Credentials:
        """Read what `save` wrote.

        Raises:
            SpecError: Others can read the file, or it contains something else.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            problem = f"credentials cannot be read from {path}: {error.strerror}"
            raise SpecError(problem, "give the file that was made for this run") from None
        with open(fd, encoding="ascii", errors="replace") as file:
            if stat.S_IMODE(os.fstat(fd).st_mode) & 0o077:
                problem = f"others can read the credentials in {path}"
                raise SpecError(problem, f"make new ones; keep them with chmod 600 {path}")
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
            # Not chained: the causes quote what they could not read.
            problem = f"{path} contains no credentials"
            raise SpecError(problem, "give the file that was made for this run") from None
        return cls(token, identity)


def _check_token(token: Secret) -> None:
    try:
        raw = base64.urlsafe_b64decode(token.reveal() + b"=")
    except binascii.Error:
        raise ValueError("no token") from None
    if len(raw) != TOKEN_BYTES:
        raise ValueError("no token")


class Authority:
    """Signs the certificates of one run.

    Args:
        now: The present, with a time zone.
        lifetime: How long certificates are valid; a little more than the run may take.

    Raises:
        MissingExtraError: The package `cryptography` is not installed.
    """

    def __init__(self, now: datetime, lifetime: timedelta) -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric import ec
        except ImportError:
            problem = "the package cryptography, which makes certificates, is not installed"
            raise MissingExtraError(problem, "pip install 'headrace[train]'") from None
        from cryptography import x509

        self._valid = (now - _CLOCK_SKEW, now + lifetime)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(f"headrace run {secrets.token_hex(8)}")
        self._certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(self._key, _sha256())
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("an authority stays in the process that made it")

    def issue(self, task: str, hosts: Sequence[str] = ()) -> Identity:
        """Sign a certificate.

        Args:
            task: Name of the task.
            hosts: Names and addresses under which others reach it; none if it only asks others.
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

        begin, end = self._valid
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
