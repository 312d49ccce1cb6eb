"""The objects that a job makes: one in the process of every site. NVFlare calls what they publish."""

import threading
from pathlib import Path

from nvflare.collab import collab

from fedbac.config.experiment import Runtime
from fedbac.config.explain import parse
from fedbac.deploy import log
from fedbac.deploy.pki.kits import CERTIFICATE_FILE, Kit, KitSigner
from fedbac.deploy.roles.cloud import Cloud, run_folder
from fedbac.deploy.roles.data_holder import DataHolder
from fedbac.deploy.roles.edge import run_edge
from fedbac.deploy.settings import CLOUD
from fedbac.deploy.transports.connect import serve_parent
from fedbac.deploy.transports.nvflare.files import LOOK, SERVER, JobOutcome, SiteOrder, stop_asked
from fedbac.deploy.transports.nvflare.parent import HERE, Post, Reply
from fedbac.errors import Error, RunInUseError, visible


def _take_place() -> tuple[Kit, SiteOrder, Post]:
    """Return the kit of the site whose process this is, what its operator wants, and its place in the job."""
    workspace = Path(collab.workspace.get_root_dir())
    kit, order = Kit.load(workspace.parent), SiteOrder.read(workspace)
    proxies = {proxy.name: proxy for proxy in collab.clients}
    parent = SERVER if kit.site.parent == CLOUD else kit.site.parent
    post = Post(kit.site.name, parent, kit.site.deploy.max_bytes, proxies, kit.folder / CERTIFICATE_FILE)
    HERE[:] = [post]
    return kit, order, post


class CloudSite:
    """The cloud: its main method is the run."""

    @collab.main
    def play(self) -> None:
        """Play the run, or what is left of it; how it ended is written where the supervisor looks."""
        kit, order, post = _take_place()
        job, aborted = str(collab.fl_ctx.get_job_id()), collab.context.is_aborted
        post.called.set()  # NVFlare calls this method once all others can be called
        runtime = parse(Runtime, {"engine": "federation", "device": "cpu", "track": order.track}, "runtime")
        place = run_folder(kit, None if order.out is None else Path(order.out))
        choices = (order.rounds, None, order.overwrite, order.accept_rollback, order.refresh)
        cloud = Cloud(kit, place, runtime, *choices, _state(kit, order))
        over, refused = threading.Event(), ""

        def watch() -> None:
            while not over.wait(LOOK):
                cloud.stop.wanted = cloud.stop.wanted or stop_asked(kit.folder) or aborted()

        threading.Thread(target=watch, name="fedbac-stop", daemon=True).start()
        try:
            for record in cloud.play():
                log.info("round %d: accuracy %.4f", record["round"], record["accuracy"])
                order = order.begun(kit.folder)
        except RunInUseError as error:  # the process of a job before this one has not ended yet
            log.warning("%s", error)
        except Error as error:
            refused = visible(error)
            log.error("%s", refused)
        finally:
            over.set()
        outcome = (
            JobOutcome(job, "finished") if place.finished() else JobOutcome(job, "failed", "NVFlare ended the job")
        )
        if refused and not aborted():
            outcome = JobOutcome(job, "refused", refused)
        if stop_asked(kit.folder) and not place.finished():
            outcome = JobOutcome(job, "stopped")
        outcome.save(kit.folder)


class Served:
    """A site with a parent: its role runs in a thread, and its published methods are the parent's way to it."""

    _post: Post  # NVFlare has a site begin before it lets calls through

    def __init__(self) -> None:
        self._stop = threading.Event()

    @collab.init
    def begin(self) -> None:
        """Start the role."""
        kit, order, self._post = _take_place()

        def work() -> None:
            try:
                self.run(kit, order, self._stop)
            except BaseException as error:  # or the parent would wait for a hello that never comes
                log.exception("%s has ended", kit.site.name)
                self._post.fail(error)

        threading.Thread(target=work, name=f"fedbac-{kit.site.role}", daemon=True).start()

    @collab.final
    def end(self) -> None:
        """End the role."""
        self._stop.set()

    def run(self, kit: Kit, order: SiteOrder, stop: threading.Event) -> None:
        """Serve as the role does until ``stop`` is set."""
        raise NotImplementedError

    @collab.publish
    def hello(self) -> Reply:
        """Say hello."""
        return self._post.hello(collab.caller)

    @collab.publish
    def welcome(self, said: bytes) -> Reply:
        """Take the parent's welcome."""
        return self._post.welcome(collab.caller, said)

    @collab.publish
    def ask(self, number: int, request: bytes) -> Reply:
        """Answer a request."""
        return self._post.ask(collab.caller, number, request)

    @collab.publish
    def cancel(self, number: int) -> None:
        """Note that nobody waits for an answer."""
        self._post.cancel(collab.caller, number)

    @collab.publish
    def ping(self) -> Reply:
        """Give a sign of life."""
        return self._post.ping(collab.caller)


class EdgeSite(Served):
    """An edge: takes its clients, and serves the cloud."""

    def run(self, kit: Kit, order: SiteOrder, stop: threading.Event) -> None:
        """Serve as an edge."""
        run_edge(kit, order.data, stop, _runtime(order), state=_state(kit, order))


class ClientSite(Served):
    """A client: trains on its own data. NVFlare gives it a process of its own, so it needs no second one for that."""

    def run(self, kit: Kit, order: SiteOrder, stop: threading.Event) -> None:
        """Serve as a client."""
        site, data, state = kit.site, order.data or "", _state(kit, order)
        who = (site.name, site.number, site.edge or 0, True)
        holder = DataHolder(*who, data, state, _runtime(order), lambda terms: KitSigner(kit, terms.names))
        serve_parent(kit, lambda request, gone: holder.answer(request), stop)


def _runtime(order: SiteOrder) -> Runtime:
    return parse(Runtime, {"device": order.device, "workers": 1}, "runtime")


def _state(kit: Kit, order: SiteOrder) -> Path:
    return Path(order.state) if order.state is not None else kit.folder / "state"
