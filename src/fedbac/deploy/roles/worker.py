"""The process that holds a client's data and trains: ``python -m fedbac.deploy.roles.worker``.

A client waits most of the time. So its process is small, imports no torch, and starts this one when there is work;
after a while without any, this one is ended. Both talk through pipes: a status byte, a length, and bytes.
"""

import json
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from fedbac.config.experiment import Runtime
from fedbac.config.explain import parse
from fedbac.deploy import log
from fedbac.deploy.pki.kits import Kit, KitSigner
from fedbac.deploy.protocol.failures import SiteError
from fedbac.deploy.roles.client import FAILED, OK, receive, send
from fedbac.deploy.roles.data_holder import DataHolder
from fedbac.errors import Error


def main() -> None:
    """Read who we are from the arguments, then answer until the pipe ends."""
    say = json.loads(sys.argv[1])
    line = f"%(asctime)s {say['name']} %(levelname)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=line, stream=sys.stderr)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not end up between messages
    try:
        runtime = parse(Runtime, say["runtime"], "runtime")
        who, paths = (say["name"], say["number"], say["edge"], True), (say["source"], Path(say["state"]))
        holder = DataHolder(*who, *paths, runtime, lambda terms: KitSigner(Kit.load(Path(say["kit"])), terms.names))
    except Error as error:
        send(out, FAILED, str(error).encode(errors="replace"))  # for the client itself, whose log or terminal has it
        return
    serve(holder, sys.stdin.buffer, out)


def serve(holder: DataHolder, requests: BinaryIO, out: BinaryIO) -> None:
    """Say that the data could be read; then answer requests until there are no more, or nobody to answer."""
    try:
        send(out, OK, b"")
        while (request := receive(requests)) is not None:
            send(out, *_answered(holder, request[1]))
    except BrokenPipeError:  # the client was killed, and nobody is left to work for
        with suppress(BrokenPipeError):
            out.close()  # or the end of this process would try once more, and complain


def _answered(holder: DataHolder, request: bytes) -> tuple[int, bytes]:
    try:
        return OK, holder.answer(request)
    except Exception as error:
        failure = SiteError.of(error)
        log.error("a request failed: %s", failure, exc_info=not isinstance(error, Error))
        return FAILED, failure.encoded()


if __name__ == "__main__":
    main()
