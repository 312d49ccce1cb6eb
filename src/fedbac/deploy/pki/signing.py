"""What a client signs by the key of its kit, and how it knows that another client signed something."""

import datetime as dt
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedbac.deploy.pki import authority
from fedbac.deploy.pki.kits import Kit, credentials_of
from fedbac.errors import DeployError, quoted


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
