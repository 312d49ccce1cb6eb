"""A federation's folder, and the kits in it: all that the machine of one site needs, copied there by a person."""

import datetime as dt
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from fedbac.config.text import to_yaml
from fedbac.deploy.pki import authority
from fedbac.deploy.pki.authority import ONLY_OWNER, Authority, Identity, Pair, RevokedList
from fedbac.deploy.settings import CLOUD, SITE_DAYS, FederationConfig, SiteConfig, read_settings
from fedbac.errors import DeployError, OutputError, quoted, unknown
from fedbac.files import make_folder, remove, write_whole

SITE_FILE, KEY_FILE, CERTIFICATE_FILE, AUTHORITY_FILE = "site.yaml", "site.key", "site.crt", "ca.crt"
LIST_FILE, EXPERIMENT_FILE = "revoked.crl", "experiment.yaml"
NEW_KIT = "ask whoever keeps the authority for a new kit (fedbac federation renew)"
FROM_FEDERATION = "# Made from federation.yaml. Change it there, then run: fedbac federation renew\n"

log = logging.getLogger("fedbac")


@dataclass(frozen=True)
class Kit:
    """A site's kit, checked."""

    folder: Path
    site: SiteConfig
    identity: Identity
    certificate: bytes = field(repr=False)
    """The site's, as PEM."""
    authority: bytes = field(repr=False)
    """The certificate of the federation's authority, as PEM."""
    key: bytes = field(repr=False)
    """The site's private key, as PEM. It belongs into no message and no log."""

    @property
    def experiment_file(self) -> Path:
        """What the federation computes; only the cloud's kit has it."""
        return self.folder / EXPERIMENT_FILE

    @property
    def list_file(self) -> Path:
        """The list of revoked certificates; clients have none."""
        return self.folder / LIST_FILE

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the kit in a folder; a DeployError names the file that is wrong and what to do."""
        if not folder.is_dir():
            raise DeployError(
                f"{folder}: there is no such kit; name a folder of kits/ that fedbac federation init made"
            )
        if not (folder / SITE_FILE).exists():
            raise DeployError(f"{folder / SITE_FILE}: the file is missing; name a folder of kits/, or copy it again")
        site = read_settings(SiteConfig, folder / SITE_FILE)
        source = folder / CERTIFICATE_FILE
        pem, trusted = authority.read(source), authority.read(folder / AUTHORITY_FILE)
        identity = authority.read_identity(pem, str(source))
        _refuse_foreign(site, identity, source)
        if not authority.is_signed_by(pem, trusted, str(folder / AUTHORITY_FILE)):
            raise DeployError(f"{source}: {AUTHORITY_FILE} did not sign it; copy both from the federation again")
        _refuse_untimely(identity, source)
        if not authority.fits(authority.read_key(folder / KEY_FILE), pem, str(source)):
            raise DeployError(
                f"{folder / KEY_FILE}: the key does not fit {CERTIFICATE_FILE}; copy both from the federation again"
            )
        kit = cls(folder, site, identity, pem, trusted, authority.read(folder / KEY_FILE))
        if site.role == "cloud":
            authority.read(kit.experiment_file)
        if site.role != "client" and identity.serial in kit.revoked().serials:
            raise DeployError(f"{source}: {site.name} was revoked; {NEW_KIT}")
        return kit

    def revoked(self) -> RevokedList:
        """Return the certificates that this site's children may no longer use."""
        return authority.read_revoked(authority.read(self.list_file), self.authority, str(self.list_file))

    def take_list(self, pem: bytes) -> bool:
        """Keep a list that a parent sent if it is genuine and newer than ours; return whether it was newer."""
        newer = authority.read_revoked(pem, self.authority, "the list of revoked certificates that arrived")
        if newer.number <= self.revoked().number:
            return False
        try:
            write_whole(self.list_file, pem)
        except OutputError as error:
            log.error(
                "%s; the new list of revoked certificates holds until this site stops. Let it write there, or copy the "
                "list before the next start",
                error,
            )
        return True


def _refuse_foreign(site: SiteConfig, identity: Identity, source: Path) -> None:
    if (identity.name, identity.federation) != (site.name, site.federation):
        raise DeployError(
            f"{source}: the certificate is that of {quoted(identity.name)} of {quoted(identity.federation)}, but "
            f"{SITE_FILE} says {quoted(site.name)} of {quoted(site.federation)}; copy the whole kit again"
        )


def _refuse_untimely(identity: Identity, source: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    if now < identity.begins:
        raise DeployError(
            f"{source}: the certificate is not valid before {identity.begins:%Y-%m-%d %H:%M} UTC, and here it is "
            f"{now:%Y-%m-%d %H:%M}; set the clock"
        )
    if now >= identity.expires:
        raise DeployError(f"{source}: the certificate expired on {identity.expires:%Y-%m-%d %H:%M} UTC; {NEW_KIT}")


class FederationFolder:
    """The folder of a federation: what it consists of, its authority, and a kit per site."""

    def __init__(self, path: Path, config: FederationConfig, authority: Authority) -> None:
        self.path, self.config, self.authority = path, config, authority

    @classmethod
    def init(cls, path: Path, config: FederationConfig, days: int = SITE_DAYS) -> Self:
        """Make a federation with a new authority and all kits, in a new or empty folder; all of it or nothing."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise DeployError(f"{path}: it exists and is not empty; remove it, or choose another folder")
        try:
            made = cls(make_folder(path), config, Authority.create(path / "authority", config.name))
            made.renew(days=days)
            tree = config.model_dump(mode="json")
            write_whole(path / "federation.yaml", to_yaml(tree))  # the last file: with it the folder is a federation
        except BaseException:
            for part in path.iterdir() if path.is_dir() else ():
                remove(part)
            raise
        return made

    @classmethod
    def load(cls, path: Path) -> Self:
        """Open a federation."""
        if not (path / "federation.yaml").exists():
            raise DeployError(f"{path}: there is no federation.yaml; name a folder that fedbac federation init made")
        config = read_settings(FederationConfig, path / "federation.yaml")
        found = Authority.load(path / "authority")
        named = authority.read_identity(found.pem, str(found.folder / AUTHORITY_FILE)).federation
        if named != config.name:
            raise DeployError(
                f"{path / 'federation.yaml'}: name: it says {quoted(config.name)}, but the authority is that of "
                f"{quoted(named)}; give the old name again, or make a new federation"
            )
        return cls(path, config, found)

    def kit(self, name: str) -> Path:
        """Return the folder of a site's kit."""
        return self.path / "kits" / name

    def renew(self, names: Sequence[str] = (), days: int = SITE_DAYS) -> list[str]:
        """Make kits with new keys and certificates, for these sites or for all that are not revoked; return whose.

        A revoked site comes back only when it is named. Certificates issued before stay good until they expire.
        """
        sites = self.config.sites()
        for name in names:
            if name not in sites:
                raise DeployError(f"{self.path}: {unknown('site', name, sites)}")
        revoked = self.revoked()
        chosen = list(dict.fromkeys(names)) or [name for name in sites if name not in revoked]
        pairs = self.authority.issue({name: sites[name].role for name in chosen}, days)
        for name, pair in pairs.items():
            self._write_kit(sites[name], pair)
        return chosen

    def revoke(self, name: str) -> list[Path]:
        """Revoke a site; return the kits that have the new list, which must reach the cloud and the edges."""
        issued = self.authority.issued()
        if name not in issued:
            raise DeployError(f"{self.path}: {unknown('site', name, issued)}")
        if name == CLOUD:
            raise DeployError(
                f"{self.path}: edges cannot tell that the cloud was revoked; make a new federation instead"
            )
        self.authority.revoke(name)
        parents = (self.kit(site.name) for site in self.config.sites().values() if site.role != "client")
        kits = [kit for kit in parents if kit.is_dir()]  # whoever moved one elsewhere copies the list there
        for kit in kits:
            self._write_list(kit)
        return kits

    def revoked(self) -> list[str]:
        """Return the sites whose last certificate was revoked."""
        return [name for name, last in self.authority.issued().items() if last.revoked]

    def _write_kit(self, site: SiteConfig, pair: Pair) -> None:
        kit = make_folder(self.kit(site.name))
        write_whole(kit / SITE_FILE, FROM_FEDERATION + to_yaml(site.model_dump(mode="json")))
        write_whole(kit / KEY_FILE, pair.key, mode=ONLY_OWNER)
        write_whole(kit / CERTIFICATE_FILE, pair.certificate)
        write_whole(kit / AUTHORITY_FILE, self.authority.pem)
        if site.role != "client":
            self._write_list(kit)
        if site.role == "cloud":
            write_whole(kit / EXPERIMENT_FILE, FROM_FEDERATION + to_yaml({"experiment": self.config.experiment}))

    def _write_list(self, kit: Path) -> None:
        write_whole(kit / LIST_FILE, authority.read(self.authority.list_file))
