"""``fedbac federation``: set up cloud, edges and clients on a network, and keep their certificates."""

import datetime as dt
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedbac.cli.deploying import KitArgument
from fedbac.cli.terminal import (
    METHOD_HELP,
    AllowOption,
    NetworkOption,
    SetOption,
    TaskOption,
    chosen,
    extra,
    method_names,
    out,
    say,
    shown,
)
from fedbac.deploy.settings import (
    CLOUD,
    MOST_PORT,
    MOST_SITES,
    SITE_DAYS,
    DeploySettings,
    FederationConfig,
    client_name,
    parse_settings,
)
from fedbac.errors import ConfigError, quoted, unknown

if TYPE_CHECKING:
    from fedbac.deploy.pki.kits import FederationFolder

MOST_DAYS = 3650
HERE = ("127.0.0.1", "localhost", "[::1]")
"""Hosts that only this machine can reach."""
DECIDED = ("task.num_edges", "task.clients_per_edge")
"""Settings that --edges and --clients make."""

INSTALL = "fedbac federation install KIT CERTIFICATE"
FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="The federation's folder.")]
DaysOption = Annotated[int, typer.Option("--days", help="Days that the certificates of sites are good for.")]
KeysOption = Annotated[
    bool,
    typer.Option("--keys", help="Make the sites' keys here. Then you hold them all: for trials, or sites of yours."),
]
HOLDS_KEYS = "You hold the keys of these sites: whoever copies a kit can act as its site."

federation_app = typer.Typer(help="Set up a federation on a network, and keep its certificates.", no_args_is_help=True)


def _alone(command: Callable[..., None]) -> Callable[..., None]:
    """Have a command change a federation while no other one does."""

    @wraps(command)
    def locked(folder: Path, **options: Any) -> None:
        with _federation_folder().locked(folder):
            command(folder, **options)

    return locked


@federation_app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder; the federation is named after it.")],
    edges: Annotated[int, typer.Option("--edges", help="Edges.")],
    clients: Annotated[str, typer.Option("--clients", help="Clients of every edge, or a number per edge, as 2,3.")],
    method: Annotated[str, typer.Option("--method", help=METHOD_HELP, autocompletion=method_names)] = "fed-bac",
    task: TaskOption = None,
    settings: SetOption = [],  # noqa: B006 (typer reads it)
    network: NetworkOption = None,
    host: Annotated[
        str,
        typer.Option("--host", help="Host of cloud and edges, or one each, the cloud's first, as a.org,b.org,c.org."),
    ] = HERE[0],
    port: Annotated[int, typer.Option("--port", help="Port; the next ones for further sites of the same host.")] = 8443,
    keys: KeysOption = False,
    days: Annotated[
        int | None, typer.Option("--days", help="With --keys: days that certificates are good for.")
    ] = None,
    allowed: AllowOption = None,
) -> None:
    """Make a federation: federation.yaml, a certificate authority, and a kit per site, whose key the site makes."""
    numbers = _clients(edges, clients)
    _check_days(SITE_DAYS if days is None else days)
    if days is not None and not keys:
        raise ConfigError("--days: certificates are made later; give it to fedbac federation sign, or add --keys")
    from fedbac.config.experiment import Experiment
    from fedbac.config.explain import changes_of, override, parse
    from fedbac.deploy.roles.edge import REGIONS_AT_CLOUD
    from fedbac.deploy.roles.enrolment import check_deployable
    from fedbac.packages import fingerprint, is_file
    from fedbac.runs.configure import configure

    settings, _ = chosen(settings, network, None)
    changes = changes_of(settings)
    for change in changes:
        if change.path in DECIDED:
            raise ConfigError(f"{change.source}: --edges and --clients say this already; leave it out")
    per_edge = numbers[0] if len(set(numbers)) == 1 else numbers
    sizes = [f"{path}={value}" for path, value in zip(DECIDED, (edges, per_edge), strict=True)]
    others = [text for text, change in zip(settings, changes, strict=True) if not change.path.startswith("deploy.")]
    experiment = configure(method, task, settings=[*others, *sizes])
    hashes = {f"{field}.sha256": fingerprint(named.package) for field, named in experiment.packages.items()}
    tree = override(experiment.model_dump(mode="json"), changes_of(hashes))
    check_deployable(parse(Experiment, tree))
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
            "experiment": tree,
        },
        f"{folder}: ",
    )
    _federation_folder().init(folder, config, days or SITE_DAYS, keys)
    say(f"{folder}: a cloud, {edges} edges and {sum(numbers)} clients.")
    if experiment.heights:
        say(f"Mind: {REGIONS_AT_CLOUD}.")
    say(f"Copy each folder of {folder / 'kits'} to its site. Keep {folder / 'authority'} to yourself.")
    if keys:
        say(f"Certificates are good for {days or SITE_DAYS} days. {HOLDS_KEYS}")
    else:
        say(f"Each site runs: fedbac federation request KIT. You run: fedbac federation sign {folder} REQUEST...")
        say(f"To have a first look, run: fedbac federation try {folder}")
    for name, digest in {named.package: hashes[f"{f}.sha256"] for f, named in experiment.packages.items()}.items():
        what = f"has the file {name}" if is_file(name) else f"installs the package {name}"
        say(f"Every site {what} with the hash {digest}, and starts with --allow {name}")
    if all(address.rpartition(":")[0] in HERE for address in addresses):
        say(
            "All addresses are of this machine. For others, change them in "
            f"{folder / 'federation.yaml'}, then run: fedbac federation renew {folder}"
        )


@federation_app.command("renew")
@_alone
def renew(
    folder: FolderArgument,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="Sites. Default: all that are not revoked.")
    ] = None,
    keys: KeysOption = False,
    days: DaysOption = SITE_DAYS,
) -> None:
    """Make kits again from federation.yaml, with new certificates. Old ones are valid until they expire.

    A site that made its key keeps it; keys that were made here are made again.
    """
    _check_days(days)
    federation = _federation_folder().load(folder)
    renewed = federation.renew(names or (), days, keys)
    issued, external = federation.authority.issued(), federation.external()
    asked = [name for name in renewed if federation.certificate(name).exists() and not keys]
    say(f"New kits, and certificates that are good for {days} days. Copy these kits to their sites:")
    _say_each(map(federation.kit, renewed))
    say("A site that runs takes its new certificate by itself. New addresses or settings need a new start.")
    if asked:
        say(f"To sites that made their keys, also send the certificates, for {INSTALL}:")
    _say_each(map(federation.certificate, asked))
    if missing := [name for name in renewed if name not in issued and name not in external]:
        say(f"Without a certificate, until they ask by fedbac federation request KIT: {', '.join(missing)}")
    if set(renewed) - {*asked, *missing, *external}:
        say(HOLDS_KEYS)
    left_out = federation.revoked()
    if left_out and not names:
        say(f"Left out, as revoked: {', '.join(left_out)}. To take one back: fedbac federation renew {folder} NAME")


@federation_app.command("request")
def request(
    kit: KitArgument,
    new_key: Annotated[bool, typer.Option("--new-key", help="Make a new key, for use once it is certified.")] = False,
) -> None:
    """At a site: make its key, if it has none yet, and a request for a certificate. The key stays in the kit."""
    with extra("deploy", "a federation on a network"):
        from fedbac.deploy.pki.kits import request

    file, key = request(kit, new_key)
    say(f"Send {file} to the operator, who signs it. Keep the rest of {kit} to yourself.")
    say(f"Tell the operator in another way, as by phone, that the key is {_spoken(key)}")
    say(f"Then run: fedbac federation install {kit} CERTIFICATE")


@federation_app.command("sign")
@_alone
def sign(
    folder: FolderArgument,
    requests: Annotated[list[Path], typer.Argument(metavar="REQUEST...", help="Requests that sites have sent.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Also for a site that has another key, or was revoked.")
    ] = False,
    days: DaysOption = SITE_DAYS,
) -> None:
    """Sign the requests of sites. Of each only name and key count: what its site may do is in federation.yaml."""
    _check_days(days)
    federation = _federation_folder().load(folder)
    signed = federation.sign(requests, days, replace)
    say(f"Certificates, good for {days} days. Compare the keys with what the sites say, then send them, for {INSTALL}:")
    _say_each(f"{_spoken(key)}  {federation.certificate(name)}" for name, key in signed.items())


@federation_app.command("install")
def install(
    kit: KitArgument,
    certificate: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="PEM, with intermediate ones after it.")],
) -> None:
    """At a site: put its certificate into the kit. A site that runs uses it by itself."""
    with extra("deploy", "a federation on a network"):
        from fedbac.deploy.pki.kits import install

    identity = install(kit, certificate)
    say(f"{kit}: the certificate of {identity.name} is in use until {identity.expires:%Y-%m-%d}.")


def _say_each(lines: Iterable[object]) -> None:
    for line in lines:
        say(f"  {line}")


def _spoken(key: str) -> str:
    """Return enough of a key's hash to compare, in groups."""
    return " ".join(key[at : at + 4] for at in range(0, 32, 4))


@federation_app.command("revoke")
@_alone
def revoke(
    folder: FolderArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The site that is to be turned away from now on.")],
) -> None:
    """Turn a site away from now on, whatever certificate it has."""
    federation = _federation_folder().load(folder)
    kits = federation.revoke(name)
    say(f"{name} is revoked. Copy the new list to the cloud's kit: {federation.authority.list_file}")
    say("The cloud hands it on to its edges. To one that it does not reach, copy it too. Kits here that have it:")
    _say_each(kits)
    if name in federation.config.sites() and federation.config.sites()[name].role == "edge":
        say(f"Clients of {name} do not see the list: stop them if someone else may answer at its address.")


@federation_app.command("add")
@_alone
def add(
    folder: FolderArgument,
    edge: Annotated[int | None, typer.Option("--edge", help="Edge of the new clients. Default: a new edge.")] = None,
    clients: Annotated[int, typer.Option("--clients", min=1, help="How many clients.")] = 1,
    host: Annotated[str, typer.Option("--host", help="Host of a new edge.")] = HERE[0],
    port: Annotated[int, typer.Option("--port", help="Port of a new edge, or the next that is free there.")] = 8443,
    keys: KeysOption = False,
) -> None:
    """Add clients to an edge, or a new edge with clients. They join a run that is under way after a round."""
    federation = _federation_folder().load(folder)
    tree = federation.config.model_dump(mode="json")
    edges = tree["edges"]
    if edge is None:
        used, (wanted,) = {place["address"] for place in (tree["cloud"], *edges)}, _hosts(host, 0)
        free = _addresses([wanted] * (len(used) + 1), port)
        address = next(one for one in free if one not in used)
        edges.append({"address": address, "listen": _listening(address), "clients": 0})
        edge = len(edges) - 1
    else:
        _check_edge(federation, "--edge", edge)
    first = edges[edge]["clients"]
    new = [client_name(edge, first + number) for number in range(clients)]
    edges[edge]["clients"] += clients
    tree["members"]["added"] += new
    _change(federation, tree, keys)
    if not keys:
        say(f"Each new site runs: fedbac federation request KIT. You run: fedbac federation sign {folder} REQUEST...")


@federation_app.command("leave")
@_alone
def leave(
    folder: FolderArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The client, or the edge with all its clients.")],
) -> None:
    """Have a site leave the federation: runs go on without it. It may still connect; to forbid that, revoke it."""
    federation = _federation_folder().load(folder)
    tree = federation.config.model_dump(mode="json")
    _leave(federation, tree, name, "edge", "client")
    _change(federation, tree)


@federation_app.command("move")
@_alone
def move(
    folder: FolderArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The client.")],
    edge: Annotated[int, typer.Option("--to", help="Number of the edge it moves to.")],
) -> None:
    """Move a client to another edge. There it has another name, and a kit of its own; its state goes with it."""
    federation = _federation_folder().load(folder)
    tree = federation.config.model_dump(mode="json")
    _check_edge(federation, "--to", edge)
    _leave(federation, tree, name, "client")
    new = client_name(edge, tree["edges"][edge]["clients"])
    tree["edges"][edge]["clients"] += 1
    tree["members"]["added"].append(new)
    tree["members"]["moved"][new] = name
    _change(federation, tree)
    say(f"{name} is now {new}: it makes its key (fedbac federation request), and is started with its old state folder:")
    say(f"  fedbac client {federation.kit(new)} --data DATA --state {federation.kit(name) / 'state'}")


def _check_edge(federation: "FederationFolder", option: str, edge: int) -> None:
    here = [site.number for site in federation.config.sites().values() if site.role == "edge"]
    if edge not in here:
        raise ConfigError(f"{option}: {edge} is no edge; give one of {', '.join(map(str, here))}")


def _leave(federation: "FederationFolder", tree: dict[str, Any], name: str, *roles: str) -> None:
    config = federation.config  # a client may still move whose edge has left
    sites = [n for n, site in config.places().items() if site.role in roles and n not in config.members.left]
    if name not in sites:
        raise ConfigError(unknown("site", name, sites))
    tree["members"]["left"].append(name)


def _change(federation: "FederationFolder", tree: dict[str, Any], keys: bool = False) -> None:
    """Make a federation one of other members, and say what is to be done with its kits."""
    counts, before = [edge["clients"] for edge in tree["edges"]], federation.config.experiment
    tree["experiment"]["task"] |= {"num_edges": len(counts), "clients_per_edge": counts}
    if before["task"].get("tiers"):
        from fedbac.config.experiment import Experiment
        from fedbac.config.explain import parse
        from fedbac.deploy.roles.enrolment import check_places

        check_places(parse(Experiment, before), parse(Experiment, tree["experiment"]))
    changed = federation.change(parse_settings(FederationConfig, tree, f"{federation.path}: "), keys)
    say("Copy these kits, or their site.yaml where a site runs already, and start those sites again:")
    _say_each(map(federation.kit, changed))


@federation_app.command("show")
def show(folder: FolderArgument) -> None:
    """List the sites, their addresses, and how long their certificates are good for."""
    federation = _federation_folder().load(folder)
    issued, external, now = federation.authority.issued(), federation.external(), dt.datetime.now(dt.UTC)
    places = {"cloud": federation.config.cloud.address}
    places |= {f"edge-{number}": edge.address for number, edge in enumerate(federation.config.edges)}
    table = Table(box=None, pad_edge=False)
    for title in ("site", "address", "good until", "days left", "state"):
        table.add_column(title, no_wrap=title != "address", overflow="fold")
    for name in federation.config.sites():
        until, left, state = "", "", "external_ca" if name in external else "no certificate yet"
        entry = issued.get(name)
        if entry is not None and (entry.revoked or name not in external):
            until, left = f"{entry.expires:%Y-%m-%d}", str(entry.days_left(now))
            state = "good" if now < entry.expires else "expired: renew"
            state = f"revoked {entry.revoked:%Y-%m-%d}" if entry.revoked else state
        table.add_row(name, shown(places.get(name, "")), until, left, state)
    out.print(table)


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
@_alone
def nvflare(folder: FolderArgument) -> None:
    """Make or renew NVFlare's startup folders in all kits, where deploy.transport is nvflare."""
    federation = _federation_folder().load(folder)
    kits = _provision(federation)
    say("NVFlare's startup folders are in the kits. Copy these to their sites, and start those again:")
    _say_each(map(federation.kit, kits))
    say(f"Keep {folder / 'nvflare'} to yourself: it holds the key of NVFlare's authority.")


def _provision(federation: "FederationFolder") -> list[str]:
    from fedbac.deploy.transports.nvflare import require

    require()
    from fedbac.deploy.transports.nvflare.project import provision

    return provision(federation)


@federation_app.command("try")
def try_(
    folder: FolderArgument,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Cloud rounds. Default: the experiment's.")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="An .npz file with the x_ and y_ arrays of all sites, file.py:function or package.module:function "
            "that returns them, or a folder with data sets.",
        ),
    ] = None,
    allowed: AllowOption = None,
) -> None:
    """Start all sites on this machine for a first look, wait for the end, and stop what was started.

    The task's data, or those of a file, are cut into a folder per client, under FOLDER/try. So are kits, with keys that
    are made here and of use to nobody else.
    """
    config = _federation_folder().load(folder).config
    from fedbac.deploy.trial import Trial, cut_data, own_data
    from fedbac.federation import assemble
    from fedbac.files import remove
    from fedbac.packages import is_own
    from fedbac.runs.configure import configure

    place = folder / "try"
    remove(place / "federation")
    federation = _federation_folder().init(place / "federation", config.model_copy(update={"external_ca": ()}), 1)
    if config.deploy.transport == "nvflare":
        _provision(federation)
    experiment = configure(federation.kit(CLOUD) / "experiment.yaml", rounds=rounds)
    if data is not None and is_own(data):
        cut_data(experiment, assemble(experiment, dataset=own_data(experiment, data)), place / "data")
    elif not (place / "data").exists():
        cut_data(experiment, assemble(experiment, data_folder=data), place / "data")
    options = ("--overwrite", *(("--rounds", str(rounds)) if rounds is not None else ()))
    trial = Trial(federation.path / "kits", place / "data", place, federation.config.sites(), options)
    say(f"Starting {len(trial.sites)} processes; their logs are in {place / 'logs'}")
    say(f"Their keys are made here: those of {folder / 'kits'} are not used, and these are good for nothing else.")
    with trial.running():
        status = trial.wait(lambda text: typer.echo(text, nl=False))
    if status:
        raise typer.Exit(status)
