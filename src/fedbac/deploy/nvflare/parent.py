"""A child's end: NVFlare carries the parent's calls to it."""

import threading
from collections.abc import Callable

from fedbac.deploy.nvflare.post import Post, Role
from fedbac.deploy.transport import Answer


class NvflareParent:
    """The parent over NVFlare; see the protocol Parent. Links are NVFlare's, and so is dialling again."""

    def __init__(self, post: Post) -> None:
        self._post = post

    def serve(
        self, hello: Callable[[], bytes], welcomed: Callable[[bytes], None], answer: Answer, stop: threading.Event
    ) -> None:
        """Answer the parent's requests, one at a time, until ``stop`` is set."""
        self._post.serve(Role(hello, welcomed, answer), stop)
