"""A federation's certificate authority: it issues, renews and revokes; and what certificates and its list say."""

import datetime as dt
import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from filelock import FileLock, Timeout
from pydantic import AwareDatetime, Field

from fedbac.deploy.settings import SITE_DAYS, Configuration, Role, parse_settings
from fedbac.errors import DeployError, quoted
from fedbac.files import make_folder, read_bytes, read_json, why, write_whole

AUTHORITY_DAYS = 3652
"""Ten years; sites get new certificates many times within it."""
BACKDATED = dt.timedelta(minutes=5)
"""A certificate is valid from a little before it was made, since clocks of sites differ."""
ONLY_OWNER, FOLDER_OF_OWNER = 0o600, 0o700
PATIENCE = 10
"""Seconds to wait for another command that is changing the same federation."""

Extension = TypeVar("Extension", bound=x509.ExtensionType)
RSA = rsa.RSAPrivateKey | rsa.RSAPublicKey
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
STRONG = "EC with 256 bits, or RSA with 2048, at least"
LONGEST_CHAIN = 10
"""Certificates between a site's and the authority that is believed, at most."""

KEY_FILE, CERTIFICATE_FILE, LIST_FILE = "ca.key", "ca.crt", "revoked.crl"
SERVER_AUTH, CLIENT_AUTH = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
USAGES = {"cloud": [SERVER_AUTH], "edge": [SERVER_AUTH, CLIENT_AUTH], "client": [CLIENT_AUTH]}
"""Who may be dialled, and who may dial: a client's certificate cannot stand in for a server."""
KEY_USES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


class Identity(NamedTuple):
    """Whose certificate it is, and for how long."""

    name: str
    federation: str | None
    """None in a certificate of an external authority."""
    serial: int
    """By which it is revoked."""
    begins: dt.datetime
    expires: dt.datetime

    def near_its_end(self, now: dt.datetime) -> bool:
        """Whether it is time to renew it: in its last week, or its last quarter if that is shorter."""
        return self.expires - now < min(dt.timedelta(days=7), (self.expires - self.begins) / 4)


class RevokedList(NamedTuple):
    """Certificates that are no longer good; of two lists that of the higher number is the newer."""

    number: int
    serials: frozenset[int]


class KeyPair(NamedTuple):
    """A site's private key and certificate, both as PEM."""

    key: bytes
    certificate: bytes

    def __repr__(self) -> str:  # a key may end up nowhere but in its file
        return "Pair(...)"


class Asked(NamedTuple):
    """What a request asks for: a certificate for a key, in the name of a site."""

    name: str
    federation: str
    key: PublicKey


class Issued(Configuration):
    """One certificate that the authority has issued."""

    name: str
    """The site's."""
    serial: Annotated[str, Field(pattern="^[0-9a-f]+$")]
    """Hexadecimal."""
    expires: AwareDatetime
    """When it ends."""
    revoked: AwareDatetime | None = None
    """When it was revoked, if it was."""
    key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Hash of its public key; null where only the name was revoked, and in the records of earlier versions."""

    def days_left(self, now: dt.datetime) -> int:
        """Return the days until it expires, a begun one for a whole; negative ones since it did."""
        return math.ceil((self.expires - now) / dt.timedelta(days=1))


class Book(Configuration):
    """``issued.json``: every certificate of the authority, and the number of its last list of revoked ones."""

    number: Annotated[int, Field(ge=0)] = 0
    """Of the last list."""
    certificates: tuple[Issued, ...] = ()
    """In the order in which they were issued."""


class Authority:
    """The folder ``authority`` of a federation: the one place that has the authority's private key."""

    def __init__(self, folder: Path, key: PrivateKey, certificate: x509.Certificate) -> None:
        self.folder, self._key, self._certificate = folder, key, certificate
        self.pem = _pem(certificate)
        """Its certificate, which every site has."""

    @classmethod
    def create(cls, folder: Path, federation: str) -> Self:
        """Make an authority with a new key, and its first list, on which there is nobody."""
        make_folder(folder).chmod(FOLDER_OF_OWNER)
        key = new_key()
        name = subject_of(f"{federation} authority", federation)
        now = _now()
        usage = _key_usage("key_cert_sign", "crl_sign")
        builder = _builder(name, name, key.public_key(), now - BACKDATED, now + dt.timedelta(days=AUTHORITY_DAYS))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        certificate = builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())
        write_whole(folder / KEY_FILE, key_pem(key), mode=ONLY_OWNER)
        write_whole(folder / CERTIFICATE_FILE, _pem(certificate))
        made = cls(folder, key, certificate)
        made._publish(Book())
        return made

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open an authority."""
        key = read_key(folder / KEY_FILE)
        path = folder / CERTIFICATE_FILE
        pem = read(path)
        if not fits(key, pem, str(path)):
            raise DeployError(f"{folder / KEY_FILE}: the key does not fit {path}; restore both from one backup")
        return cls(folder, key, x509.load_pem_x509_certificate(pem))

    def issue(
        self, roles: Mapping[str, Role], days: int = SITE_DAYS, begin: dt.datetime | None = None
    ) -> dict[str, KeyPair]:
        """Return new keys and certificates for sites, by their names. Whoever calls this holds the keys of others."""
        keys = {name: new_key() for name in roles}
        asked = {name: (role, keys[name].public_key()) for name, role in roles.items()}
        certificates = self.certify(asked, days, begin, replace=True)
        return {name: KeyPair(key_pem(keys[name]), certificates[name]) for name in roles}

    def certify(
        self,
        keys: Mapping[str, tuple[Role, PublicKey]],
        days: int = SITE_DAYS,
        begin: dt.datetime | None = None,
        *,
        replace: bool = False,
    ) -> dict[str, bytes]:
        """Return new certificates for the keys of sites, by their names; they are on record before anyone has them.

        Another key than a site's last one, or any for a site that was revoked, only with ``replace``.
        """
        begin = begin or _now()
        expires = min(begin + dt.timedelta(days=days), self._certificate.not_valid_after_utc)
        if expires <= begin:
            raise DeployError(f"{self.folder / CERTIFICATE_FILE}: the authority has expired; make a new federation")
        made, issued = {}, []
        with self._changing() as book:
            last = {entry.name: entry for entry in book.certificates}
            of_key = {entry.key: entry for entry in book.certificates if entry.key is not None}
            for name, (role, key) in keys.items():
                digest = key_hash(key)
                _refuse_key(name, digest, of_key.get(digest), None if replace else last.get(name))
                certificate = self._certify(name, role, key, begin, expires)
                made[name] = _pem(certificate)
                entry = Issued(name=name, serial=f"{certificate.serial_number:x}", expires=expires, key=digest)
                of_key[digest] = entry
                issued.append(entry)
            self._record(book.model_copy(update={"certificates": (*book.certificates, *issued)}))
        return made

    def revoke(self, name: str, external: bool = False) -> RevokedList:
        """Put all certificates that a site was ever issued on a new list; its name, if an external authority did."""
        with self._changing() as book:
            entries = book.certificates
            if external and all(int(entry.serial, 16) != serial_of_name(name) for entry in entries):
                end = self._certificate.not_valid_after_utc
                entries = (*entries, Issued(name=name, serial=f"{serial_of_name(name):x}", expires=end))
            listed = tuple(
                entry.model_copy(update={"revoked": _now()}) if entry.name == name and not entry.revoked else entry
                for entry in entries
            )
            self._publish(Book(number=book.number + 1, certificates=listed))
        return self.revoked()

    def take_back(self, name: str) -> None:
        """Believe the certificates of a site's external authority again."""
        with self._changing() as book:
            kept = tuple(one for one in book.certificates if int(one.serial, 16) != serial_of_name(name))
            if kept != book.certificates:
                self._publish(Book(number=book.number + 1, certificates=kept))

    def issued(self) -> dict[str, Issued]:
        """Return the last certificate of every site that was ever issued one."""
        return {entry.name: entry for entry in self._book().certificates}

    def revoked(self) -> RevokedList:
        """Return the list as sites have it."""
        return read_revoked(read(self.list_file), self.pem, str(self.list_file))

    @property
    def list_file(self) -> Path:
        """The signed list, which cloud and edges have a copy of."""
        return self.folder / LIST_FILE

    def _certify(self, name: str, role: Role, key: PublicKey, begin: dt.datetime, end: dt.datetime) -> x509.Certificate:
        issuer = self._certificate.subject
        subject = subject_of(name, str(issuer.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value))
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            _builder(subject, issuer, key, begin - BACKDATED, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage(USAGES[role]), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(authority, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _book(self) -> Book:
        path = self.folder / "issued.json"
        try:
            return parse_settings(Book, read_json(path), f"{path}: ")
        except (OSError, ValueError) as error:
            raise DeployError(f"{path}: it cannot be read ({error}); restore it from a backup") from error

    @contextmanager
    def _changing(self) -> Iterator[Book]:
        """Yield what was issued so far, while no other command changes it."""
        with alone(self.folder):
            yield self._book()

    def _record(self, book: Book) -> None:
        write_whole(self.folder / "issued.json", book.model_dump_json(indent=1), mode=ONLY_OWNER)

    def _publish(self, book: Book) -> None:
        """Record a book and sign its list."""
        self._record(book)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(_now() - BACKDATED)
            .next_update(self._certificate.not_valid_after_utc)
            .add_extension(x509.CRLNumber(book.number), critical=False)
        )
        for entry in book.certificates:
            if entry.revoked:
                one = x509.RevokedCertificateBuilder().serial_number(int(entry.serial, 16))
                builder = builder.add_revoked_certificate(one.revocation_date(entry.revoked).build())
        signed = builder.sign(self._key, hashes.SHA256())
        write_whole(self.list_file, signed.public_bytes(serialization.Encoding.PEM))


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let no other command change a folder meanwhile."""
    try:
        with FileLock(folder / "lock", timeout=PATIENCE):
            yield
    except Timeout as error:
        raise DeployError(f"{folder}: another command is changing it; wait for its end") from error


def _refuse_key(name: str, key: str, before: Issued | None, last: Issued | None) -> None:
    """Refuse a key whose last certificate is another site's or revoked, and one that is not that of the site's last."""
    if before is not None and before.name != name:
        raise DeployError(f"{name}: the key is that of {before.name}; every site makes its own")
    if before is not None and before.revoked:
        raise DeployError(
            f"{name}: the key was revoked on {before.revoked:%Y-%m-%d}; have the site make another: "
            "fedbac federation request KIT --new-key"
        )
    if last is not None and last.revoked:
        raise DeployError(f"{name}: it was revoked on {last.revoked:%Y-%m-%d}; to take it back, sign with --replace")
    if last is not None and last.key != key:
        raise DeployError(
            f"{name}: it has a certificate for another key, good until {last.expires:%Y-%m-%d}; if the site says that "
            "it made a new one, sign with --replace"
        )


def read_identity(pem: bytes, source: str) -> Identity:
    """Return whose certificate it is; ``source`` says where it came from, for the message. Nothing is verified."""
    with readable(source, "certificate"):
        found = x509.load_pem_x509_certificate(pem)
        begins, expires = found.not_valid_before_utc, found.not_valid_after_utc
        return Identity(*named(found.subject, source), found.serial_number, begins, expires)


def make_request(key: PrivateKey, name: str, federation: str) -> bytes:
    """Return a request for a certificate, as PEM; its signature shows that whoever made it has the key."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject_of(name, federation))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def read_request(pem: bytes, source: str) -> Asked:
    """Return what a request asks for, if whoever made it has the key and that is strong; no other wish is granted."""
    again = "have the site make it again: fedbac federation request KIT"
    with readable(source, "certificate request", again):
        found = x509.load_pem_x509_csr(pem)
        key, digest = found.public_key(), found.signature_hash_algorithm
        if not isinstance(key, PublicKey) or not is_strong(key):
            raise DeployError(f"{source}: the key is too weak or of a kind that sites do not use ({STRONG}); {again}")
        if not isinstance(digest, hashes.SHA256 | hashes.SHA384 | hashes.SHA512) or not found.is_signature_valid:
            raise DeployError(f"{source}: the request is not signed with its key and SHA-256 or better; {again}")
        return Asked(*named(found.subject, source), key)


def public_key_of(pem: bytes, source: str) -> PublicKey:
    """Return the key that a certificate is for."""
    with readable(source, "certificate"):
        key = x509.load_pem_x509_certificate(pem).public_key()
        assert isinstance(key, PublicKey)
        return key


def refuse_useless(pem: bytes, role: Role, source: str) -> None:
    """Refuse a certificate that is not for what its site does: to be dialled, to dial, or both."""
    with readable(source, "certificate"):
        found = _extension(x509.load_pem_x509_certificate(pem), x509.ExtendedKeyUsage)
        if found is not None and not {*USAGES[role]} <= {*found}:  # without one it is for anything
            wanted = " and ".join("serverAuth" if one == SERVER_AUTH else "clientAuth" for one in USAGES[role])
            raise DeployError(
                f"{source}: the certificate is not for {wanted}, as that of a site of role {role} must be"
            )


def read_external(pem: bytes, site: str, name: str, source: str) -> Identity:
    """Return a site's identity, if the first certificate is for the name by which its external authority knows it.

    That is one of the DNS names of its SAN, or its CN if it has no SAN. Nothing is verified.
    """
    with readable(source, "certificate"):
        chain = x509.load_pem_x509_certificates(pem)
        found = {str(one.value) for one in chain[0].subject.get_attributes_for_oid(NameOID.COMMON_NAME)}
        if (alternative := _extension(chain[0], x509.SubjectAlternativeName)) is not None:
            found = set(alternative.get_values_for_type(x509.DNSName))
        if name.lower() not in {one.lower() for one in found}:
            raise DeployError(
                f"{source}: the certificate is for {quoted(sorted(found))}, but external_ca of federation.yaml says "
                f"{quoted(name)} for {site}; correct that, or ask for another certificate"
            )
        begins, expires = [one.not_valid_before_utc for one in chain], [one.not_valid_after_utc for one in chain]
        return Identity(site, None, serial_of_name(site), max(begins), min(expires))


def serial_of_name(site: str) -> int:
    """Return the number that stands for a site on the list, where serial numbers are another authority's."""
    return int.from_bytes(hashlib.sha256(b"site " + site.encode()).digest()[:16], "big")


def is_signed_by(pem: bytes, authority: bytes, source: str, whose: str | None = None) -> bool:
    """Whether a certificate is signed by an authority, or by one that follows it and that the authority signed."""
    with readable(whose or source, "certificate"):
        anchors = x509.load_pem_x509_certificates(authority)
        for anchor in anchors:
            anchor.public_key()  # one that cannot be used is no answer
    with readable(source, "certificate"):
        last, *between = x509.load_pem_x509_certificates(pem)[:LONGEST_CHAIN]
        for _ in range(LONGEST_CHAIN):
            if any(_signed(last, anchor) for anchor in anchors):
                return True
            above = next((one for one in between if _is_authority(one) and _signed(last, one)), None)
            if above is None:
                return False
            last = above
    return False


def _signed(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):  # another name, another kind of key, another signature
        return False
    return True


def _is_authority(certificate: x509.Certificate) -> bool:
    limits = _extension(certificate, x509.BasicConstraints)
    return limits is not None and limits.ca


def _extension(certificate: x509.Certificate, kind: type[Extension]) -> Extension | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def named(subject: x509.Name, source: str) -> tuple[str, str]:
    """Return the site and the federation that a certificate or a request is for."""
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    federations = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    if len(names) != 1 or len(federations) != 1:
        raise DeployError(f"{source}: it names no one site of a federation; use one of a kit")
    return str(names[0].value), str(federations[0].value)


def fits(key: PrivateKey, pem: bytes, source: str) -> bool:
    """Whether a private key is that of a certificate."""
    with readable(source, "certificate"):
        return key.public_key() == x509.load_pem_x509_certificate(pem).public_key()


def sign(key: PrivateKey, content: bytes) -> bytes:
    """Return the signature of a site's key, with SHA-256."""
    return key.sign(content, *_scheme(key))


def is_signature(signature: bytes, content: bytes, pem: bytes) -> bool:
    """Whether the key of a certificate made a signature."""
    key = public_key_of(pem, "certificate")
    try:
        key.verify(signature, content, *_scheme(key))
    except InvalidSignature:
        return False
    return True


def _scheme(key: PrivateKey | PublicKey) -> Any:
    sha256 = hashes.SHA256()
    return (padding.PKCS1v15(), sha256) if isinstance(key, RSA) else (ec.ECDSA(sha256),)


def is_strong(key: object) -> bool:
    """Whether a public key is of a kind that sites may have."""
    if isinstance(key, rsa.RSAPublicKey):
        return key.key_size >= 2048
    return isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in ("secp256r1", "secp384r1", "secp521r1")


def key_hash(key: PublicKey) -> str:
    """Return the sha256 of a public key, by which people and records know it."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, form)).hexdigest()


def read_revoked(pem: bytes, authority: bytes, source: str) -> RevokedList:
    """Return what a list says, if it bears the authority's signature; ``source`` is named in the message."""
    with readable(source, "list of revoked certificates"):
        found = x509.load_pem_x509_crl(pem)
        key = x509.load_pem_x509_certificate(authority).public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or not found.is_signature_valid(key):
            raise DeployError(
                f"{source}: the federation's authority did not sign it; copy it from the federation again"
            )
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        return RevokedList(number, frozenset(entry.serial_number for entry in found))


@contextmanager
def readable(source: str, what: str, fix: str = "copy it from the federation again") -> Iterator[None]:
    """Make one sentence of whatever the library lets out on strange bytes; it is more than it names, and often late."""
    try:
        yield
    except DeployError:
        raise
    except Exception as error:
        raise DeployError(f"{source}: it is no {what}; {fix}") from error


def read_key(path: Path) -> PrivateKey:
    """Return the private key in a file that nobody but its owner may read."""
    pem = read(path)
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise DeployError(f"{path}: others may read this private key; run: chmod 600 {path}")
    return as_key(pem, str(path))


def as_key(pem: bytes, source: str) -> PrivateKey:
    """Return a private key; ``source`` is named in the message."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, PrivateKey) or not is_strong(key.public_key()):
        raise DeployError(f"{source}: it is no private key of a federation ({STRONG}); make one, or copy it again")
    return key


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key, as sites have it."""
    return ec.generate_private_key(ec.SECP256R1())


def read(path: Path, fix: str = "copy it from the federation's folder again") -> bytes:
    """Return what is in a file of a federation; ``fix`` says what to do if it is missing."""
    try:
        return read_bytes(path)
    except FileNotFoundError as error:
        raise DeployError(f"{path}: the file is missing; {fix}") from error
    except OSError as error:
        raise DeployError(f"{path}: the file cannot be read ({why(error)}); mend that") from error


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC).replace(microsecond=0)


def read_certificates(path: Path, fix: str = "copy it from the federation's folder again") -> bytes:
    """Return what is in a file of certificates, which may go anywhere."""
    pem = read(path, fix)
    if b"PRIVATE KEY" in pem:
        raise DeployError(f"{path}: there is a private key in this file; leave only the certificates in it")
    return pem


def subject_of(name: str, federation: str) -> x509.Name:
    """Return how a certificate names a site."""
    return x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, name), x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation)]
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, begin: dt.datetime, end: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*uses: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{use: use in uses for use in KEY_USES})


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: PrivateKey) -> bytes:
    """Return a private key as its file holds it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
