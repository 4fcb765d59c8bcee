from __future__ import annotations

import copy
import logging
import os
import pickle
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from headrace.core.errors import SpecError
from headrace.rpc.credentials import TOKEN_BYTES, Authority, Credentials, Secret


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def test_a_token_has_256_random_bits_and_matches_only_itself() -> None:
    one, other = Secret.random(), Secret.random()
    assert len(one.reveal()) == 43
    assert TOKEN_BYTES * 8 == 256
    assert one.matches(one.reveal())
    assert not one.matches(other.reveal())
    assert not one.matches(one.reveal()[:-1])
    assert one == Secret(one.reveal())
    assert one != other


def test_secrets_are_never_shown(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    credentials = Credentials(Secret.random(), authority.issue("store 0", ["10.0.0.1"]))
    token = credentials.token.reveal().decode()
    assert credentials.identity is not None
    key = credentials.identity.key.reveal().decode()
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("any").info("%s %r %s", credentials, credentials, vars(credentials))
    shown = caplog.text + f"{credentials}{credentials!r}{credentials.token!s}"
    assert token not in shown
    assert key.splitlines()[1] not in shown
    for hidden in (credentials, credentials.token):
        with pytest.raises(TypeError):
            pickle.dumps(hidden)
    with pytest.raises(TypeError):
        copy.deepcopy(credentials.token)
    with pytest.raises(TypeError):
        pickle.dumps(authority)
    with pytest.raises(TypeError):
        hash(credentials.token)


def test_credentials_survive_a_file_that_only_the_user_reads(
    authority: Authority, tmp_path: Path
) -> None:
    path = tmp_path / "credentials"
    for credentials in (
        Credentials(Secret.random(), authority.issue("sampler 3")),
        Credentials(Secret.random()),
    ):
        credentials.save(path)
        assert path.stat().st_mode & 0o777 == 0o600
        assert Credentials.load(path) == credentials
        path.unlink()


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    Credentials(Secret.random()).save(path)
    with pytest.raises(SpecError, match="cannot be written"):
        Credentials(Secret.random()).save(path)


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpecError, match="cannot be written"):
        Credentials(Secret.random()).save(tmp_path / "link")
    Credentials(Secret.random()).save(tmp_path / "elsewhere")
    with pytest.raises(SpecError, match="cannot be read"):
        Credentials.load(tmp_path / "link")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "credentials"
    Credentials(Secret.random()).save(path)
    path.chmod(mode)
    with pytest.raises(SpecError, match="other users can read"):
        Credentials.load(path)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{}", b"[]", b"secretstuff", b'{"token": 1}', b'{"token": "secretstuff"}',
        b"\xff\xfe", b'{"token": "%s"}' % (b"\xc3\xa9" * 40),
        b'{"token": "%s", "key": "secretstuff"}' % (b"A" * 43),
    ],
)  # fmt: skip
def test_nonsense_is_refused_without_quoting_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "credentials"
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(SpecError, match="contains no credentials") as caught:
        Credentials.load(path)
    assert "secretstuff" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_certificates_name_their_hosts(authority: Authority) -> None:
    identity = authority.issue("store 0", ["10.0.0.1", "::1", "m1.example"])
    certificate = x509.load_pem_x509_certificate(identity.certificate)
    signer = x509.load_pem_x509_certificate(identity.authority)
    certificate.verify_directly_issued_by(signer)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "::1"]
    assert names.get_values_for_type(x509.DNSName) == ["m1.example"]
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert not constraints.ca


def test_no_clock_decides_whether_a_certificate_is_valid(authority: Authority) -> None:
    issued = authority.issue("store 0", ["10.0.0.1"])
    for pem in (issued.certificate, issued.authority):
        certificate = x509.load_pem_x509_certificate(pem)
        assert certificate.not_valid_before_utc == datetime(1970, 1, 1, tzinfo=UTC)
        # RFC 5280: a certificate without an end.
        assert certificate.not_valid_after_utc == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_a_sampler_cannot_pretend_to_be_a_store(authority: Authority) -> None:
    certificate = x509.load_pem_x509_certificate(authority.issue("sampler 0").certificate)
    usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]


def test_two_runs_do_not_trust_each_other(authority: Authority) -> None:
    other = Authority()
    stranger = x509.load_pem_x509_certificate(other.issue("store 0", ["10.0.0.1"]).certificate)
    ours = x509.load_pem_x509_certificate(authority.issue("store 0").authority)
    with pytest.raises(ValueError, match="Issuer"):
        stranger.verify_directly_issued_by(ours)


def test_credentials_do_not_reach_children(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    credentials = Credentials(Secret.random())
    credentials.save(path)
    Credentials.load(path)
    assert credentials.token.reveal().decode() not in "".join(os.environ.values())
