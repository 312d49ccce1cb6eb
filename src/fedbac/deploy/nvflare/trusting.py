"""Whom a parent believes over NVFlare: NVFlare proves a child's name, and our own certificate that it may take part.

NVFlare cannot revoke a certificate. So a child's hello brings the certificate of its kit, and a parent holds that
against the federation's list.
"""

import datetime as dt
from pathlib import Path

from fedbac.deploy.authority import Identity, is_signed_by, read, read_identity
from fedbac.deploy.credentials import Credentials, Revoked
from fedbac.deploy.transport import Refusal
from fedbac.errors import DeployError, quoted

END = b"\0"
"""Between the certificate and the hello; a PEM holds none."""


def with_certificate(certificate: Path, hello: bytes) -> bytes:
    """Return a hello with the certificate of whoever says it."""
    return read(certificate) + END + hello


class Trust:
    """Takes certificates that the federation's authority signed and did not revoke."""

    def __init__(self, credentials: Credentials) -> None:
        self._authority = read(credentials.authority)
        self.revoked = Revoked(credentials)

    def take(self, name: str, said: bytes) -> tuple[Identity, bytes]:
        """Return who a child is and its hello; a Refusal says why it is not believed."""
        pem, end, hello = said.partition(END)
        if not end:
            raise Refusal("it brought no certificate; install the same version of fedbac at both sites")
        try:
            identity = read_identity(pem, name)
            genuine = is_signed_by(pem, self._authority, name)
        except DeployError as error:
            raise Refusal(str(error)) from error
        if not genuine or identity.name != name:
            raise Refusal(f"{name} brought a certificate of {quoted(identity.name)} that is not its own; copy its kit")
        self.check(identity)
        return identity, hello

    def check(self, identity: Identity) -> None:
        """Refuse a certificate that was good once."""
        self.revoked.refresh()
        if identity in self.revoked:
            raise Refusal(f"the certificate of {identity.name} is revoked")
        if dt.datetime.now(dt.UTC) >= identity.expires:
            raise Refusal(f"the certificate of {identity.name} has expired; run fedbac federation renew")
