"""``fedbac cloud``, ``edge``, ``client`` and ``status``: the sites of a federation as programs of their own."""

import datetime as dt
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fedbac.cli.streams import never_wait
from fedbac.cli.terminal import AllowOption, DeviceOption, OverwriteOption, TrackOption, changed, err, extra, out, say
from fedbac.core.signals import handled_by
from fedbac.deploy.settings import check_address
from fedbac.errors import ConfigError, DeployError, visible

if TYPE_CHECKING:
    from fedbac.deploy.pki.kits import Kit
    from fedbac.deploy.transports.nvflare.files import SiteOrder
    from fedbac.runs.store import RunFolder


def _address(option: str, lowest: int, what: str) -> Any:
    """Return an option for an address, which is checked."""

    def checked(text: str | None) -> str | None:
        try:
            return None if text is None else check_address(text, lowest)
        except ValueError as error:
            raise ConfigError(f"{option}: {error}") from error

    return typer.Option(option, metavar="HOST:PORT", help=what, callback=checked)


KitArgument = Annotated[Path, typer.Argument(metavar="KIT", help="The site's kit, a folder of kits/.")]
ListenOption = Annotated[str | None, _address("--listen", 0, "Address to listen at. Default: as the kit says.")]
PARENT_HELP = "Address of the site above: the cloud for an edge, the edge for a client. Default: as the kit says."
ParentOption = Annotated[str | None, _address("--parent", 1, PARENT_HELP)]
METRICS_HELP = "Serve numbers for Prometheus at /metrics of this loopback address. Default: not."
MetricsOption = Annotated[str | None, _address("--metrics", 1, METRICS_HELP)]
HEALTH_HELP = "Serve gRPC's health service at this loopback address. Default: not."
HealthOption = Annotated[str | None, _address("--health", 1, HEALTH_HELP)]
StateOption = Annotated[
    Path | None, typer.Option("--state", help="Folder for what the site keeps of a run. Default: state in the kit.")
]


IDLE = 60.0
OVER = ("finished", "stopped")
"""What a site says last."""


def cloud(
    folder: KitArgument,
    out_folder: Annotated[Path | None, typer.Option("--out", help="Run folder. Default: run in the kit.")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Cloud rounds. Default: the experiment's.")] = None,
    listen: ListenOption = None,
    metrics: MetricsOption = None,
    health: HealthOption = None,
    state: StateOption = None,
    overwrite: OverwriteOption = False,
    accept_rollback: Annotated[
        bool,
        typer.Option(
            "--accept-rollback", help="Go on with the state that sites have, where it is not that of the run."
        ),
    ] = False,
    refresh: Annotated[
        list[str] | None,
        typer.Option("--refresh", metavar="SITE", help="A site whose data have changed on purpose; may be repeated."),
    ] = None,
    track: TrackOption = None,
    allowed: AllowOption = None,
) -> None:
    """Run the cloud of a federation: wait for the sites, then play the rounds. Started again, it resumes."""
    kit = _kit(folder, "cloud")
    from fedbac.cli.reporting import conclude
    from fedbac.deploy.roles.cloud import Cloud, run_folder
    from fedbac.deploy.transports.nvflare.files import SiteOrder

    runtime = changed(engine="federation", device="cpu", track=track)
    place = run_folder(kit, out_folder)
    if _run_by_nvflare(kit, metrics, health, listen=listen):
        choices = (rounds, overwrite, accept_rollback, refresh or [], track)
        order = SiteOrder(None, _in_full(state), "cpu", _in_full(place.path), *choices)
        return _hosted_cloud(kit, place, order)
    run = Cloud(kit, place, runtime, rounds, listen, overwrite, accept_rollback, refresh or (), state)
    with _logged(kit), _monitored(kit, metrics, health), run.stop.caught():
        try:
            for record in run.play():
                lost = f", {len(record['failed'])} clients failed" if record["failed"] else ""
                absent = f", absent: {', '.join(f'edge-{m}' for m in record['absent'])}" if record["absent"] else ""
                say(f"round {record['round']}: accuracy {100 * record['accuracy']:.2f} %{lost}{absent}")
        except DeployError as error:
            if not run.stop.wanted:
                raise
            say(str(error), err)
            raise typer.Exit(130) from error
    if run.stop.wanted and not place.finished():
        _say_stopped()
    return conclude([place.read()], place.path)


def _say_stopped() -> NoReturn:
    say("Stopped; all complete rounds are saved. The same command resumes.", err)
    raise typer.Exit(130)


def _hosted_cloud(kit: "Kit", place: "RunFolder", order: "SiteOrder") -> None:
    """Have NVFlare run the cloud, and show the run."""
    from fedbac.cli.reporting import conclude
    from fedbac.deploy.transports.nvflare.supervisor import Supervisor
    from fedbac.runs.configure import configure
    from fedbac.runs.stopping import Stop

    stop, counts = Stop(), configure(kit.experiment_file, rounds=order.rounds).task.clients()
    with _logged(kit), stop.caught():
        outcome = Supervisor(kit, counts, stop, say).run(order, begun=place.has_run() and not order.overwrite)
    if outcome.ended != "finished":
        _say_stopped()
    conclude([place.read()], place.path)


def _host(kit: "Kit", data: str | None, state: Path | None, device: str, stop: threading.Event) -> None:
    """Have NVFlare run an edge or a client; its processes are elsewhere, so paths are said in full."""
    from fedbac.deploy.transports.nvflare.files import SiteOrder
    from fedbac.deploy.transports.nvflare.hosting import run_site

    source = str(Path(data).resolve()) if data is not None and Path(data).exists() else data
    run_site(kit, SiteOrder(data=source, state=_in_full(state), device=device), stop)


def _in_full(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())


def _run_by_nvflare(kit: "Kit", metrics: str | None, health: str | None, **addresses: str | None) -> bool:
    """Whether NVFlare runs the site; addresses are then those that it was given with its startup folder."""
    if kit.site.deploy.transport != "nvflare":
        return False
    from fedbac.deploy.transports import nvflare

    nvflare.require()
    if metrics or health:
        raise ConfigError(
            f"--{'metrics' if metrics else 'health'}: NVFlare runs and watches its own processes; leave it out"
        )
    for name, address in addresses.items():
        if address is not None:
            raise ConfigError(
                f"--{name}: NVFlare's addresses are those of federation.yaml; change them there, then run "
                "fedbac federation renew and fedbac federation nvflare"
            )
    return True


def edge(
    folder: KitArgument,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", help="Test data of the edge: .npz, folder, or a function (package.module:name, file.py:name)."
        ),
    ] = None,
    listen: ListenOption = None,
    parent: ParentOption = None,
    metrics: MetricsOption = None,
    health: HealthOption = None,
    state: StateOption = None,
    device: DeviceOption = "auto",
    allowed: AllowOption = None,
) -> None:
    """Run an edge: take its clients and serve the cloud, until stopped."""
    kit = _kit(folder, "edge")
    from fedbac.deploy.roles.edge import run_edge

    with _logged(kit), _until_stopped() as stop:
        if _run_by_nvflare(kit, metrics, health, listen=listen, parent=parent):
            _host(kit, data, state, device, stop)
        else:
            with _monitored(kit, metrics, health):
                run_edge(kit, data, stop, changed(device=device, workers=1), listen=listen, address=parent, state=state)


def client(
    folder: KitArgument,
    data: Annotated[
        str,
        typer.Option(
            "--data", help="The client's own data: .npz, folder, or a function (package.module:name, file.py:name)."
        ),
    ],
    parent: ParentOption = None,
    metrics: MetricsOption = None,
    health: HealthOption = None,
    state: StateOption = None,
    device: DeviceOption = "cpu",
    idle: Annotated[
        float, typer.Option("--idle", min=0.1, help="Seconds without work after which memory for training is freed.")
    ] = IDLE,
    allowed: AllowOption = None,
) -> None:
    """Run a client: train on its own data when its edge asks, until stopped. The data never leave it."""
    kit = _kit(folder, "client")
    from fedbac.deploy.roles.client import run_client

    with _logged(kit), _until_stopped() as stop:
        if _run_by_nvflare(kit, metrics, health, parent=parent):
            _host(kit, data, state, device, stop)
        else:
            with _monitored(kit, metrics, health):
                run_client(kit, data, stop, address=parent, state=state, idle=idle, device=device)


def status(
    folder: KitArgument,
    state: StateOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second, until Ctrl-C.")] = False,
) -> None:
    """Show who is there, the round, the accuracy, and when each site was last seen, by the kit of the cloud or an edge.

    It works on the machine where the site runs.
    """
    from fedbac.deploy.roles.status import read_status

    while True:
        lines = described(read_status(folder, state), time.time())
        if watch and out.is_terminal:
            out.clear()
        for line in lines:
            say(line)
        if not watch:
            return
        time.sleep(1)


def described(found: dict[str, Any], now: float) -> list[str]:
    """Return a status in words."""
    from fedbac.deploy.roles.status import STALE

    age, doing = now - float(found.get("at", 0)), found.get("doing", "")
    over = doing in OVER or age > STALE
    why = f": {visible(str(found['why']))}" if "why" in found else ""
    ended = "; the run has ended" * (doing == "finished")
    gone = over and doing not in OVER
    now_doing = f"not running, last heard {_ago(age)}" if gone else f"{doing}{ended}{why}"
    lines = [f"{found.get('site', 'site')}: {now_doing}"]
    if "rounds" in found:
        accuracy = f", accuracy {100 * found['accuracy']:.2f} %" if "accuracy" in found else ""
        epoch = f" (epoch {found['epoch']} of its members)" if found.get("epoch", 1) != 1 else ""
        lines.append(f"{found.get('method')}: round {found.get('round')} of {found['rounds']}{accuracy}{epoch}")
    edges, clients = found.get("edges", {}), found.get("clients", {})
    for name in found.get("expected", ()):
        seen = edges.get(name)
        here = seen is not None and seen["present"] and not over
        state = "here" if here else "never seen" if seen is None else f"last seen {_ago(now - seen['seen'])}"
        known = here and isinstance(clients, dict) and name in clients
        lines.append(f"  {name}: {state}" + (f", with {', '.join(clients[name]) or 'no client'}" if known else ""))
    if isinstance(clients, list) and not over:
        lines.append(f"  clients here: {', '.join(clients) or 'none'}")
        lines += [f"  left out until it rejoins: {visible(str(reason))}" for reason in found.get("unfit", {}).values()]
    left_out = {} if over else found.get("left_out", {})
    return lines + [f"  left out: {visible(f'{name}: {why}')}" for name, why in left_out.items()]


def _ago(seconds: float) -> str:
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    return f"{minutes} min ago" if minutes else f"{rest} s ago"


def _kit(folder: Path, role: str) -> "Kit":
    with extra("deploy", "a federation on a network"):
        from fedbac.deploy.pki.kits import NEW_KIT, Kit
    kit = Kit.load(folder)
    if kit.site.role != role:
        raise ConfigError(
            f"{folder}: this is the kit of {kit.site.name}; start it with: fedbac {kit.site.role} {folder}"
        )
    if kit.identity.near_its_end(dt.datetime.now(dt.UTC)):
        say(f"The certificate of {kit.site.name} expires on {kit.identity.expires:%Y-%m-%d %H:%M} UTC; {NEW_KIT}", err)
    return kit


class _Lines(logging.Formatter):
    """One line a message, with time and site; what comes from elsewhere cannot break out of it."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record)).replace("\n", "\\n")


@contextmanager
def _logged(kit: "Kit") -> Iterator[None]:
    """Log to stderr with time and name, as a service does."""
    from fedbac.deploy.transports.handshakes import explained

    never_wait()
    listens = kit.site.role != "client" and kit.site.deploy.transport == "grpc"
    with explained() if listens else nullcontext():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Lines(f"%(asctime)s {kit.site.name} %(levelname)s %(message)s"))
        root = logging.getLogger()
        before, root.handlers = root.handlers, [handler]
        logging.getLogger("fedbac").setLevel(logging.INFO)
        try:
            yield
        finally:
            root.handlers = before


def _monitored(kit: "Kit", metrics: str | None, health: str | None) -> AbstractContextManager[None]:
    from fedbac.deploy.metrics import monitored
    from fedbac.deploy.pki.kits import CERTIFICATE_FILE

    return monitored(metrics, health, kit.folder / CERTIFICATE_FILE)


@contextmanager
def _until_stopped() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set; a second one ends the process at once."""
    stop = threading.Event()

    def handle(number: int, frame: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    with handled_by(handle):
        yield stop
    say("Stopped.", err)
