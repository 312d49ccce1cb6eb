"""The files that prove who a site is, and the list of those that are believed no longer."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from fedbac.deploy.pki.authority import Identity, as_key, fits, is_signed_by, read, read_revoked
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
        return read(self.key), read(self.certificate), read(self.authority)

    def read_matching(self) -> tuple[bytes, bytes, bytes]:
        """Return the same if the files belong together; while a kit is copied they do not."""
        key, certificate, authority = found = self.read()
        if not fits(as_key(key, str(self.key)), certificate, str(self.certificate)):
            raise DeployError(f"{self.key}: the key does not fit {self.certificate.name}; copy both again")
        if not is_signed_by(certificate, authority, str(self.authority)):
            raise DeployError(f"{self.certificate}: {self.authority.name} did not sign it; copy both again")
        return found


class Revoked:
    """The certificates that the authority took back; the file is read again whenever it changes.

    A list that cannot be believed is an error at the start; later the last good one stays in force, and it is logged.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._path, self._authority = credentials.revoked, credentials.authority
        self._stamp = self._now()
        self._serials = self._read()
        self._told: frozenset[int] = frozenset()

    def __contains__(self, identity: Identity) -> bool:
        return identity.serial in self._serials or identity.serial in self._told

    def take(self, pem: bytes) -> None:
        """Believe a list that a parent passed on, also where the file cannot be written."""
        self._told |= read_revoked(pem, read(self._authority), "the list of revoked certificates that arrived").serials

    def refresh(self) -> None:
        """Read the file again if it changed."""
        stamp = self._now()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._serials = self._read()
        except DeployError as error:
            log.error("%s; the list read before stays in force", error)

    def _now(self) -> tuple[int, ...] | None:
        """Return what changes with the file."""
        try:
            found = os.stat(self._path) if self._path else None
        except OSError:
            return None
        return found and (found.st_mtime_ns, found.st_size, found.st_ino)

    def _read(self) -> frozenset[int]:
        if self._path is None:
            return frozenset()
        return read_revoked(read(self._path), read(self._authority), str(self._path)).serials
