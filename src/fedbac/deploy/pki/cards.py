"""The card of a model: what it is, whose, and of which run, signed by the site that gives it."""

import base64
import datetime as dt
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AwareDatetime, Field

from fedbac.deploy.pki import authority
from fedbac.deploy.pki.credentials import Credentials, Revoked
from fedbac.deploy.pki.kits import Kit, credentials_of, read_site
from fedbac.deploy.settings import CLOUD, Configuration, parse_settings
from fedbac.errors import DeployError, quoted
from fedbac.files import read_json, write_whole

Hash = Annotated[str, Field(pattern="^[0-9a-f]{16,64}$")]
Text = Annotated[str, Field(max_length=10_000)]
Whole = Annotated[int, Field(ge=1, le=2**53)]


class Card(Configuration):
    """What a site says of a model: the file ``MODEL.json`` beside it."""

    sha256: Hash
    """Of the model's file."""
    model: Text
    """Whose it is: the name of an edge or a client."""
    method: Text
    """The method's name."""
    round: Whole
    """The round after which it is."""
    rounds: Whole
    """Rounds of the whole run."""
    run: Hash
    """The run's id."""
    charter: Hash
    """Hash of the run's charter: the experiment, who took part, and with how many examples."""
    data: Hash
    """Hash of the charter's salted hashes of everybody's data, which all sites of a run have."""
    shape: Annotated[tuple[int, ...], Field(max_length=8)]
    """Of one example."""
    dtype: Text
    """Number type of examples."""
    classes: Whole
    """How many logits the model returns."""
    fedbac: Text
    """Version of fedbac that wrote the file."""
    torch: Text
    """Version of torch that wrote the file."""
    federation: Text
    """The federation's name."""
    site: Text
    """The site that gives the model, and signed this card."""
    written: AwareDatetime
    """When it did."""
    certificate: Annotated[str, Field(max_length=100_000)]
    """The site's, as PEM."""
    signature: Text
    """By the site's key, ECDSA or RSA (PKCS #1 v1.5) with SHA-256, over the other fields as sorted JSON; in base64."""


def card_of(model: Path) -> Path:
    """Return where the card of a model is."""
    return model.with_name(f"{model.name}.json")


def write_card(kit: Kit, model: Path, said: Mapping[str, Any]) -> Path:
    """Sign what is said of a model with the site's key, and write its card."""
    whole = {
        "sha256": _digest(model),
        "federation": kit.site.federation,
        "site": kit.site.name,
        "written": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        **said,
        "certificate": kit.certificate.decode(),
    }
    signature = base64.b64encode(authority.sign(authority.as_key(kit.key, str(kit.folder)), _signed(whole))).decode()
    write_whole(card_of(model), json.dumps(whole | {"signature": signature}, indent=1) + "\n")
    return card_of(model)


def verify(model: Path, trusted: Path) -> Card:
    """Return the card of a model if both are as a site of the federation gave them; else raise a DeployError.

    ``trusted`` is the certificate of the federation's authority, or a kit, which has it; that of the cloud or an edge
    also has the list of revoked certificates.
    """
    path, site = card_of(model), read_site(trusted) if trusted.is_dir() else None
    ours = Credentials(trusted, trusted, trusted) if site is None else credentials_of(trusted, site)
    try:
        tree = read_json(path)
    except (OSError, ValueError) as error:
        raise DeployError(f"{path}: there is no card that can be read; ask for both files again") from error
    card = parse_settings(Card, tree, f"{path}: ")
    pem = card.certificate.encode()
    signer = ours.identify(card.site, pem, f"{path}: certificate of {quoted(card.site)}")
    who = quoted(signer.name)
    try:
        genuine = authority.is_signature(base64.b64decode(card.signature, validate=True), _signed(tree), pem)
    except ValueError:  # it is no base64
        genuine = False
    if not genuine:
        raise DeployError(f"{path}: the card was changed after {who} signed it; ask for both files again")
    may_give = card.site in (CLOUD, card.model) or card.model.startswith(f"{card.site}-")  # its own, or one below it
    federation = signer.federation or (site and site.federation)  # other authorities' certificates name none
    if not may_give or (card.site, card.federation) != (signer.name, federation):
        raise DeployError(f"{path}: {who} signed for {quoted(card.site)} a model of {quoted(card.model)}; it must not")
    if not signer.begins <= card.written < signer.expires:
        raise DeployError(f"{path}: the certificate of {who} was not valid when the card was signed; ask for a new one")
    if signer in Revoked(ours):
        raise DeployError(f"{path}: {who} was revoked; do not use the model")
    if _digest(model) != card.sha256:
        raise DeployError(f"{model}: it is cut short or was changed: its SHA-256 is not that of its card")
    return card


def _signed(tree: Mapping[str, Any]) -> bytes:
    return json.dumps({name: value for name, value in tree.items() if name != "signature"}, sort_keys=True).encode()


def _digest(path: Path) -> str:
    return hashlib.sha256(authority.read(path)).hexdigest()
