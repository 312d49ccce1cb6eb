"""A child's end: NVFlare carries the parent's calls to it."""

import threading
from collections.abc import Callable
from pathlib import Path

from fedbac.deploy.nvflare.post import Post, Role
from fedbac.deploy.nvflare.trusting import with_certificate
from fedbac.deploy.transport import Answer


class NvflareParent:
    """The parent over NVFlare; see the protocol Parent. Links are NVFlare's, and so is dialling again."""

    def __init__(self, post: Post, certificate: Path) -> None:
        self._post, self._certificate = post, certificate

    def serve(
        self, hello: Callable[[], bytes], welcomed: Callable[[bytes], None], answer: Answer, stop: threading.Event
    ) -> None:
        """Answer the parent's requests, one at a time, until ``stop`` is set."""

        def proven() -> bytes:
            return with_certificate(self._certificate, hello())

        self._post.serve(Role(proven, welcomed, answer), stop)
