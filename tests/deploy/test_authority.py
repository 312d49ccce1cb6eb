"""Certificates do what they are for and nothing else, on TLS as the operating system knows it."""

import datetime as dt
import json
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from filelock import FileLock

from fedbac.deploy.pki import authority
from fedbac.deploy.pki.authority import Authority, is_signed_by, read_identity, read_revoked
from fedbac.deploy.pki.kits import FederationFolder, Kit
from fedbac.errors import DeployError
from tests.deploy.folders import make

SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("authority") / "clinic", 1, 1).path


@pytest.fixture
def clinic(made: Path, tmp_path: Path) -> FederationFolder:
    """A federation that a test may spoil."""
    return FederationFolder.load(Path(shutil.copytree(made, tmp_path / "clinic")))


def shake_hands(server: Path, client: Path, name: str, revoked: Path | None = None) -> None:
    """Let one kit dial another under a name, in memory; raise what TLS says if they do not trust each other."""
    inside, outside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    inside.verify_mode = ssl.CERT_REQUIRED
    outside.verify_flags |= ssl.VERIFY_X509_STRICT  # what newer versions of Python do by themselves
    inside.verify_flags |= ssl.VERIFY_X509_STRICT
    for context, kit in ((inside, server), (outside, client)):
        context.load_cert_chain(kit / "site.crt", kit / "site.key")
        context.load_verify_locations(kit / "ca.crt")
    if revoked is not None:
        inside.load_verify_locations(revoked)
        inside.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        outside.wrap_bio(back, there, server_hostname=name),
        inside.wrap_bio(there, back, server_side=True),
    ]
    for _ in range(4):
        for end in tuple(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not ends


def test_names_and_usages(clinic: FederationFolder) -> None:
    usages = {"cloud": [SERVER], "edge-0": [SERVER, CLIENT], "edge-0-client-0": [CLIENT]}
    for name, wanted in usages.items():
        found = x509.load_pem_x509_certificate(Kit.load(clinic.kit(name)).certificate)
        assert [part.value for part in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [name]
        assert [part.value for part in found.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == ["clinic"]
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == [name]
        assert list(found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == wanted
        assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        key = found.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert isinstance(key.curve, ec.SECP256R1)
        now = dt.datetime.now(dt.UTC)
        assert found.not_valid_before_utc < now - dt.timedelta(minutes=4)
        assert abs(found.not_valid_after_utc - now - dt.timedelta(days=90)) < dt.timedelta(minutes=5)


def test_the_authority_can_sign_sites_and_lists_and_no_other_authority(clinic: FederationFolder) -> None:
    found = x509.load_pem_x509_certificate(clinic.authority.pem)
    constraints = found.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    usage = found.extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.key_cert_sign
    assert usage.crl_sign
    assert not usage.digital_signature
    assert found.not_valid_before_utc <= read_identity(Kit.load(clinic.kit("cloud")).certificate, "cloud").begins


def test_sites_trust_each_other_by_name_also_after_renewal(clinic: FederationFolder, tmp_path: Path) -> None:
    """Whichever of the two has its new kit already."""
    old = Path(shutil.copytree(clinic.path / "kits", tmp_path / "old"))
    clinic.renew()
    new = clinic.path / "kits"
    for up in (old, new):
        for down in (old, new):
            shake_hands(up / "cloud", down / "edge-0", "cloud")
            shake_hands(up / "edge-1", down / "edge-1-client-0", "edge-1")
    for name in clinic.config.sites():
        Kit.load(old / name)
        for place in (old, new):
            assert is_signed_by((place / name / "site.crt").read_bytes(), clinic.authority.pem, name)


@pytest.mark.parametrize(
    ("server", "client", "name"),
    [
        ("edge-0", "edge-1", "cloud"),  # an edge that says it is the cloud
        ("edge-1", "edge-0-client-0", "edge-0"),  # the wrong edge
        ("edge-1-client-0", "edge-0-client-0", "edge-1-client-0"),  # a client, which nobody may dial
        ("cloud", "cloud", "cloud"),  # the cloud, which dials nobody
    ],
)
def test_nobody_stands_in_for_another(clinic: FederationFolder, server: str, client: str, name: str) -> None:
    with pytest.raises(ssl.SSLError):
        shake_hands(clinic.kit(server), clinic.kit(client), name)


def test_the_list_is_one_that_tls_understands(clinic: FederationFolder) -> None:
    clinic.revoke("edge-0-client-0")
    where = clinic.kit("edge-1") / "revoked.crl"
    shake_hands(clinic.kit("edge-1"), clinic.kit("edge-1-client-0"), "edge-1", where)
    with pytest.raises(ssl.SSLError, match="certificate revoked"):
        shake_hands(clinic.kit("edge-0"), clinic.kit("edge-0-client-0"), "edge-0", where)


def test_all_certificates_of_a_revoked_site_are_on_the_list(clinic: FederationFolder) -> None:
    name = "edge-0-client-0"
    first = Kit.load(clinic.kit(name)).identity.serial
    clinic.renew([name])
    second = Kit.load(clinic.kit(name)).identity.serial
    before = clinic.authority.revoked()
    clinic.revoke(name)
    found = clinic.authority.revoked()
    assert found.serials == {first, second}
    assert found.number == before.number + 1
    clinic.renew([name])
    assert clinic.authority.revoked() == found
    clinic.revoke(name)
    assert clinic.authority.revoked().serials > found.serials


def mutants(pem: bytes) -> Iterator[bytes]:
    """Go through what one changed character at a time makes of a file, but for its first and last line."""
    for at in range(pem.index(b"\n") + 1, pem.rindex(b"\n-----END")):
        yield pem[:at] + (b"A" if pem[at : at + 1] != b"A" else b"B") + pem[at + 1 :]


def test_a_changed_character_of_a_list_changes_nothing_that_is_believed(clinic: FederationFolder) -> None:
    """Most are refused; one counts bits of the signature that mean nothing."""
    clinic.revoke("edge-0-client-0")
    pem, believed = clinic.authority.list_file.read_bytes(), []
    for changed in mutants(pem):
        try:
            believed.append(read_revoked(changed, clinic.authority.pem, "list"))
        except DeployError as error:
            assert str(error).startswith("list: ")  # noqa: PT017 (not all must fail)
    assert len(believed) <= 2
    assert set(believed) <= {clinic.authority.revoked()}


def test_a_changed_character_of_a_certificate_changes_nothing_that_is_believed(clinic: FederationFolder) -> None:
    pem, believed = Kit.load(clinic.kit("edge-0")).certificate, []
    for changed in mutants(pem):
        try:
            if is_signed_by(changed, clinic.authority.pem, "peer"):
                believed.append(changed)
            read_identity(changed, "peer")
        except DeployError as error:
            assert str(error).startswith("peer: ")  # noqa: PT017
    assert len(believed) <= 2
    signed = {x509.load_pem_x509_certificate(one).tbs_certificate_bytes for one in believed}
    assert signed <= {x509.load_pem_x509_certificate(pem).tbs_certificate_bytes}


def test_an_authority_whose_files_do_not_fit_is_refused(clinic: FederationFolder, tmp_path: Path) -> None:
    folder = clinic.authority.folder
    other = Authority.create(tmp_path / "other", "clinic")
    shutil.copy(other.folder / "ca.crt", folder / "ca.crt")
    with pytest.raises(DeployError, match=r"ca\.key: the key does not fit"):
        Authority.load(folder)
    (folder / "ca.key").chmod(0o644)
    with pytest.raises(DeployError, match="chmod 600"):
        Authority.load(folder)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"certificates": [{"name": "cloud", "serial": "x", "expires": "2030-01-01T00:00:00Z"}]}']
)
def test_a_broken_book_is_named_and_nothing_is_issued(clinic: FederationFolder, text: str) -> None:
    book = clinic.authority.folder / "issued.json"
    book.write_text(text)
    key = Kit.load(clinic.kit("cloud")).key
    with pytest.raises(DeployError, match=r"issued\.json: "):
        clinic.renew()
    assert Kit.load(clinic.kit("cloud")).key == key
    assert book.read_text() == text


def test_what_is_issued_is_on_record_first(clinic: FederationFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a site could have a certificate that revoking it would miss."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FederationFolder, "_write_kit", killed)
    before = len(json.loads((clinic.authority.folder / "issued.json").read_text())["certificates"])
    with pytest.raises(KeyboardInterrupt):
        clinic.renew(["edge-0"])
    assert len(json.loads((clinic.authority.folder / "issued.json").read_text())["certificates"]) == before + 1


def test_two_commands_do_not_change_one_authority_at_once(
    clinic: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authority, "PATIENCE", 0.01)
    with (
        FileLock(clinic.authority.folder / "lock"),
        pytest.raises(DeployError, match="another command is changing it"),
    ):
        clinic.revoke("edge-0")


def test_no_certificate_outlives_its_authority(clinic: FederationFolder) -> None:
    end = x509.load_pem_x509_certificate(clinic.authority.pem).not_valid_after_utc
    pair = clinic.authority.issue({"cloud": "cloud"}, 90, end - dt.timedelta(days=1))["cloud"]
    assert read_identity(pair.certificate, "cloud").expires == end
    with pytest.raises(DeployError, match="the authority has expired"):
        clinic.authority.issue({"cloud": "cloud"}, 90, end)


@pytest.mark.parametrize("pem", [b"", b"hello", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_names_nobody(pem: bytes) -> None:
    with pytest.raises(DeployError, match="peer: it is no certificate"):
        read_identity(pem, "peer")


@pytest.mark.parametrize(("days", "warned"), [(1, 0.25), (20, 5), (90, 7)])
def test_a_certificate_is_near_its_end_in_its_last_week_or_quarter(days: int, warned: float) -> None:
    """One for a single day, as of a trial, is not near its end when it is new."""
    begins = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    end = begins + dt.timedelta(days=days)
    identity = authority.Identity("cloud", "clinic", 1, begins, end)
    minute, limit = dt.timedelta(minutes=1), end - dt.timedelta(days=warned)
    assert [identity.near_its_end(when) for when in (begins, limit - minute, limit + minute)] == [False, False, True]
