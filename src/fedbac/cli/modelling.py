"""``fedbac model``: a model of a run, or that a site of a federation has, with a signed card, and the check of both."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbac.cli.terminal import AllowOption, DataOption, extra, say
from fedbac.errors import ConfigError

if TYPE_CHECKING:
    from fedbac.runs.store import RunFolder

ModelFormat = StrEnum("ModelFormat", ["PT2", "ONNX", "SAFETENSORS", "PEFT"])
"""How a model is written."""


def model(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A run folder, or a site's kit, a folder of kits/.")],
    edge: Annotated[int | None, typer.Option("--edge", help="Whose model: the number of an edge, from 0.")] = None,
    client: Annotated[
        int | None, typer.Option("--client", help="Or that of a client: its number over all edges, from 0.")
    ] = None,
    format_: Annotated[
        ModelFormat,
        typer.Option(
            "--format", help="pt2 (torch.export) and onnx run without fedbac; safetensors: weights; peft: adapters."
        ),
    ] = ModelFormat.PT2,
    out_file: Annotated[
        Path | None,
        typer.Option("--out", help="File to write; a kit's card is FILE.json beside it. Default: model.FORMAT."),
    ] = None,
    kept: Annotated[
        Path | None,
        typer.Option(
            "--from", help="The cloud's run folder, or the state folder of an edge or a client. Default: in the kit."
        ),
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option(
            "--verify",
            metavar="FILE",
            help="Write nothing: check a model and its card. FOLDER may then be the authority's ca.crt alone.",
        ),
    ] = None,
    data_folder: DataOption = None,
    allowed: AllowOption = None,
) -> None:
    """Write a model of a run, or that a site has, with a signed card, after the last round; or check one.

    Of a run, its data and your network are read again (--data, --allow), and there is no card. A site's kit needs no
    data, network or running site; an edge and a client have what the cloud handed out last.
    """
    from fedbac.runs.store import RunFolder

    run, path = RunFolder(folder), out_file or Path(f"model.{format_}")
    if verify is None and path.suffix != f".{format_}":
        raise ConfigError(f"--out: {path} must end with .{format_}; change the name, or choose another --format")
    if run.has_run():
        if verify is not None or kept is not None:
            option = "--from" if verify is None else "--verify"
            raise ConfigError(
                f"{option}: {folder} is a run folder, and only models of a site's kit have cards; leave it out"
            )
        _of_run(run, edge, client, path, data_folder)
        return
    if verify is None and not (folder / "site.yaml").exists():
        raise ConfigError(f"{folder}: it is no run folder (no config.yaml) and no kit (no site.yaml); name one of them")
    if data_folder is not None or format_ == ModelFormat.PEFT:
        option = "--format peft" if data_folder is None else "--data"
        raise ConfigError(f"{option}: that is for run folders; leave it out for a kit")
    with extra("deploy", "a federation on a network"):
        from fedbac.deploy.pki import cards
        from fedbac.deploy.pki.kits import Kit
    if verify is not None:
        card = cards.verify(verify, folder)
        say(
            f"Genuine: the model of {card.model} after round {card.round} of {card.rounds} of {card.method} "
            f"(run {card.run}), given by {card.site} of {card.federation} on {card.written:%Y-%m-%d %H:%M} UTC"
        )
        return
    from fedbac.deploy.models import give
    from fedbac.runs.models import save

    kit = Kit.load(folder)
    found = give(kit.site, kept or kit.folder / ("run" if kit.site.role == "cloud" else "state"), edge, client)
    save(found.model, found.example, path)
    beside = cards.write_card(kit, path, found.said)
    say(f"Written: {path}, the model of {found.said['model']} after round {found.said['round']}; its card: {beside}")


def _of_run(folder: "RunFolder", edge: int | None, client: int | None, path: Path, data_folder: Path | None) -> None:
    """Write a model of a simulation, from its last checkpoint."""
    from fedbac.api.results import Run

    run = Run.of(folder.read())
    if run.config.get("runtime", {}).get("engine") == "federation":
        raise ConfigError(
            f"{folder.path}: it is the run of a federation, whose models are signed; name the kit of its cloud: "
            f"fedbac model KIT --from {folder.path}"
        )
    run.save_model(path, edge, client=client, data_folder=data_folder)
    whose = f"edge {edge}" if client is None else f"client {client}"
    say(f"Written: {path}, the model of {whose} after round {run.models.round}, unsigned: only kits sign models")
