"""``fedbac federation``: set up cloud, edges and clients on a network, and keep their certificates."""

import datetime as dt
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedbac.cli.terminal import METHOD_HELP, DataOption, SetOption, TaskOption, extra, method_names, out, say, shown
from fedbac.deploy.settings import (
    CLOUD,
    MOST_PORT,
    MOST_SITES,
    SITE_DAYS,
    DeploySettings,
    FederationConfig,
    parse_settings,
)
from fedbac.errors import ConfigError, quoted

if TYPE_CHECKING:
    from fedbac.deploy.pki.authority import Issued
    from fedbac.deploy.pki.kits import FederationFolder

MOST_DAYS = 3650
HERE = ("127.0.0.1", "localhost", "[::1]")
"""Hosts that only this machine can reach."""
DECIDED = ("task.num_edges", "task.clients_per_edge")
"""Settings that --edges and --clients make."""

FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="The federation's folder.")]
DaysOption = Annotated[int, typer.Option("--days", help="Days that the certificates of sites are good for.")]

federation_app = typer.Typer(help="Set up a federation on a network, and keep its certificates.", no_args_is_help=True)


@federation_app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder; the federation is named after it.")],
    edges: Annotated[int, typer.Option("--edges", help="Edges.")],
    clients: Annotated[str, typer.Option("--clients", help="Clients of every edge, or a number per edge, as 2,3.")],
    method: Annotated[str, typer.Option("--method", help=METHOD_HELP, autocompletion=method_names)] = "fed-bac",
    task: TaskOption = None,
    settings: SetOption = [],  # noqa: B006 (typer reads it)
    host: Annotated[
        str,
        typer.Option("--host", help="Host of cloud and edges, or one each, the cloud's first, as a.org,b.org,c.org."),
    ] = HERE[0],
    port: Annotated[int, typer.Option("--port", help="Port; the next ones for further sites of the same host.")] = 8443,
    days: DaysOption = SITE_DAYS,
) -> None:
    """Make a federation: federation.yaml, a certificate authority, and a kit with key and certificate per site."""
    numbers = _clients(edges, clients)
    _check_days(days)
    from fedbac.config.explain import changes_of
    from fedbac.runs.configure import configure

    changes = changes_of(settings)
    for change in changes:
        if change.path in DECIDED:
            raise ConfigError(f"{change.source}: --edges and --clients say this already; leave it out")
    per_edge = numbers[0] if len(set(numbers)) == 1 else numbers
    sizes = [f"{path}={value}" for path, value in zip(DECIDED, (edges, per_edge), strict=True)]
    others = [text for text, change in zip(settings, changes, strict=True) if not change.path.startswith("deploy.")]
    experiment = configure(method, task, settings=[*others, *sizes])
    own = {change.path.removeprefix("deploy."): change.value for change in changes if change.path.startswith("deploy.")}
    addresses = _addresses(_hosts(host, edges), port)
    cloud, *sites = ({"address": address, "listen": _listening(address)} for address in addresses)
    config = parse_settings(
        FederationConfig,
        {
            "name": folder.resolve().name,
            "cloud": cloud,
            "edges": [{**place, "clients": number} for place, number in zip(sites, numbers, strict=True)],
            "deploy": parse_settings(DeploySettings, own, "deploy."),
            "experiment": experiment.model_dump(mode="json"),
        },
        f"{folder}: ",
    )
    _federation_folder().init(folder, config, days)
    say(f"{folder}: a cloud, {edges} edges and {sum(numbers)} clients. Certificates are good for {days} days.")
    say(f"Copy each folder of {folder / 'kits'} to its site. Keep {folder / 'authority'} to yourself.")
    if all(address.rpartition(":")[0] in HERE for address in addresses):
        say(
            "All addresses are of this machine. For others, change them in "
            f"{folder / 'federation.yaml'}, then run: fedbac federation renew {folder}"
        )


@federation_app.command("renew")
def renew(
    folder: FolderArgument,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="Sites. Default: all that are not revoked.")
    ] = None,
    days: DaysOption = SITE_DAYS,
) -> None:
    """Make kits again from federation.yaml, with new keys and certificates. Old ones are valid until they expire."""
    _check_days(days)
    federation = _federation_folder().load(folder)
    renewed = federation.renew(names or (), days)
    say(f"New keys and certificates, good for {days} days. Copy these kits to their sites:")
    for name in renewed:
        say(f"  {federation.kit(name)}")
    say("A site that runs takes its new certificate by itself. New addresses or settings need a new start.")
    left_out = federation.revoked()
    if left_out and not names:
        say(f"Left out, as revoked: {', '.join(left_out)}. To take one back: fedbac federation renew {folder} NAME")


@federation_app.command("revoke")
def revoke(
    folder: FolderArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The site that is to be turned away from now on.")],
) -> None:
    """Turn a site away from now on, whatever certificate it has."""
    federation = _federation_folder().load(folder)
    kits = federation.revoke(name)
    say(f"{name} is revoked. Copy the new list to the cloud's kit: {federation.authority.list_file}")
    say("The cloud hands it on to its edges. To one that it does not reach, copy it too. Kits here that have it:")
    for place in kits:
        say(f"  {place}")
    if name in federation.config.sites() and federation.config.sites()[name].role == "edge":
        say(f"Clients of {name} do not see the list: stop them if someone else may answer at its address.")


@federation_app.command("show")
def show(folder: FolderArgument) -> None:
    """List the sites, their addresses, and how long their certificates are good for."""
    federation = _federation_folder().load(folder)
    issued, now = federation.authority.issued(), dt.datetime.now(dt.UTC)
    places = {"cloud": federation.config.cloud.address}
    places |= {f"edge-{number}": edge.address for number, edge in enumerate(federation.config.edges)}
    table = Table(box=None, pad_edge=False)
    for title in ("site", "address", "good until", "days left", "state"):
        table.add_column(title, no_wrap=title != "address", overflow="fold")
    for name in federation.config.sites():
        entry = issued.get(name)
        until = (f"{entry.expires:%Y-%m-%d}", str(entry.days_left(now))) if entry else ("", "")
        table.add_row(name, shown(places.get(name, "")), *until, _state(entry, now))
    out.print(table)


def _state(issued: "Issued | None", now: dt.datetime) -> str:
    if issued is None:
        return "no kit yet: renew"
    if issued.revoked:
        return f"revoked {issued.revoked:%Y-%m-%d}"
    return "good" if now < issued.expires else "expired: renew"


def _clients(edges: int, text: str) -> list[int]:
    """Return the number of clients of every edge."""
    if not 1 <= edges < MOST_SITES:
        raise ConfigError(f"--edges: {edges} is not allowed; give a number from 1 to {MOST_SITES - 1}")
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,6}", word) and int(word) for word in words):
        raise ConfigError(
            f"--clients: {quoted(text)} is not allowed; give a number from 1 for all edges, or one per edge, as 2,3"
        )
    if len(words) not in {1, edges}:
        raise ConfigError(
            f"--clients: {quoted(text)} has {len(words)} numbers, but there are {edges} edges; give 1 or {edges}"
        )
    return [int(word) for word in (words if len(words) == edges else words * edges)]


def _hosts(text: str, edges: int) -> list[str]:
    """Return the host of the cloud and of every edge; an IPv6 one in brackets, as addresses have it."""
    hosts = [word.strip() for word in text.split(",")]
    if len(hosts) not in {1, edges + 1}:
        raise ConfigError(
            f"--host: {quoted(text)} has {len(hosts)} hosts; give one, or {edges + 1}: the cloud's, then one per edge"
        )
    hosts = [f"[{host}]" if ":" in host and not host.startswith("[") else host for host in hosts]
    return hosts if len(hosts) == edges + 1 else hosts * (edges + 1)


def _addresses(hosts: Sequence[str], port: int) -> list[str]:
    """Return an address for every site that listens; those of one host get ports one after another."""
    most = MOST_PORT + 1 - max(Counter(hosts).values())
    if not 1 <= port <= most:
        raise ConfigError(f"--port: {port} is not allowed; give one from 1 to {most}")
    return [f"{host}:{port + hosts[:i].count(host)}" for i, host in enumerate(hosts)]


def _listening(address: str) -> str:
    """Return where to listen for those who dial an address: everywhere, unless only this machine can dial it."""
    host, _, port = address.rpartition(":")
    if host in HERE:
        return address
    return f"[::]:{port}" if host.startswith("[") else f"0.0.0.0:{port}"


def _check_days(days: int) -> None:
    if not 1 <= days <= MOST_DAYS:
        raise ConfigError(f"--days: {days} is not allowed; give 1 to {MOST_DAYS}")


def _federation_folder() -> "type[FederationFolder]":
    with extra("deploy", "a federation on a network"):
        from fedbac.deploy.pki.kits import FederationFolder
    return FederationFolder


@federation_app.command("nvflare")
def nvflare(folder: FolderArgument) -> None:
    """Make or renew NVFlare's startup folders in all kits, where deploy.transport is nvflare."""
    federation = _federation_folder().load(folder)
    from fedbac.deploy.transports.nvflare import require

    require()
    from fedbac.deploy.transports.nvflare.project import provision

    kits = provision(federation)
    say("NVFlare's startup folders are in the kits. Copy these to their sites, and start those again:")
    for name in kits:
        say(f"  {federation.kit(name)}")
    say(f"Keep {folder / 'nvflare'} to yourself: it holds the key of NVFlare's authority.")


@federation_app.command("try")
def try_(
    folder: FolderArgument,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Cloud rounds. Default: the experiment's.")] = None,
    data_folder: DataOption = None,
) -> None:
    """Start all sites on this machine for a first look, wait for the end, and stop what was started.

    The task's data are cut into a folder per client, under FOLDER/try.
    """
    federation = _federation_folder().load(folder)
    from fedbac.deploy.trial import Trial, cut_data
    from fedbac.federation import assemble
    from fedbac.runs.configure import configure

    place = folder / "try"
    experiment = configure(federation.kit(CLOUD) / "experiment.yaml", rounds=rounds)
    if not (place / "data").exists():
        cut_data(experiment, assemble(experiment, data_folder=data_folder), place / "data")
    options = ("--overwrite", *(("--rounds", str(rounds)) if rounds is not None else ()))
    trial = Trial(folder / "kits", place / "data", place, federation.config.sites(), options)
    say(f"Starting {len(trial.sites)} processes; their logs are in {place / 'logs'}")
    with trial.running():
        status = trial.wait(lambda text: typer.echo(text, nl=False))
    if status:
        raise typer.Exit(status)
