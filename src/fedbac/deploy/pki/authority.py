"""A federation's certificate authority: it issues, renews and revokes; and what certificates and its list say."""

import datetime as dt
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from filelock import FileLock, Timeout
from pydantic import AwareDatetime, Field

from fedbac.deploy.settings import SITE_DAYS, Configuration, Role, parse_settings
from fedbac.errors import DeployError
from fedbac.files import make_folder, read_json, why, write_whole

AUTHORITY_DAYS = 3652
"""Ten years; sites get new certificates many times within it."""
BACKDATED = dt.timedelta(minutes=5)
"""A certificate is valid from a little before it was made, since clocks of sites differ."""
ONLY_OWNER, FOLDER_OF_OWNER = 0o600, 0o700
PATIENCE = 10
"""Seconds to wait for another command that is changing the same federation."""

KEY_FILE, CERTIFICATE_FILE, LIST_FILE = "ca.key", "ca.crt", "revoked.crl"
USAGES = {
    "cloud": [ExtendedKeyUsageOID.SERVER_AUTH],
    "edge": [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
    "client": [ExtendedKeyUsageOID.CLIENT_AUTH],
}
"""Who may be dialled, and who may dial: a client's certificate cannot stand in for a server."""


class Identity(NamedTuple):
    """Whose certificate it is, and for how long."""

    name: str
    federation: str
    serial: int
    begins: dt.datetime
    expires: dt.datetime


class RevokedList(NamedTuple):
    """Certificates that are no longer good; of two lists that of the higher number is the newer."""

    number: int
    serials: frozenset[int]


class Pair(NamedTuple):
    """A site's private key and certificate, both as PEM."""

    key: bytes
    certificate: bytes

    def __repr__(self) -> str:  # a key may end up nowhere but in its file
        return "Pair(...)"


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

    def __init__(self, folder: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self.folder, self._key, self._certificate = folder, key, certificate
        self.pem = _pem(certificate)
        """Its certificate, which every site has."""

    @classmethod
    def create(cls, folder: Path, federation: str) -> Self:
        """Make an authority with a new key, and its first list, on which there is nobody."""
        make_folder(folder).chmod(FOLDER_OF_OWNER)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _subject(f"{federation} authority", federation)
        now = _now()
        usage = _key_usage(key_cert_sign=True, crl_sign=True)
        builder = _builder(name, name, key.public_key(), now - BACKDATED, now + dt.timedelta(days=AUTHORITY_DAYS))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        certificate = builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())
        write_whole(folder / KEY_FILE, _key_pem(key), mode=ONLY_OWNER)
        write_whole(folder / CERTIFICATE_FILE, _pem(certificate))
        made = cls(folder, key, certificate)
        made._record(Book())
        made._sign_list(Book())
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
    ) -> dict[str, Pair]:
        """Return new keys and certificates for sites, by their names; they are on record before anyone has them."""
        begin = begin or _now()
        expires = min(begin + dt.timedelta(days=days), self._certificate.not_valid_after_utc)
        if expires <= begin:
            raise DeployError(f"{self.folder / CERTIFICATE_FILE}: the authority has expired; make a new federation")
        pairs, issued = {}, []
        for name, role in roles.items():
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = self._certify(name, role, key.public_key(), begin, expires)
            pairs[name] = Pair(_key_pem(key), _pem(certificate))
            issued.append(Issued(name=name, serial=f"{certificate.serial_number:x}", expires=expires))
        with self._changing() as book:
            self._record(book.model_copy(update={"certificates": (*book.certificates, *issued)}))
        return pairs

    def revoke(self, name: str) -> RevokedList:
        """Put all certificates that a site was ever issued on a new list."""
        with self._changing() as book:
            listed = tuple(
                entry.model_copy(update={"revoked": _now()}) if entry.name == name and not entry.revoked else entry
                for entry in book.certificates
            )
            book = Book(number=book.number + 1, certificates=listed)
            self._record(book)
            self._sign_list(book)
        return self.revoked()

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

    def _certify(
        self, name: str, role: Role, key: ec.EllipticCurvePublicKey, begin: dt.datetime, end: dt.datetime
    ) -> x509.Certificate:
        issuer = self._certificate.subject
        subject = _subject(name, str(issuer.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value))
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            _builder(subject, issuer, key, begin - BACKDATED, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
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
        try:
            with FileLock(self.folder / "lock", timeout=PATIENCE):
                yield self._book()
        except Timeout as error:
            raise DeployError(f"{self.folder}: another command is changing it; wait for its end") from error

    def _record(self, book: Book) -> None:
        write_whole(self.folder / "issued.json", book.model_dump_json(indent=1), mode=ONLY_OWNER)

    def _sign_list(self, book: Book) -> None:
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


def read_identity(pem: bytes, source: str) -> Identity:
    """Return whose certificate it is; ``source`` says where it came from, for the message. Nothing is verified."""
    with _readable(source, "certificate"):
        certificate = x509.load_pem_x509_certificate(pem)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        federations = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        if len(names) != 1 or len(federations) != 1:
            raise DeployError(f"{source}: the certificate names no one site of a federation; use one of a kit")
        return Identity(
            str(names[0].value),
            str(federations[0].value),
            certificate.serial_number,
            certificate.not_valid_before_utc,
            certificate.not_valid_after_utc,
        )


def is_signed_by(pem: bytes, authority: bytes, source: str) -> bool:
    """Whether a certificate is signed by an authority."""
    with _readable(source, "certificate"):
        issuer = x509.load_pem_x509_certificate(authority)
        issuer.public_key()  # one that cannot be used is no answer
        certificate = x509.load_pem_x509_certificate(pem)
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):  # another name, another kind of key, another signature
        return False
    return True


def fits(key: ec.EllipticCurvePrivateKey, pem: bytes, source: str) -> bool:
    """Whether a private key is that of a certificate."""
    with _readable(source, "certificate"):
        return key.public_key() == x509.load_pem_x509_certificate(pem).public_key()


def read_revoked(pem: bytes, authority: bytes, source: str) -> RevokedList:
    """Return what a list says, if it bears the authority's signature; ``source`` is named in the message."""
    with _readable(source, "list of revoked certificates"):
        found = x509.load_pem_x509_crl(pem)
        key = x509.load_pem_x509_certificate(authority).public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or not found.is_signature_valid(key):
            raise DeployError(
                f"{source}: the federation's authority did not sign it; copy it from the federation again"
            )
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        return RevokedList(number, frozenset(entry.serial_number for entry in found))


@contextmanager
def _readable(source: str, what: str) -> Iterator[None]:
    """Make one sentence of whatever the library lets out on strange bytes; it is more than it names, and often late."""
    try:
        yield
    except DeployError:
        raise
    except Exception as error:
        raise DeployError(f"{source}: it is no {what}; copy it from the federation again") from error


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a file that nobody but its owner may read."""
    pem = read(path)
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise DeployError(f"{path}: others may read this private key; run: chmod 600 {path}")
    return as_key(pem, str(path))


def as_key(pem: bytes, source: str) -> ec.EllipticCurvePrivateKey:
    """Return a private key; ``source`` is named in the message."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DeployError(f"{source}: it is no private key of a federation; copy the file again")
    return key


def read(path: Path) -> bytes:
    """Return what is in a file of a federation."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DeployError(f"{path}: the file is missing; copy it from the federation's folder again") from error
    except OSError as error:
        raise DeployError(f"{path}: the file cannot be read ({why(error)}); mend that") from error


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC).replace(microsecond=0)


def _subject(name: str, federation: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, name), x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation)]
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begin: dt.datetime, end: dt.datetime
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


def _key_usage(digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
