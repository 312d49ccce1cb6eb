"""How a site gets its certificate: it makes a key that never leaves it, asks, and puts the answer into its kit."""

from pathlib import Path

from fedbac.deploy.pki import authority
from fedbac.deploy.pki.authority import ONLY_OWNER, Identity
from fedbac.deploy.pki.kits import (
    CERTIFICATE_FILE,
    KEY_FILE,
    NEXT_KEY_FILE,
    credentials_of,
    identified,
    read_site,
)
from fedbac.errors import DeployError
from fedbac.files import remove, write_whole


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
