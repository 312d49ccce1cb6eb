"""Sites that an organization's own authority proves, through an intermediate one."""

import datetime as dt
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedbac.config.text import to_yaml
from fedbac.deploy.pki.authority import key_pem
from fedbac.deploy.pki.cards import card_of, verify, write_card
from fedbac.deploy.pki.kits import FederationFolder, Kit, credentials_of, install, request
from fedbac.deploy.settings import CLOUD, FederationConfig, parse_settings
from fedbac.deploy.transports.base import Refusal
from fedbac.deploy.transports.grpc import GrpcChildren, GrpcParent
from fedbac.deploy.transports.nvflare.children import Trust
from fedbac.deploy.transports.nvflare.parent import END
from fedbac.errors import DeployError
from tests.deploy.folders import small
from tests.deploy.links import echo, eventually
from tests.test_cli import Shell

EDGE, CLIENT, OTHER = "edge-0", "edge-0-client-0", "edge-0-client-1"
NAMES = {EDGE: "fl.hospital-a.org", CLIENT: "gpu7.hospital-a.org"}
BOTH = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]


def certificate(
    subject: str,
    key: rsa.RSAPublicKey,
    issuer: str,
    signer: rsa.RSAPrivateKey,
    *,
    ca: bool = False,
    san: list[str] | None = None,
    usages: list[x509.ObjectIdentifier] | None = None,
    days: int = 30,
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    named = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, issuer)]
    builder = x509.CertificateBuilder(named[1], named[0], key, x509.random_serial_number())
    builder = builder.not_valid_before(now - dt.timedelta(days=40)).not_valid_after(now + dt.timedelta(days=days))
    builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    if san is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in san]), False)
    if usages is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), False)
    return builder.sign(signer, hashes.SHA256())


def pem(*certificates: x509.Certificate) -> bytes:
    return b"".join(one.public_bytes(serialization.Encoding.PEM) for one in certificates)


def new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@dataclass
class Organization:
    """A root, and an intermediate authority that signs what the organization's machines ask for."""

    name: str
    root_key: rsa.RSAPrivateKey = field(default_factory=new_key)
    key: rsa.RSAPrivateKey = field(default_factory=new_key)

    def __post_init__(self) -> None:
        root, issuing = f"{self.name} root", f"{self.name} issuing"
        self.root = certificate(root, self.root_key.public_key(), root, self.root_key, ca=True)
        self.issuing = certificate(issuing, self.key.public_key(), root, self.root_key, ca=True)

    def certified(self, kit: Path, name: str, **how: object) -> Path:
        """Give a kit a key and a certificate of the organization, as its own tools would; return the latter."""
        key = new_key()
        (kit / "site.key").touch(0o600)
        (kit / "site.key").write_bytes(key_pem(key))
        how = {"san": [name], "usages": BOTH, **how}
        leaf = certificate(name, key.public_key(), f"{self.name} issuing", self.key, **how)  # type: ignore[arg-type]
        (kit / "site.crt").write_bytes(pem(leaf, self.issuing))
        return kit / "site.crt"


@pytest.fixture(scope="module")
def hospital() -> Organization:
    return Organization("hospital a")


@pytest.fixture(scope="module")
def stranger() -> Organization:
    """Has the names of the other, and keys of its own."""
    return Organization("hospital a")


@pytest.fixture
def clinic(tmp_path: Path, hospital: Organization) -> FederationFolder:
    """A federation of which an edge and one of its clients have an organization's certificates."""
    made = FederationFolder.init(tmp_path / "clinic", small(2, 1))
    (made.path / "hospital-a.pem").write_bytes(pem(hospital.root))
    tree = made.config.model_dump(mode="json") | {"external_ca": [{"certificates": "hospital-a.pem", "sites": NAMES}]}
    federation = FederationFolder(made.path, parse_settings(FederationConfig, tree), made.authority)
    federation.renew()
    for name, known in NAMES.items():
        hospital.certified(federation.kit(name), known)
    return federation


def refusal(kit: Path) -> str:
    with pytest.raises(DeployError) as caught:
        Kit.load(kit)
    return str(caught.value)


@contextmanager
def listening(kit: Path) -> Iterator[GrpcChildren]:
    site = Kit.load(kit).site
    proof = credentials_of(kit, site, *site.children)
    children = GrpcChildren(
        "127.0.0.1:0", proof, site.children, lambda name, hello: b"welcome", heartbeat=1, limit=10_000
    )
    try:
        yield children
    finally:
        children.close()


@contextmanager
def dialling(kit: Path, port: int) -> Iterator[None]:
    site, stop = Kit.load(kit).site, threading.Event()
    assert site.parent is not None
    proof = credentials_of(kit, site, site.parent)
    parent = GrpcParent(f"127.0.0.1:{port}", site.parent, site.name, proof, heartbeat=1, limit=10_000)
    thread = threading.Thread(target=parent.serve, args=(lambda: b"hello", lambda said: None, echo, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_an_edge_and_a_client_of_an_organization_join_by_their_names_in_its_certificates(
    clinic: FederationFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """The edge is a server for both kinds of clients, and a child of a cloud that has our certificate."""
    with listening(clinic.kit(EDGE)) as children, dialling(clinic.kit(CLIENT), children.port):
        with dialling(clinic.kit(OTHER), children.port):
            eventually(lambda: children.present() == {CLIENT, OTHER})
            assert children.call({CLIENT: b"a", OTHER: b"b"}, 30)[0] == {CLIENT: b"a", OTHER: b"b"}
        clinic.revoke(CLIENT)  # the kit here is the site's: the list arrives
        eventually(lambda: CLIENT not in children.present())
        assert f"{CLIENT} has a certificate that is revoked" in caplog.text
        clinic.renew([CLIENT])
        shutil.copy(clinic.authority.list_file, clinic.kit(EDGE))
        eventually(lambda: CLIENT in children.present(), "it was taken back")
    with listening(clinic.kit(CLOUD)) as children, dialling(clinic.kit(EDGE), children.port):
        eventually(lambda: children.present() == {EDGE})
        children.turn_away(_list(clinic, EDGE))
        eventually(lambda: EDGE not in children.present())


def _list(clinic: FederationFolder, name: str) -> bytes:
    """Revoke a site where no kit hears of it; return the list."""
    before = clinic.kit(CLOUD) / "revoked.crl"
    kept = before.read_bytes()
    clinic.revoke(name)
    before.write_bytes(kept)
    return clinic.authority.list_file.read_bytes()


def test_an_authority_proves_no_other_site_than_it_is_named_for(
    clinic: FederationFolder, hospital: Organization, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither does the organization's prove a site of ours, nor ours one of the organization's."""
    posing = Path(shutil.copytree(clinic.kit(OTHER), tmp_path / "posing"))
    with listening(clinic.kit(EDGE)) as children:
        for site, known in ((OTHER, OTHER), (CLIENT, "other.hospital-a.org")):
            hospital.certified(posing, known)
            _claims(posing, site, EDGE, clinic, children, caplog)
        pair = clinic.authority.issue({CLIENT: "client"})[CLIENT]
        (posing / "site.key").write_bytes(pair.key)
        (posing / "site.crt").write_bytes(pair.certificate)
        _claims(posing, CLIENT, EDGE, clinic, children, caplog)
    assert children.seen() == {}


def _claims(
    posing: Path,
    site: str,
    parent: str,
    clinic: FederationFolder,
    children: GrpcChildren,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Dial as a site with another's certificate, and be refused."""
    caplog.clear()
    genuine = clinic.config.sites()[site]
    proof, stop = credentials_of(posing, genuine, parent), threading.Event()
    link = GrpcParent(f"127.0.0.1:{children.port}", parent, site, proof, heartbeat=1, limit=10_000)
    thread = threading.Thread(target=link.serve, args=(lambda: b"hello", lambda said: None, echo, stop))
    thread.start()
    try:
        eventually(lambda: "was refused: " in caplog.text)
    finally:
        stop.set()
        thread.join()
    assert children.present() == frozenset()


@pytest.mark.full
def test_a_child_takes_no_parent_of_an_authority_that_does_not_prove_it(
    clinic: FederationFolder, hospital: Organization, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The organization makes a certificate for the cloud, which ours proves."""
    posing = Path(shutil.copytree(clinic.kit(CLOUD), tmp_path / "posing"))
    hospital.certified(posing, CLOUD)
    proof = credentials_of(posing, clinic.config.sites()[EDGE], EDGE)  # who lies believes whom it likes
    children = GrpcChildren("127.0.0.1:0", proof, [EDGE], lambda name, hello: b"", heartbeat=1, limit=10_000)
    try:
        with dialling(clinic.kit(EDGE), children.port):
            eventually(lambda: "cloud cannot be reached" in caplog.text)
        assert children.seen() == {}
    finally:
        children.close()


@pytest.mark.full
def test_the_name_is_in_the_san_or_without_one_in_the_cn(clinic: FederationFolder, hospital: Organization) -> None:
    kit, known = clinic.kit(CLIENT), NAMES[CLIENT]
    for how in ({"san": ["a.org", known.upper()]}, {"san": None}, {"usages": None}, {"usages": BOTH[1:]}):
        hospital.certified(kit, known, **how)
        assert Kit.load(kit).identity.name == CLIENT
    hospital.certified(kit, known, san=["a.org"])
    assert "is for ['a.org'], but external_ca of federation.yaml says 'gpu7.hospital-a.org'" in refusal(kit)
    hospital.certified(kit, "a.org", san=None)
    assert f"says 'gpu7.hospital-a.org' for {CLIENT}" in refusal(kit)
    hospital.certified(kit, known, usages=BOTH[:1])
    assert "the certificate is not for clientAuth, as that of a site of role client must be" in refusal(kit)


@pytest.mark.full
def test_a_chain_must_lead_to_the_authority_through_authorities(
    clinic: FederationFolder, hospital: Organization, stranger: Organization
) -> None:
    kit, known = clinic.kit(CLIENT), NAMES[CLIENT]
    leaf, *_ = x509.load_pem_x509_certificates(hospital.certified(kit, known).read_bytes())
    (kit / "site.crt").write_bytes(pem(leaf, hospital.issuing, hospital.root))
    Kit.load(kit)
    (kit / "site.crt").write_bytes(pem(leaf))
    assert "hospital-a.pem did not sign it" in refusal(kit)
    (kit / "site.crt").write_bytes(pem(leaf, stranger.issuing))
    assert "hospital-a.pem did not sign it" in refusal(kit)
    stranger.certified(kit, known)
    assert "hospital-a.pem did not sign it" in refusal(kit)
    machine = new_key()  # with a genuine certificate, by which it signs another
    below = certificate("machine", machine.public_key(), "hospital a issuing", hospital.key, san=["machine"])
    key = rsa.generate_private_key(65537, 2048)
    forged = certificate(known, key.public_key(), "machine", machine, san=[known])
    (kit / "site.key").write_bytes(key_pem(key))
    (kit / "site.crt").write_bytes(pem(forged, below, hospital.issuing))
    assert "hospital-a.pem did not sign it" in refusal(kit)
    hospital.certified(kit, known, days=-1)
    assert "the certificate expired on" in refusal(kit)


def test_a_key_among_certificates_goes_nowhere(
    clinic: FederationFolder, hospital: Organization, tmp_path: Path
) -> None:
    """Some tools write both into one file; certificates are shown to peers, and an authority's are in many kits."""
    kit = clinic.kit(CLIENT)
    both = (kit / "site.crt").read_bytes() + (kit / "site.key").read_bytes()
    (tmp_path / "both.pem").write_bytes(both)
    with pytest.raises(DeployError, match="there is a private key in this file"):
        install(kit, tmp_path / "both.pem")
    (kit / "site.crt").write_bytes(both)
    assert "there is a private key in this file" in refusal(kit)
    (clinic.path / "hospital-a.pem").write_bytes(pem(hospital.root) + key_pem(hospital.root_key))
    with pytest.raises(DeployError, match="there is a private key in this file"):
        clinic.renew()


@pytest.mark.full
def test_the_issuing_authority_alone_can_be_trusted(clinic: FederationFolder, hospital: Organization) -> None:
    (clinic.path / "hospital-a.pem").write_bytes(pem(hospital.issuing))
    clinic.renew()
    with listening(clinic.kit(EDGE)) as children, dialling(clinic.kit(CLIENT), children.port):
        eventually(lambda: children.present() == {CLIENT})


def test_a_site_may_ask_its_organization_by_a_request_of_ours(
    clinic: FederationFolder, hospital: Organization, tmp_path: Path
) -> None:
    kit = Path(shutil.copytree(clinic.kit(CLIENT), tmp_path / CLIENT))
    (kit / "site.key").unlink()
    file, _ = request(kit)
    asked = x509.load_pem_x509_csr(file.read_bytes())
    names = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NAMES[CLIENT]]
    with pytest.raises(DeployError, match="unknown site"):
        clinic.sign([file])
    answer = tmp_path / "answer.pem"
    key = asked.public_key()
    leaf = certificate(NAMES[CLIENT], key, "hospital a issuing", hospital.key, san=[NAMES[CLIENT]])  # type: ignore[arg-type]
    answer.write_bytes(pem(leaf, hospital.issuing))
    install(kit, answer)
    assert Kit.load(kit).identity.name == CLIENT


def test_our_authority_signs_nothing_for_a_site_of_another(clinic: FederationFolder, tmp_path: Path) -> None:
    assert clinic.renew(keys=True) == list(clinic.config.sites())
    assert not clinic.certificate(CLIENT).exists()
    bare = FederationFolder.init(tmp_path / "bare", small(2, 1), keys=False)
    file, _ = request(bare.kit(CLIENT))
    with pytest.raises(DeployError, match=f"external_ca says that {CLIENT} has another authority"):
        clinic.sign([file])


@pytest.mark.full
def test_nvflare_s_kits_are_proven_the_same_way(
    clinic: FederationFolder, hospital: Organization, stranger: Organization
) -> None:
    site = Kit.load(clinic.kit(EDGE)).site
    trust = Trust(credentials_of(clinic.kit(EDGE), site, *site.children))
    chain = (clinic.kit(CLIENT) / "site.crt").read_bytes()
    assert trust.take(CLIENT, chain + END + b"hello")[1] == b"hello"
    with pytest.raises(Refusal):
        trust.take(OTHER, chain + END + b"hello")
    with pytest.raises(Refusal, match="did not sign it"):
        trust.take(CLIENT, stranger.certified(clinic.kit(CLIENT), NAMES[CLIENT]).read_bytes() + END)
    hospital.certified(clinic.kit(CLIENT), NAMES[CLIENT])
    clinic.revoke(CLIENT)
    with pytest.raises(Refusal, match="is revoked"):
        trust.take(CLIENT, (clinic.kit(CLIENT) / "site.crt").read_bytes() + END)


@pytest.mark.parametrize(
    ("external", "problem"),
    [
        ([{"certificates": "../x.pem", "sites": NAMES}], "external_ca.0.certificates: '../x.pem' is not allowed"),
        ([{"certificates": "site.crt", "sites": NAMES}], "external_ca.0.certificates: 'site.crt' is not allowed"),
        ([{"certificates": "x.pem", "sites": {}}], "external_ca.0.sites: {} is not allowed"),
        ([{"certificates": "x.pem", "sites": {"edge-9": "a.org"}}], "external_ca: unknown site 'edge-9'"),
        ([{"certificates": "x.pem", "sites": {EDGE: "a", CLIENT: "A"}}], "external_ca: a name is given twice"),
        (
            [{"certificates": f"{n}.pem", "sites": {EDGE: f"{n}.org"}} for n in "ab"],
            "external_ca: a site is given twice",
        ),
        ([{"certificate": "x.pem", "sites": NAMES}], "external_ca.0.certificates: Field required"),
    ],
)
def test_a_federation_file_that_names_authorities_wrongly(external: object, problem: str) -> None:
    tree = small(2, 1).model_dump(mode="json") | {"external_ca": external}
    with pytest.raises(DeployError) as caught:
        parse_settings(FederationConfig, tree)
    assert problem in str(caught.value)


@pytest.mark.full
def test_a_missing_file_is_named_and_show_says_whose_certificates_are_elsewhere(
    clinic: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fedbac = Shell(tmp_path, monkeypatch, capsys)
    tree = clinic.config.model_dump(mode="json")
    (clinic.path / "federation.yaml").write_text(to_yaml(tree))
    assert fedbac("federation", "show", "clinic").count("external_ca") == 2
    fedbac("federation", "revoke", "clinic", CLIENT)
    shown = fedbac("federation", "show", "clinic")
    assert (shown.count("external_ca"), shown.count("revoked")) == (1, 1)
    assert f"Left out, as revoked: {CLIENT}" in fedbac("federation", "renew", "clinic")
    (clinic.path / "hospital-a.pem").unlink()
    assert "hospital-a.pem: the file is missing" in fedbac("federation", "renew", "clinic", code=2)


@pytest.mark.full
def test_a_site_signs_its_models_with_a_key_of_its_organization(
    clinic: FederationFolder, stranger: Organization, tmp_path: Path
) -> None:
    model, kit, cloud = tmp_path / "model.pt2", clinic.kit(EDGE), clinic.kit(CLOUD)
    model.write_bytes(b"weights")
    said = {"model": EDGE, "method": "fed-bac", "round": 1, "rounds": 2, "run": "0" * 16, "charter": "0" * 16}
    said |= {"data": "0" * 16, "shape": (2,), "dtype": "float32", "classes": 2, "fedbac": "1", "torch": "2"}
    write_card(Kit.load(kit), model, said)
    assert verify(model, cloud).site == EDGE
    with pytest.raises(DeployError, match=r"of 'edge-0': .*no one site|did not sign"):
        verify(model, cloud / "ca.crt")  # our authority alone does not know the organization
    write_card(Kit.load(kit), model, said | {"federation": "another"})
    with pytest.raises(DeployError, match="it must not"):
        verify(model, cloud)  # of another federation with the same organization in it
    write_card(Kit.load(kit), model, said)
    card = card_of(model)
    card.write_text(card.read_text().replace('"round": 1', '"round": 2'))
    with pytest.raises(DeployError, match="the card was changed after 'edge-0' signed it"):
        verify(model, cloud)
    stranger.certified(kit, NAMES[EDGE])
    write_card(
        replace(
            Kit.load(clinic.kit(OTHER)),
            key=(kit / "site.key").read_bytes(),
            certificate=(kit / "site.crt").read_bytes(),
        ),
        model,
        said | {"site": EDGE},
    )
    with pytest.raises(DeployError, match="did not sign it"):
        verify(model, cloud)
