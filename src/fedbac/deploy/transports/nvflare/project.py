"""An NVFlare project for a federation: project.yml, and a startup folder in every kit."""

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

from nvflare.lighter.constants import CtxKey
from nvflare.lighter.prov_utils import prepare_builders
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner

from fedbac.config.text import to_yaml
from fedbac.deploy.pki.kits import FederationFolder
from fedbac.deploy.settings import CLOUD, FederationConfig, edge_name
from fedbac.deploy.transports.nvflare.files import ADMIN, ADMINISTRATOR, ALLOWED, FOLDER, RELAY, relay_name
from fedbac.errors import DeployError
from fedbac.files import make_folder, read_json, remove, write_whole

ORGANIZATION = "fedbac"
SECURITY = {"connection_security": "mtls"}
"""Said at every place that listens: what is left out listens in the clear."""
AUTHORIZATION = {
    "format_version": "1.0",
    "permissions": {"lead": {"submit_job": "any", "manage_job": "n:submitter", "view": "any", "byoc": "none"}},
}
"""What the administrator may do at a site: have it run the job, look and end it. A job with code in it is refused."""
TELLTALES = {"site_log_streamer", "log_receiver"}
"""Components that send the log of a site to the server, and that take it there."""
BUILDERS: list[dict[str, Any]] = [
    {"path": "nvflare.lighter.impl.workspace.WorkspaceBuilder", "args": {"template_file": ["master_template.yml"]}},
    {
        "path": "nvflare.lighter.impl.static_file.StaticFileBuilder",
        "args": {"config_folder": "config", "scheme": "grpc"},
    },
    {"path": "nvflare.lighter.impl.cert.CertBuilder"},
]


def project_of(config: FederationConfig) -> dict[str, Any]:
    """Return project.yml of a federation as plain data."""
    host, port = _split(config.cloud.address)
    people: list[dict[str, Any]] = [
        {"name": CLOUD, "type": "server", "default_host": host, "fed_learn_port": port, **SECURITY}
    ]
    for number, edge in enumerate(config.edges):
        edge_host, edge_port = _split(edge.address)
        listening = {"scheme": "grpc", "default_host": edge_host, "port": edge_port, **SECURITY}
        relay = relay_name(number)
        people.append({"name": relay, "type": "relay", "listening_host": listening, **SECURITY})
        people += [
            {"name": name, "type": "client", "connect_to": {"name": relay, **SECURITY}, **SECURITY}
            for name, site in config.sites().items()
            if site.edge == number
        ]
    people.append({"name": ADMINISTRATOR, "type": "admin", "role": "lead", **SECURITY})
    return {
        "api_version": 3,
        "name": config.name,
        "description": f"Made from federation.yaml of {config.name}.",
        **SECURITY,
        "participants": [{**person, "org": ORGANIZATION} for person in people],
        "builders": BUILDERS,
    }


def provision(federation: FederationFolder) -> list[str]:
    """Make or renew the startup folders of all kits; return the kits that must be copied to their sites."""
    config = federation.config
    if config.deploy.transport != "nvflare":
        raise DeployError(
            f"{federation.path / 'federation.yaml'}: deploy.transport is {config.deploy.transport}; set it to nvflare, "
            "run fedbac federation renew, then this command again"
        )
    missing = [name for name in config.sites() if not federation.kit(name).is_dir()]
    if missing:
        raise DeployError(f"{federation.kit(missing[0])}: there is no such kit; run fedbac federation renew first")
    work = make_folder(federation.path / FOLDER)
    work.chmod(0o700)  # it keeps the key of NVFlare's own authority
    project = project_of(config)
    write_whole(work / "project.yml", to_yaml(project))
    made = _provisioned(project, work)
    for name in config.sites():
        _take(made / name, federation.kit(name) / FOLDER)
    for number in range(len(config.edges)):
        _take(made / relay_name(number), federation.kit(edge_name(number)) / RELAY)
    _take(made / ADMINISTRATOR, federation.kit(CLOUD) / ADMIN)
    remove(made)  # nothing keeps a second copy of a site's key
    return list(config.sites())


def _provisioned(project: dict[str, Any], work: Path) -> Path:
    """Have NVFlare make the folders of all participants; return where they are."""
    said = io.StringIO()
    plain = json.loads(json.dumps(project))  # NVFlare changes what it is given
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            context = Provisioner(str(work), prepare_builders(plain)).provision(prepare_project(plain))
        except (ValueError, RuntimeError) as error:
            raise DeployError(f"{work / 'project.yml'}: NVFlare refuses it: {error}") from error
    if context.get(CtxKey.BUILD_ERROR):
        raise DeployError(f"{work / 'project.yml'}: NVFlare cannot make its folders: {said.getvalue().strip()[-500:]}")
    return Path(context[CtxKey.CURRENT_PROD_DIR])


def _take(made: Path, to: Path) -> None:
    """Put the startup folder of a participant into a kit; what NVFlare wrote there while it ran stays."""
    make_folder(to).chmod(0o700)
    for part in ("startup", "local"):
        remove(to / part)
        shutil.move(made / part, to / part)
    if (to / "local" / "authorization.json.default").exists():  # only where jobs run
        resources = read_json(to / "local" / "resources.json.default")
        # Under these a site runs our job and no other, and keeps its log to itself.
        kept = [component for component in resources["components"] if component["id"] not in TELLTALES]
        ours = {"class_list_enforcement_mode": "enforce", "class_allow_list": ALLOWED, "allow_log_streaming": False}
        restricted = resources | ours | {"components": kept}
        write_whole(to / "local" / "resources.json", json.dumps(restricted, indent=2))
        write_whole(to / "local" / "authorization.json", json.dumps(AUTHORIZATION, indent=2))


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
