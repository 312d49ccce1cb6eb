"""The files that prove who a site is, and the list of those that are believed no longer."""

import logging
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from fedbac.errors import DeployError

log = logging.getLogger("fedbac")


@dataclass(frozen=True)
class Credentials:
    """Where a site's key and certificate are, and what it believes others by."""

    key: Path
    certificate: Path
    authority: Path
    revoked: Path | None = None
    """List of revoked certificates, signed by the authority; for those that others dial."""

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return key, certificate and the authority's certificate, as PEM."""
        return _content(self.key), _content(self.certificate), _content(self.authority)


def name_in(certificate: x509.Certificate) -> str:
    """Return the name of the site that a certificate is for."""
    names = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    if len(names) != 1:
        raise DeployError(f"a certificate has {len(names)} names, where one is expected")
    return str(names[0].value)


def expired(certificate: x509.Certificate) -> bool:
    """Whether a certificate's time is over."""
    return datetime.now(UTC) > certificate.not_valid_after_utc


class Revoked:
    """The certificates that the authority took back; the file is read again whenever it changes.

    A list that cannot be believed is an error at the start; later the last good one stays in force, and it is logged.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._path, self._authority = credentials.revoked, credentials.authority
        self._stamp: tuple[int, ...] | None = None
        self._serials: frozenset[int] = frozenset()
        if self._path is not None:
            self._stamp = self._now()
            self._serials = self._read(self._path)

    def __contains__(self, certificate: x509.Certificate) -> bool:
        return certificate.serial_number in self._serials

    def refresh(self) -> None:
        """Read the file again if it changed."""
        if self._path is None or (stamp := self._now()) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._serials = self._read(self._path)
        except DeployError as error:
            log.error("%s; the list read before stays in force", error)

    def _now(self) -> tuple[int, ...] | None:
        assert self._path is not None
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self, path: Path) -> frozenset[int]:
        authority = x509.load_pem_x509_certificate(_content(self._authority))
        try:
            found = x509.load_pem_x509_crl(_content(path))
        except ValueError as error:
            raise DeployError(f"{path}: no list of revoked certificates; copy it again from the federation") from error
        key = authority.public_key()
        assert isinstance(key, EllipticCurvePublicKey)
        if not found.is_signature_valid(key):
            raise DeployError(f"{path}: not signed by this federation's authority; copy it again from the federation")
        return frozenset(entry.serial_number for entry in found)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DeployError(f"{path}: cannot be read: {error.strerror}; copy it again from the federation") from error
