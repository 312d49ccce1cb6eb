"""A federation's folder, and the kits in it: all that the machine of one site needs, copied there by a person.

A site makes its key, which never leaves it, asks for a certificate, and puts the answer into its kit.
"""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedbac.config.text import to_yaml
from fedbac.deploy.pki import authority
from fedbac.deploy.pki.authority import ONLY_OWNER, Authority, Identity, KeyPair, RevokedList
from fedbac.deploy.pki.credentials import Credentials, External
from fedbac.deploy.settings import CLOUD, SITE_DAYS, FederationConfig, Role, SiteConfig, read_settings
from fedbac.errors import DeployError, quoted, unknown
from fedbac.files import make_folder, remove, write_whole

SITE_FILE, KEY_FILE, CERTIFICATE_FILE, AUTHORITY_FILE = "site.yaml", "site.key", "site.crt", "ca.crt"
NEXT_KEY_FILE = "next.key"
"""A new key, beside the one in use until its certificate is installed."""
LIST_FILE, EXPERIMENT_FILE = "revoked.crl", "experiment.yaml"
NEW_KIT = "ask whoever keeps the authority for a new kit (fedbac federation renew)"
FROM_FEDERATION = "# Made from federation.yaml. Change it there, then run: fedbac federation renew\n"


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
        site = read_site(folder)
        key_file, source = folder / KEY_FILE, folder / CERTIFICATE_FILE
        authority.read(key_file, f"make it at the site: fedbac federation request {folder}")
        pem = authority.read_certificates(
            source, f"have {site.name}.csr signed, then run: fedbac federation install {folder} FILE"
        )
        trusted = authority.read(folder / AUTHORITY_FILE)
        identity = identified(folder, site, pem, source)
        if not authority.fits(authority.read_key(key_file), pem, str(source)):
            raise DeployError(f"{key_file}: the key does not fit {CERTIFICATE_FILE}; copy both again")
        kit = cls(folder, site, identity, pem, trusted, authority.read(key_file))
        if site.role == "cloud":
            authority.read(kit.experiment_file)
        if site.role != "client" and identity.serial in kit.revoked().serials:
            raise DeployError(f"{source}: {site.name} was revoked; {NEW_KIT}")
        return kit

    def revoked(self) -> RevokedList:
        """Return the certificates that this site's children may no longer use."""
        return authority.read_revoked(authority.read(self.list_file), self.authority, str(self.list_file))


def read_site(folder: Path) -> SiteConfig:
    """Return what a kit tells its site."""
    if not folder.is_dir():
        raise DeployError(f"{folder}: there is no such kit; name a folder of kits/ that fedbac federation init made")
    if not (folder / SITE_FILE).exists():
        raise DeployError(f"{folder / SITE_FILE}: the file is missing; name a folder of kits/, or copy it again")
    return read_settings(SiteConfig, folder / SITE_FILE)


def credentials_of(folder: Path, site: SiteConfig, *peers: str) -> Credentials:
    """Return where a kit has what proves its site and these peers."""
    known = (
        (name, External(folder / one.certificates, it)) for one in site.external_ca for name, it in one.sites.items()
    )
    key, certificate, trusted = (folder / name for name in (KEY_FILE, CERTIFICATE_FILE, AUTHORITY_FILE))
    revoked = None if site.role == "client" else folder / LIST_FILE
    return Credentials(key, certificate, trusted, revoked, dict(known), site.name, peers)


def identified(folder: Path, site: SiteConfig, pem: bytes, source: Path) -> Identity:
    """Return whose certificate it is, if the site of a kit can use it."""
    identity, now = credentials_of(folder, site).identify(site.name, pem, str(source)), dt.datetime.now(dt.UTC)
    if (identity.name, identity.federation or site.federation) != (site.name, site.federation):
        raise DeployError(
            f"{source}: the certificate is that of {quoted(identity.name)} of {quoted(identity.federation)}, but "
            f"{SITE_FILE} says {quoted(site.name)} of {quoted(site.federation)}; copy the whole kit again"
        )
    if now < identity.begins:
        raise DeployError(
            f"{source}: the certificate is not valid before {identity.begins:%Y-%m-%d %H:%M} UTC, and here it is "
            f"{now:%Y-%m-%d %H:%M}; set the clock"
        )
    if now >= identity.expires:
        raise DeployError(
            f"{source}: the certificate expired on {identity.expires:%Y-%m-%d %H:%M} UTC; have it renewed (fedbac "
            "federation renew), and install it or copy the new kit"
        )
    authority.refuse_useless(pem, site.role, str(source))
    return identity


class KitSigner:
    """Signs as the site of a kit, and knows others by certificates that the federation's own authority signed."""

    def __init__(self, kit: Kit, names: Sequence[str]) -> None:
        """``names`` are those of all clients, by their numbers."""
        self.kit, self.names = kit, names
        self.certificate = x509.load_pem_x509_certificate(kit.certificate).public_bytes(Encoding.DER)
        self._key = authority.as_key(kit.key, str(kit.folder))
        self._credentials = credentials_of(kit.folder, kit.site)

    def sign(self, content: bytes) -> bytes:
        """Return the site's signature."""
        return authority.sign(self._key, content)

    def check(self, place: int, certificate: bytes, content: bytes, signature: bytes) -> None:
        """Raise a DeployError unless the client of a number, counted from 1, signed this. Clients have no list of
        certificates that were revoked: one is believed until it expires."""
        if not 0 < place <= len(self.names):
            raise DeployError(f"there is no client {place - 1} in this run")
        name, source = self.names[place - 1], f"certificate of {self.names[place - 1]}"
        with authority.readable(source, "certificate"):
            pem = x509.load_der_x509_certificate(certificate).public_bytes(Encoding.PEM)
        identity = self._credentials.identify(name, pem, source)
        if (identity.name, identity.federation or self.kit.site.federation) != (name, self.kit.site.federation):
            raise DeployError(f"{source}: it is that of {quoted(identity.name)} of {quoted(identity.federation)}")
        if not identity.begins <= dt.datetime.now(dt.UTC) < identity.expires:
            raise DeployError(f"{source}: it is not valid now; have it renewed (fedbac federation renew)")
        if not authority.is_signature(signature, content, pem):
            raise DeployError(f"{name} did not sign the keys that arrived in its name")


class FederationFolder:
    """The folder of a federation: what it consists of, its authority, and a kit per site."""

    def __init__(self, path: Path, config: FederationConfig, authority: Authority) -> None:
        self.path, self.config, self.authority = path, config, authority

    @classmethod
    def init(cls, path: Path, config: FederationConfig, days: int = SITE_DAYS, keys: bool = True) -> Self:
        """Make a federation with a new authority and all kits, in a new or empty folder; all of it or nothing.

        Without ``keys``, sites make them, and send requests for their certificates.
        """
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise DeployError(f"{path}: it exists and is not empty; remove it, or choose another folder")
        try:
            made = cls(make_folder(path), config, Authority.create(path / "authority", config.name))
            made.renew(days=days, keys=keys)
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

    @classmethod
    @contextmanager
    def locked(cls, path: Path) -> Iterator[None]:
        """Let no other command change a federation meanwhile."""
        cls.load(path)  # what is no federation gets no lock
        with authority.alone(path):
            yield

    def kit(self, name: str) -> Path:
        """Return the folder of a site's kit."""
        return self.path / "kits" / name

    def renew(self, names: Sequence[str] = (), days: int = SITE_DAYS, keys: bool = False) -> list[str]:
        """Make kits again with new certificates, for these sites or for all that are not revoked; return whose.

        A site whose request was signed keeps its key. The key of another is made again if it was made here, or with
        ``keys``; without, the site must ask for a certificate. A revoked site comes back only when it is named.
        Certificates issued before stay good until they expire.
        """
        sites = self.config.sites()
        for name in names:
            if name not in sites:
                raise DeployError(f"{self.path}: {unknown('site', name, sites)}")
        revoked = self.revoked()
        chosen = list(dict.fromkeys(names)) or [name for name in sites if name not in revoked]
        external = self.external()
        ours = [name for name in chosen if name not in external]
        kept = {name: self.certificate(name) for name in ours if not keys and self.certificate(name).exists()}
        made = [name for name in ours if keys or (name not in kept and (self.kit(name) / KEY_FILE).exists())]
        public = {name: authority.public_key_of(authority.read(path), str(path)) for name, path in kept.items()}
        self._certify({name: (sites[name].role, key) for name, key in public.items()}, days)
        pairs = self.authority.issue({name: sites[name].role for name in made}, days)
        for name in chosen:
            if name in external:
                self.authority.take_back(name)
            self._write_kit(sites[name], pairs.get(name))
        return chosen

    def change(self, config: FederationConfig, keys: bool = False) -> list[str]:
        """Make it a federation of these sites; return whose kits have changed. All keep their certificates.

        New sites ask for one, unless keys are made here.
        """
        before, sites = self.config.sites(), config.sites()
        changed = [name for name, site in sites.items() if name == CLOUD or site != before.get(name)]
        new = {name: sites[name].role for name in changed if name not in before}
        pairs = self.authority.issue(new, SITE_DAYS) if keys else {}
        self.config = config
        for name in changed:
            self._write_kit(sites[name], pairs.get(name))
        write_whole(self.path / "federation.yaml", to_yaml(config.model_dump(mode="json")))
        return changed

    def sign(self, files: Sequence[Path], days: int = SITE_DAYS, replace: bool = False) -> dict[str, str]:
        """Sign requests of sites, all or none, each into a file to send back; return the keys' hashes, by site.

        Another key than a site's last one, or any for a revoked site, only with ``replace``.
        """
        sites, external, asked = self.config.sites(), self.external(), dict[str, authority.Asked]()
        for file in files:
            found = authority.read_request(authority.read(file, "give the path of a request"), str(file))
            if found.federation != self.config.name:
                raise DeployError(
                    f"{file}: the request is for {quoted(found.federation)}, and this federation is "
                    f"{quoted(self.config.name)}; have it made from a kit of this one"
                )
            if found.name not in sites:
                raise DeployError(f"{file}: {unknown('site', found.name, sites)}")
            if found.name in external:
                raise DeployError(f"{file}: external_ca says that {found.name} has another authority; ask that to sign")
            if found.name in asked:
                raise DeployError(f"{file}: another request is for {found.name} too; give one of them")
            asked[found.name] = found
        self._certify({name: (sites[name].role, found.key) for name, found in asked.items()}, days, replace)
        return {name: authority.key_hash(found.key) for name, found in asked.items()}

    def external(self) -> set[str]:
        """Return the sites that other authorities prove."""
        return {name for one in self.config.external_ca for name in one.sites}

    def certificate(self, name: str) -> Path:
        """Return where the certificate is that answers a site's last request."""
        return self.path / "certificates" / f"{name}.crt"

    def _certify(self, keys: Mapping[str, tuple[Role, authority.PublicKey]], days: int, replace: bool = False) -> None:
        for name, pem in self.authority.certify(keys, days, replace=replace).items():
            make_folder(self.certificate(name).parent)
            write_whole(self.certificate(name), pem)

    def revoke(self, name: str) -> list[Path]:
        """Revoke a site; return the kits that have the new list, which must reach the cloud and the edges."""
        external = self.external()
        known = {*self.authority.issued(), *external}
        if name not in known:
            raise DeployError(f"{self.path}: {unknown('site', name, known)}")
        if name == CLOUD:
            raise DeployError(
                f"{self.path}: edges cannot tell that the cloud was revoked; make a new federation instead"
            )
        self.authority.revoke(name, name in external)
        parents = (self.kit(site.name) for site in self.config.sites().values() if site.role != "client")
        kits = [kit for kit in parents if kit.is_dir()]  # whoever moved one elsewhere copies the list there
        for kit in kits:
            self._write_list(kit)
        return kits

    def revoked(self) -> list[str]:
        """Return the sites whose last certificate was revoked."""
        return [name for name, last in self.authority.issued().items() if last.revoked]

    def _write_kit(self, site: SiteConfig, pair: KeyPair | None) -> None:
        kit = make_folder(self.kit(site.name))
        write_whole(kit / SITE_FILE, FROM_FEDERATION + to_yaml(site.model_dump(mode="json")))
        if pair is not None:
            write_whole(kit / KEY_FILE, pair.key, mode=ONLY_OWNER)
            write_whole(kit / CERTIFICATE_FILE, pair.certificate)
        write_whole(kit / AUTHORITY_FILE, self.authority.pem)
        for one in site.external_ca:
            write_whole(kit / one.certificates, authority.read_certificates(self.path / one.certificates))
        if site.role != "client":
            self._write_list(kit)
        if site.role == "cloud":
            write_whole(kit / EXPERIMENT_FILE, FROM_FEDERATION + to_yaml({"experiment": self.config.experiment}))

    def _write_list(self, kit: Path) -> None:
        write_whole(kit / LIST_FILE, authority.read(self.authority.list_file))


def request(folder: Path, new_key: bool = False) -> tuple[Path, str]:
    """Write a request for the key of a kit, which is made if there is none; return its path, and the key's hash.

    A new key waits beside the one in use until its certificate is installed.
    """
    site = read_site(folder)
    path = folder / (NEXT_KEY_FILE if new_key and (folder / KEY_FILE).exists() else KEY_FILE)
    if not path.exists():
        write_whole(path, authority.key_pem(authority.new_key()), mode=ONLY_OWNER)
    key = authority.read_key(path)
    name = credentials_of(folder, site).name_of(site.name)
    file = folder / f"{site.name}.csr"
    write_whole(file, authority.make_request(key, name, site.federation))
    return file, authority.key_hash(key.public_key())


def install(folder: Path, file: Path) -> Identity:
    """Put a certificate into a kit, with the intermediate ones that follow it, if the site can use it."""
    site = read_site(folder)
    pem = authority.read_certificates(file, "give the path of a certificate")
    identity = identified(folder, site, pem, file)
    keys = (folder / name for name in (KEY_FILE, NEXT_KEY_FILE))
    path = next((one for one in keys if one.exists() and authority.fits(authority.read_key(one), pem, str(file))), None)
    if path is None:
        raise DeployError(
            f"{file}: the certificate is for no key of this kit; make a request, and have that signed: "
            f"fedbac federation request {folder}"
        )
    if path.name == NEXT_KEY_FILE:
        write_whole(folder / KEY_FILE, authority.read(path), mode=ONLY_OWNER)
        remove(path)
    write_whole(folder / CERTIFICATE_FILE, pem)
    remove(folder / f"{site.name}.csr")
    return identity
