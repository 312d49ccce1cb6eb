"""Sites make their keys; the operator signs what they ask for, and nothing else."""

import datetime as dt
import re
import shutil
import stat
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from fedbac.deploy.pki.authority import Authority, PrivateKey, is_signed_by, subject_of
from fedbac.deploy.pki.kits import FederationFolder, Kit, install, request
from fedbac.deploy.trial import Trial
from fedbac.errors import DeployError
from tests.deploy.folders import small
from tests.deploy.test_authority import shake_hands
from tests.test_cli import Shell

SITE = "edge-0-client-0"


@pytest.fixture
def clinic(tmp_path: Path) -> FederationFolder:
    """A federation whose operator has made no key."""
    return FederationFolder.init(tmp_path / "clinic", small(1, 2), keys=False)


def delivered(clinic: FederationFolder, name: str = SITE) -> Path:
    """Return a kit as its site has it."""
    return Path(shutil.copytree(clinic.kit(name), clinic.path.parent / "sites" / name))


def enrolled(clinic: FederationFolder, name: str = SITE) -> Path:
    """Return a kit whose certificate has come."""
    kit = delivered(clinic, name)
    clinic.sign([request(kit)[0]])
    install(kit, clinic.certificate(name))
    return kit


def asking(
    path: Path, key: object, name: str = SITE, federation: str = "clinic", digest: hashes.HashAlgorithm | None = None
) -> Path:
    """Write a request as somebody else's program may."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject_of(name, federation))
    signed = builder.sign(key, digest)  # type: ignore[arg-type]
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    return path


def refusal(work: Callable[[], object]) -> str:
    with pytest.raises(DeployError) as caught:
        work()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def test_no_private_key_but_the_authority_s_is_ever_at_the_operator(clinic: FederationFolder) -> None:
    kits = {name: enrolled(clinic, name) for name in clinic.config.sites()}
    clinic.renew()
    held = [path for path in clinic.path.rglob("*") if path.is_file() and b"PRIVATE" in path.read_bytes()]
    assert held == [clinic.authority.folder / "ca.key"]
    loaded = {name: Kit.load(path) for name, path in kits.items()}
    assert {name: kit.identity.name for name, kit in loaded.items()} == {name: name for name in kits}
    assert len({kit.key for kit in loaded.values()}) == len(kits)
    assert {stat.S_IMODE((kit / "site.key").stat().st_mode) for kit in kits.values()} == {0o600}
    shake_hands(kits["cloud"], kits["edge-0"], "cloud")
    shake_hands(kits["edge-0"], kits[SITE], "edge-0")


def test_a_kit_says_what_it_still_lacks(clinic: FederationFolder) -> None:
    kit = delivered(clinic)
    assert f"site.key: the file is missing; make it at the site: fedbac federation request {kit}" in refusal(
        lambda: Kit.load(kit)
    )
    request(kit)
    assert f"site.crt: the file is missing; have {SITE}.csr signed, then run: fedbac federation install" in refusal(
        lambda: Kit.load(kit)
    )


def test_a_certificate_is_renewed_with_the_same_key_by_either_side(clinic: FederationFolder) -> None:
    kit = enrolled(clinic)
    before = Kit.load(kit)
    clinic.sign([request(kit)[0]])
    install(kit, clinic.certificate(SITE))
    asked = Kit.load(kit)
    assert clinic.renew([SITE]) == [SITE]
    install(kit, clinic.certificate(SITE))
    renewed = Kit.load(kit)
    assert before.key == asked.key == renewed.key
    assert len({found.identity.serial for found in (before, asked, renewed)}) == 3
    assert {path.name for path in kit.iterdir()} == {"site.yaml", "site.key", "site.crt", "ca.crt"}


def test_a_new_key_waits_until_its_certificate_comes(clinic: FederationFolder) -> None:
    kit = enrolled(clinic)
    before = Kit.load(kit)
    file, key = request(kit, new_key=True)
    assert request(kit, new_key=True) == (file, key), "asking again does not spoil what was sent"
    assert Kit.load(kit) == before
    said = refusal(lambda: clinic.sign([file]))
    assert re.search(rf"{SITE}: it has a certificate for another key, good until [\d-]+; .* sign with --replace", said)
    assert clinic.sign([file], replace=True) == {SITE: key}
    install(kit, clinic.certificate(SITE))
    after = Kit.load(kit)
    assert after.key != before.key
    assert not (kit / "next.key").exists()
    install(kit, clinic.certificate(SITE))


def test_a_revoked_site_comes_back_with_another_key_only_and_when_told(clinic: FederationFolder) -> None:
    kit = enrolled(clinic)
    clinic.revoke(SITE)
    file, _ = request(kit)
    for replace in (False, True):
        assert "the key was revoked on" in refusal(lambda replace=replace: clinic.sign([file], replace=replace))  # type: ignore[misc]
    assert "the key was revoked on" in refusal(lambda: clinic.renew([SITE]))
    file, _ = request(kit, new_key=True)
    assert "to take it back, sign with --replace" in refusal(lambda: clinic.sign([file]))
    clinic.sign([file], replace=True)
    install(kit, clinic.certificate(SITE))
    assert Kit.load(kit).identity.serial not in clinic.authority.revoked().serials


def test_requests_are_signed_all_or_none(clinic: FederationFolder, tmp_path: Path) -> None:
    good, _ = request(delivered(clinic))
    bad = asking(tmp_path / "bad.csr", new_key(), "edge-9", digest=hashes.SHA256())
    assert f"{bad}: unknown site 'edge-9'" in refusal(lambda: clinic.sign([good, bad]))
    again = asking(tmp_path / "again.csr", new_key(), digest=hashes.SHA256())
    assert f"another request is for {SITE} too" in refusal(lambda: clinic.sign([good, again]))
    shared = new_key()
    two = [asking(tmp_path / f"{n}.csr", shared, f"edge-1-client-{n}", digest=hashes.SHA256()) for n in range(2)]
    assert "edge-1-client-1: the key is that of edge-1-client-0" in refusal(lambda: clinic.sign(two))
    assert clinic.authority.issued() == {}
    assert not clinic.certificate(SITE).exists()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: rsa.generate_private_key(65537, 1024), "the key is too weak"),
        (lambda: ec.generate_private_key(ec.SECP224R1()), "the key is too weak"),
        (ed25519.Ed25519PrivateKey.generate, "of a kind that sites do not use"),
    ],
)
def test_a_weak_key_gets_no_certificate(
    clinic: FederationFolder, tmp_path: Path, make: Callable[[], object], problem: str
) -> None:
    key = make()
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    file = asking(tmp_path / "weak.csr", key, digest=digest)
    said = refusal(lambda: clinic.sign([file]))
    assert problem in said
    assert said.startswith(f"{file}: ")


@pytest.mark.parametrize("key", [lambda: rsa.generate_private_key(65537, 2048), new_key], ids=["rsa", "ec"])
def test_a_key_that_another_program_made_is_taken(
    clinic: FederationFolder, tmp_path: Path, key: Callable[[], PrivateKey]
) -> None:
    kit, made = delivered(clinic), key()
    pem = made.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (kit / "site.key").touch(0o600)
    (kit / "site.key").write_bytes(pem)
    clinic.sign([asking(tmp_path / "own.csr", made, digest=hashes.SHA384())])
    install(kit, clinic.certificate(SITE))
    assert Kit.load(kit).key == pem


def test_what_is_no_request_of_this_federation_is_refused(clinic: FederationFolder, tmp_path: Path) -> None:
    other = asking(tmp_path / "other.csr", new_key(), federation="another", digest=hashes.SHA256())
    assert "the request is for 'another', and this federation is 'clinic'" in refusal(lambda: clinic.sign([other]))
    file, _ = request(delivered(clinic))
    whole = file.read_bytes()
    body = bytearray(x509.load_pem_x509_csr(whole).public_bytes(serialization.Encoding.DER))
    at = bytes(body).index(SITE.encode())
    body[at : at + len(SITE)] = b"edge-1-client-0"
    forged = x509.load_der_x509_csr(bytes(body)).public_bytes(serialization.Encoding.PEM)
    for pem, problem in (
        (forged, "the request is not signed with its key"),
        (b"hello", "it is no certificate request; have the site make it again"),
        (b"", "it is no certificate request"),
        (whole[:200], "it is no certificate request"),
        (clinic.authority.pem, "it is no certificate request"),
    ):
        file.write_bytes(pem)
        assert problem in refusal(lambda: clinic.sign([file]))
    assert "nowhere.csr: the file is missing; give the path of a request" in refusal(
        lambda: clinic.sign([Path("nowhere.csr")])
    )


def test_a_request_gets_its_name_and_key_and_no_other_wish(clinic: FederationFolder, tmp_path: Path) -> None:
    """One that wants to be an authority, a server, and somebody else too."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject_of(SITE, "clinic"))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("cloud")]), critical=False)
    wish = tmp_path / "wish.csr"
    wish.write_bytes(builder.sign(new_key(), hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    clinic.sign([wish])
    found = x509.load_pem_x509_certificate(clinic.certificate(SITE).read_bytes())
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [SITE]
    assert [one.value for one in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [SITE]


def test_install_takes_only_what_the_site_can_use(clinic: FederationFolder, tmp_path: Path) -> None:
    kit, other = delivered(clinic), enrolled(clinic, "edge-1-client-0")
    request(kit)
    assert "the certificate is that of 'edge-1-client-0'" in refusal(lambda: install(kit, other / "site.crt"))
    clinic.sign([asking(tmp_path / "mine.csr", new_key(), digest=hashes.SHA256())])
    assert "the certificate is for no key of this kit" in refusal(lambda: install(kit, clinic.certificate(SITE)))
    foreign = Authority.create(tmp_path / "foreign", "clinic").issue({SITE: "client"})[SITE]
    (tmp_path / "foreign.crt").write_bytes(foreign.certificate)
    assert "ca.crt did not sign it" in refusal(lambda: install(kit, tmp_path / "foreign.crt"))
    late = clinic.authority.issue({SITE: "client"}, 1, dt.datetime.now(dt.UTC) - dt.timedelta(days=3))[SITE]
    (tmp_path / "late.crt").write_bytes(late.certificate)
    assert "the certificate expired on" in refusal(lambda: install(kit, tmp_path / "late.crt"))
    assert not (kit / "site.crt").exists()


def test_records_of_earlier_versions_have_no_key(clinic: FederationFolder) -> None:
    kit = enrolled(clinic)
    book = clinic.authority.folder / "issued.json"
    book.write_text(re.sub(r',\s*"key": "[0-9a-f]{64}"', "", book.read_text()))
    assert "key" not in book.read_text()
    file, _ = request(kit)
    assert "sign with --replace" in refusal(lambda: clinic.sign([file]))
    clinic.sign([file], replace=True)
    clinic.sign([file])


def test_the_commands_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fedbac = Shell(tmp_path, monkeypatch, capsys)
    said = fedbac("federation", "init", "hospital", "--edges", "1", "--clients", "1")
    assert "fedbac federation request KIT" in said
    assert "You hold the keys" not in said
    assert fedbac("federation", "show", "hospital").count("no certificate yet") == 3
    shutil.copytree(tmp_path / "hospital" / "kits" / SITE, tmp_path / SITE)
    said = fedbac("federation", "request", SITE)
    assert f"Send {SITE}/{SITE}.csr to the operator" in said
    (spoken,) = re.findall(r"the key is ((?:[0-9a-f]{4} ?){8})", said)
    said = fedbac("federation", "sign", "hospital", f"{SITE}/{SITE}.csr", "--days", "9")
    assert f"  {spoken.strip()}  hospital/certificates/{SITE}.crt\n" in said
    said = fedbac("federation", "install", SITE, f"hospital/certificates/{SITE}.crt")
    assert f"the certificate of {SITE} is in use until" in said
    assert re.search(rf"^{SITE} .* 9 +good *$", fedbac("federation", "show", "hospital"), re.MULTILINE)
    said = fedbac("federation", "renew", "hospital")
    assert (
        f"also send the certificates, for fedbac federation install KIT CERTIFICATE:\n  hospital/certificates/{SITE}"
        in said
    )
    assert "until they ask by fedbac federation request KIT: cloud, edge-0\n" in said
    assert "You hold the keys" not in said
    said = fedbac("federation", "renew", "hospital", "cloud", "--keys")
    assert "You hold the keys of these sites" in said
    Kit.load(tmp_path / "hospital" / "kits" / "cloud")


def test_a_trial_uses_keys_that_are_good_for_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice, so that what the first left is in nobody's way; the kits to hand out stay without keys."""
    fedbac = Shell(tmp_path, monkeypatch, capsys)
    fedbac("federation", "init", "hospital", "--edges", "1", "--clients", "1", "--task", "fashion-mnist-mini")
    seen: list[Path] = []

    def wait(trial: Trial, show: object) -> int:
        seen.append(trial.kits)
        return 0

    monkeypatch.setattr(Trial, "running", lambda trial: nullcontext())
    monkeypatch.setattr(Trial, "wait", wait)
    ours = (tmp_path / "hospital" / "authority" / "ca.crt").read_bytes()
    for _ in range(2):
        assert "Their keys are made here" in fedbac("federation", "try", "hospital", "--rounds", "1")
        for name in ("cloud", "edge-0", SITE):
            kit = Kit.load(tmp_path / seen[-1] / name)
            assert not is_signed_by(kit.certificate, ours, name)
    assert not list((tmp_path / "hospital" / "kits").rglob("*.key"))
    assert FederationFolder.load(tmp_path / "hospital").authority.issued() == {}
