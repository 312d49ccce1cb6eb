"""A parent's end: shakes hands with its children, looks after them, and calls them by their proxies."""

import datetime as dt
import logging
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

from fedbac.deploy.pki.authority import Identity
from fedbac.deploy.pki.credentials import Credentials, Revoked
from fedbac.deploy.protocol.wire import ROOM
from fedbac.deploy.transports.base import NO_ANSWER, Call, Handshake, Refusal
from fedbac.deploy.transports.nvflare.parent import END, FIRST, OK, Post
from fedbac.deploy.transports.refusals import REFUSED
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


MISSED = 3
"""Heartbeats without a sign of life after which a child is gone."""
LATE = 5.0
"""Seconds that NVFlare may take longer than the deadline, after which a call is given up all the same."""

log = logging.getLogger("fedbac")


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


class NvflareChildren:
    """Children over NVFlare; see the protocol Children.

    Returns from its making once every child of the job was asked for its hello, so that a run that goes on begins with
    everybody. ``children`` who are not in the job are not there; NVFlare takes no site into a job that runs.
    """

    def __init__(
        self, post: Post, children: Collection[str], handshake: Handshake, trust: Trust, *, heartbeat: float
    ) -> None:
        self._post, self._shake_hands, self._trust, self._heartbeat = post, handshake, trust, heartbeat
        self._changed = threading.Condition()
        self._handshaking = threading.Lock()
        self._closing = threading.Event()
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

    def call(
        self, messages: Mapping[str, bytes], deadline: float, limit: int = ROOM
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """Send each child its message and wait; return the answers, and a reason for each child that gave none."""
        exchanges = {name: Call(message, min(limit, self._post.limit)) for name, message in messages.items()}
        with self._changed:
            for name, exchange in exchanges.items():
                self._start(self._children.get(name), exchange, deadline)
            self._changed.wait_for(lambda: all(exchange.done for exchange in exchanges.values()), deadline + LATE)
            for name, exchange in exchanges.items():
                if not exchange.done:
                    exchange.reason = f"{NO_ANSWER} {deadline:g} s"
                    self._abandon(self._children[name], exchange)
        answers = {name: exchange.answer for name, exchange in exchanges.items() if exchange.answer is not None}
        return answers, {name: exchange.reason for name, exchange in exchanges.items() if exchange.reason is not None}

    def turn_away(self, revoked: bytes) -> None:
        """End the links of all whose certificates are on a list that the authority signed, and take them no more."""
        self._trust.revoked.take(revoked)

    def close(self) -> None:
        """Look after nobody any more."""
        self._closing.set()
        with self._changed:
            for child in self._children.values():
                self._lose(child, "this site is closing")

    def _start(self, child: Child | None, exchange: Call, deadline: float) -> None:
        if len(exchange.message) > self._post.limit:
            exchange.reason = f"the message has {len(exchange.message):,} bytes; {self._post.limit:,} are allowed"
        elif child is None or not child.present:
            exchange.reason = "is not there"
        else:
            child.waiting.add(exchange)
            threading.Thread(target=self._ask, args=(child, exchange, deadline), daemon=True).start()

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

    def _abandon(self, child: Child, exchange: Call) -> None:
        """Tell a child that nobody waits any more."""
        child.waiting.discard(exchange)

        def tell() -> None:
            try:
                child.proxy(expect_result=False).cancel(exchange.number)
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
                    self._check(child)
                    child.call("ping", self._heartbeat)
                else:
                    self._join(child)
                    noted = ""
                with self._changed:
                    child.heard = time.monotonic()
            except DeployError as error:
                with self._changed:
                    silent = time.monotonic() - (child.heard or 0.0)
                    if child.present and silent > MISSED * self._heartbeat:
                        self._lose(child, f"no sign of life for {silent:.1f} s")
                if not child.present and str(error) != noted:
                    noted = str(error)
                    log.warning("%s: %s", child.name, noted)
            child.tried.set()
            self._closing.wait(max(0.0, self._heartbeat - (time.monotonic() - began)))

    def _join(self, child: Child) -> None:
        said = child.call("hello", FIRST)
        try:
            with self._handshaking:
                child.identity, hello = self._trust.take(child.name, said)
                welcome = self._shake_hands(child.name, hello)
        except Refusal as refusal:
            REFUSED.counts[refusal.reason] += 1
            raise DeployError(f"refused: {refusal}") from refusal
        child.call("welcome", FIRST, welcome)
        with self._changed:
            child.present = not self._closing.is_set()
        log.info("%s has joined", child.name)

    def _check(self, child: Child) -> None:
        """Let a child go whose certificate is no longer good."""
        assert child.identity is not None
        try:
            self._trust.check(child.identity)
        except Refusal as refusal:
            with self._changed:
                self._lose(child, str(refusal))
            raise DeployError(f"refused: {refusal}") from refusal

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
