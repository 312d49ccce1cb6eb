"""``fedbac model``: the model that a site of a federation has, in a file with a signed card, and the check of both."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedbac.cli.deploying import KitArgument
from fedbac.cli.terminal import AllowOption, extra, say
from fedbac.errors import ConfigError

ModelFormat = StrEnum("ModelFormat", ["PT2", "ONNX", "SAFETENSORS"])
"""How a model is written."""


def model(
    folder: KitArgument,
    edge: Annotated[int | None, typer.Option("--edge", help="Whose model: the number of an edge, from 0.")] = None,
    client: Annotated[
        int | None, typer.Option("--client", help="Or that of a client: its number over all edges, from 0.")
    ] = None,
    format_: Annotated[
        ModelFormat,
        typer.Option("--format", help="pt2 (torch.export) and onnx run without fedbac; safetensors: weights."),
    ] = ModelFormat.PT2,
    out_file: Annotated[
        Path | None,
        typer.Option("--out", help="File to write; its card is FILE.json beside it. Default: model.FORMAT."),
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
            help="Write nothing: check a model and its card. KIT may then be the authority's ca.crt alone.",
        ),
    ] = None,
    allowed: AllowOption = None,
) -> None:
    """Write the model that a site has after the last round, with a signed card; or check one.

    It needs no data, network or running site. An edge and a client have what the cloud handed out last.
    """
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

    kit, path = Kit.load(folder), out_file or Path(f"model.{format_}")
    if path.suffix != f".{format_}":
        raise ConfigError(f"--out: {path} must end with .{format_}; change the name, or choose another --format")
    found = give(kit.site, kept or kit.folder / ("run" if kit.site.role == "cloud" else "state"), edge, client)
    save(found.model, found.example, path)
    beside = cards.write_card(kit, path, found.said)
    say(f"Written: {path}, the model of {found.said['model']} after round {found.said['round']}; its card: {beside}")
