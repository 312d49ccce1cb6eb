"""The files that prove who a site is, and the list of those that are believed no longer."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fedbac.deploy import log
from fedbac.deploy.pki import authority
from fedbac.deploy.pki.authority import Identity, RevokedList, read
from fedbac.errors import DeployError, OutputError
from fedbac.files import write_whole


class External(NamedTuple):
    """How an external authority proves a site."""

    authority: Path
    """Its certificate."""
    name: str
    """The site's name in certificates of this authority."""


@dataclass(frozen=True)
class Credentials:
    """Where a site's key and certificate are, and what it believes others by."""

    key: Path
    certificate: Path
    authority: Path
    revoked: Path | None = None
    """List of revoked certificates, signed by the authority; for those that others dial."""
    external: Mapping[str, External] = field(default_factory=dict)
    """The sites that other authorities prove, by their names; our authority does not prove them."""
    site: str = ""
    """The site itself."""
    peers: tuple[str, ...] = ()
    """Who is believed: the parent, or the children."""

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return key, certificate and the certificates of the authorities that prove the peers, as PEM."""
        roots = dict.fromkeys(self.authority_of(peer) for peer in self.peers or ("",))
        return read(self.key), read(self.certificate), b"".join(map(read, roots))

    def read_matching(self) -> tuple[bytes, bytes, bytes]:
        """Return the same if the files belong together; while a kit is copied they do not."""
        key, certificate, roots = self.read()
        if not authority.fits(authority.as_key(key, str(self.key)), certificate, str(self.certificate)):
            raise DeployError(f"{self.key}: the key does not fit {self.certificate.name}; copy both again")
        self._refuse_unsigned(self.site, certificate, str(self.certificate))
        return key, certificate, roots

    def authority_of(self, site: str) -> Path:
        """Return the certificate of the authority that proves a site."""
        return self.external[site].authority if site in self.external else self.authority

    def name_of(self, site: str) -> str:
        """Return the name that a site's certificate has."""
        return self.external[site].name if site in self.external else site

    def identify(self, site: str, pem: bytes, source: str) -> Identity:
        """Return whose certificate the first one is, if the authority that proves the site signed it.

        Our own authority may have signed it for another site, which the identity tells.
        """
        if site in self.external:
            identity = authority.read_external(pem, site, self.external[site].name, source)
        else:
            identity = authority.read_identity(pem, source)
        self._refuse_unsigned(site, pem, source)
        return identity

    def _refuse_unsigned(self, site: str, pem: bytes, source: str) -> None:
        path = self.authority_of(site)
        if not authority.is_signed_by(pem, read(path), source, str(path)):
            raise DeployError(f"{source}: {path.name} did not sign it; copy both again")


class Revoked:
    """The certificates that the authority took back; the file is read again whenever it changes.

    A list that cannot be believed is an error at the start; later the last good one stays in force, and it is logged.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._path, self._authority = credentials.revoked, credentials.authority
        self._stamp = self._now()
        self._newest, self._kept = self._read(), True

    def __contains__(self, identity: Identity) -> bool:
        return identity.serial in self._newest.serials

    def take(self, pem: bytes) -> bool:
        """Believe and keep a list that a parent passed on, if it is genuine and newer; return whether it was."""
        newer = authority.read_revoked(pem, read(self._authority), "the list of revoked certificates that arrived")
        self.refresh()  # somebody may have copied a still newer one
        known = self._newest.number
        if newer.number < known or (newer.number == known and self._kept):
            return False
        self._newest, self._kept = newer, True
        try:
            if self._path is not None:
                write_whole(self._path, pem)
        except OutputError as error:
            self._kept = False  # until it comes once more
            log.error(
                "%s; the new list of revoked certificates holds until this site stops. Let it write there, or copy the "
                "list before the next start",
                error,
            )
        return True

    def refresh(self) -> None:
        """Read the file again if it changed."""
        stamp = self._now()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            found = self._read()
            if found.number >= self._newest.number:  # a newer list may take a site back, an older one never
                self._newest = found
        except DeployError as error:
            log.error("%s; the list read before stays in force", error)

    def _now(self) -> tuple[int, ...] | None:
        """Return what changes with the file."""
        try:
            found = os.stat(self._path) if self._path else None
        except OSError:
            return None
        return found and (found.st_mtime_ns, found.st_size, found.st_ino)

    def _read(self) -> RevokedList:
        if self._path is None:
            return RevokedList(-1, frozenset())
        return authority.read_revoked(read(self._path), read(self._authority), str(self._path))
