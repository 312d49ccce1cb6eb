"""A parent's end: shakes hands with its children, looks after them, and calls them by their proxies."""

import datetime as dt
import logging
import threading
import time
from collections.abc import Collection
from typing import Any

from fedbac.deploy import log
from fedbac.deploy.pki.authority import Identity
from fedbac.deploy.pki.credentials import Credentials, Revoked
from fedbac.deploy.transports.base import MISSED, REFUSED, Call, Handshake, ParentLinks, Refusal
from fedbac.deploy.transports.nvflare.parent import END, FIRST, OK, Post
from fedbac.errors import LONGEST_QUOTE, DeployError, quoted, visible


class Trust:
    """Takes certificates that the federation's authority signed and did not revoke."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials, self.revoked = credentials, Revoked(credentials)

    def take(self, name: str, said: bytes) -> tuple[Identity, bytes]:
        """Return who a child is and its hello; a Refusal says why it is not believed."""
        pem, end, hello = said.partition(END)
        if not end:
            raise Refusal("it brought no certificate; install the same version of fedbac at both sites", "certificate")
        try:
            identity = self._credentials.identify(name, pem, name)
        except DeployError as error:
            raise Refusal(str(error), "certificate") from error
        if identity.name != name:
            text = f"{name} brought a certificate of {quoted(identity.name)} that is not its own; copy its kit"
            raise Refusal(text, "certificate")
        self.check(identity)
        return identity, hello

    def check(self, identity: Identity) -> None:
        """Refuse a certificate that was good once."""
        self.revoked.refresh()
        if identity in self.revoked:
            raise Refusal(f"the certificate of {identity.name} is revoked", "revoked")
        if dt.datetime.now(dt.UTC) >= identity.expires:
            raise Refusal(f"the certificate of {identity.name} has expired; renew its kit", "certificate")


class Child:
    """One child of the job. Whoever changes it holds the lock of its NvflareChildren."""

    def __init__(self, name: str, proxy: Any) -> None:
        self.name, self.proxy = name, proxy
        self.heard: float | None = None
        self.present = False
        self.identity: Identity | None = None
        """By the certificate that it brought."""
        self.tried = threading.Event()
        """Set once it was asked for its hello, whatever came of that."""
        self.waiting: set[Call] = set()

    def call(self, method: str, timeout: float, *args: Any) -> bytes:
        """Call a published method of the child; a DeployError says why there is no answer."""
        try:
            reply = getattr(self.proxy(timeout=timeout), method)(*args)
        except Exception as error:  # whatever NVFlare raises for a site that it does not reach
            raise DeployError(f"was not reached ({type(error).__name__})") from error
        if not isinstance(reply, (tuple, list)) or len(reply) != 2 or not isinstance(reply[1], bytes):
            raise DeployError("it sent what is no reply")
        said: bytes = reply[1]
        if reply[0] != OK:
            raise DeployError(visible(said[:LONGEST_QUOTE].decode(errors="replace")))
        return said


class NvflareChildren(ParentLinks):
    """Children over NVFlare; see the protocol Children.

    Returns from its making once every child of the job was asked for its hello, so that a run that goes on begins with
    everybody. ``children`` who are not in the job are not there; NVFlare takes no site into a job that runs.
    """

    late = 5.0

    def __init__(
        self, post: Post, children: Collection[str], handshake: Handshake, trust: Trust, *, heartbeat: float
    ) -> None:
        super().__init__(trust.revoked, handshake, heartbeat, post.limit)
        self._trust = trust
        self._children = {name: Child(name, post.proxies[name]) for name in children if name in post.proxies}
        for name in sorted(set(children) - set(self._children)):
            log.warning("%s is not in the job; it takes part when the job is submitted again", name)
        post.called.wait()
        self._threads = [
            threading.Thread(target=self._keep, args=(child,), name=f"fedbac-{child.name}", daemon=True)
            for child in self._children.values()
        ]
        for thread in self._threads:
            thread.start()
        for child in self._children.values():
            child.tried.wait()

    def present(self) -> frozenset[str]:
        """Return the children who gave a sign of life and whose hello was taken."""
        with self._changed:
            return frozenset(name for name, child in self._children.items() if child.present)

    def seen(self) -> dict[str, float]:
        """Return the seconds since the last sign of life, for everyone who was ever there."""
        now = time.monotonic()
        with self._changed:
            return {name: now - child.heard for name, child in self._children.items() if child.heard is not None}

    def close(self) -> None:
        """Look after nobody any more."""
        self._closing.set()
        with self._changed:
            for child in self._children.values():
                self._lose(child, "this site is closing")

    def _start(self, name: str, call: Call, deadline: float) -> None:
        child = self._children.get(name)
        if child is None or not child.present:
            call.reason = "is not there"
        else:
            child.waiting.add(call)
            threading.Thread(target=self._ask, args=(child, call, deadline), daemon=True).start()

    def _ask(self, child: Child, exchange: Call, deadline: float) -> None:
        """Wait for NVFlare's answer, which may come after everybody else has given the child up."""
        answer, reason = None, None
        try:
            said = child.call("ask", deadline, exchange.number, exchange.message)
            if len(said) > exchange.limit:
                reason = f"it sent {len(said):,} bytes, where {exchange.limit:,} are allowed"
            else:
                answer = said
        except DeployError as error:
            reason = str(error)
        with self._changed:
            child.waiting.discard(exchange)
            if answer is not None:
                child.heard = time.monotonic()
            if not exchange.done:
                exchange.answer, exchange.reason = answer, reason
            self._changed.notify_all()

    def _abandon(self, name: str, call: Call) -> None:
        child = self._children[name]
        child.waiting.discard(call)

        def tell() -> None:
            try:
                child.proxy(expect_result=False).cancel(call.number)
            except Exception as error:  # it will find out by itself, as its answer is of no use
                log.debug("%s could not be told: %s", child.name, type(error).__name__)

        threading.Thread(target=tell, daemon=True).start()

    def _keep(self, child: Child) -> None:
        """Shake hands with a child and ask for signs of life; one that fell silent starts again when it is back."""
        noted = ""
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                if child.present:
                    assert child.identity is not None
                    self._trust.check(child.identity)
                    child.call("ping", self._heartbeat)
                else:
                    self._join(child)
                    noted = ""
                with self._changed:
                    child.heard = time.monotonic()
            except DeployError as error:
                why = str(error)
                with self._changed:
                    silent = time.monotonic() - (child.heard or 0.0)
                    if isinstance(error, Refusal):
                        why = f"refused: {error}"
                        REFUSED.counts[error.reason] += not child.present
                        self._lose(child, str(error))
                    elif child.present and silent > MISSED * self._heartbeat:
                        self._lose(child, f"no sign of life for {silent:.1f} s")
                if not child.present and why != noted:
                    noted = why
                    log.warning("%s: %s", child.name, noted)
            child.tried.set()
            self._closing.wait(max(0.0, self._heartbeat - (time.monotonic() - began)))

    def _join(self, child: Child) -> None:
        said = child.call("hello", FIRST)
        with self._handshaking:
            child.identity, hello = self._trust.take(child.name, said)
            welcome = self._shake_hands(child.name, hello)
        child.call("welcome", FIRST, welcome)
        with self._changed:
            child.present = not self._closing.is_set()
        log.info("%s has joined", child.name)

    def _lose(self, child: Child, reason: str) -> None:
        """Note that a child is gone; whoever waits for it is told."""
        if child.present:
            level = logging.INFO if self._closing.is_set() else logging.WARNING
            log.log(level, "the link to %s has ended: %s", child.name, reason)
        child.present = False
        for exchange in child.waiting:
            exchange.reason = exchange.reason or reason
        child.waiting.clear()
        self._changed.notify_all()
