"""A parent's questions to its children, all of whom must know the charter first."""

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from fedbac.deploy import log
from fedbac.deploy.protocol.charter import Charter
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.heads import kind_of
from fedbac.deploy.protocol.messages import sent
from fedbac.deploy.protocol.wire import WireError, decode
from fedbac.deploy.transports.base import NO_ANSWER, Answered, Child, Children

SHORT = 1024
"""Bytes: an answer without tensors is shorter."""
SLACK = 4
"""Times as long as it took before, a child has for an answer."""
STRANGER = sent("stranger")
"""The answer of a child that does not know the charter, as after a restart."""
FORGOTTEN = sent("forgotten")
"""The answer of a child that does not have the networks whose changes it was sent."""

UNFIT = (Failure.OTHER_DATA, Failure.MORE_CLASSES)
"""Why a child that is there takes no part until its data are others."""


def ask_with_retry(
    ask: Callable[[Mapping[Child, bytes]], Answered[Child]],
    messages: Mapping[Child, bytes],
    whole: Callable[[Child], bytes],
) -> Answered[Child]:
    """Ask children; those who do not have what their message builds on are asked again with the whole of it."""
    answers, reasons = ask(messages)
    forgetful = [child for child, answer in answers.items() if len(answer) < SHORT and answer == FORGOTTEN]
    if not forgetful:
        return answers, reasons
    answers = {child: answer for child, answer in answers.items() if child not in forgetful}
    more, lost = ask({child: whole(child) for child in forgetful})
    return {**answers, **more}, reasons | lost


class Caller:
    """The children of a run: each is handed the charter before its first question, and again once it forgot it."""

    def __init__(self, children: Children, charter: Charter, min_deadline: float = math.inf) -> None:
        self.children, self.charter, self.min_deadline = children, charter, min_deadline
        self._lock = threading.Lock()
        """Guards all below: children rejoin in the transport's threads, and several may be asked at a time."""
        self.took: dict[tuple[str, str], float] = {}
        """By kind of request and child, the seconds after which it had answered, or had not."""
        self._informed: set[str] = set()
        self._unfit: dict[str, str] = {}
        self._rejoined: set[str] = set()
        """Those who have a new link since they were last handed the charter."""

    @property
    def unfit(self) -> dict[str, str]:
        """Those whose data are not those of the run, and what they said; they are asked nothing until they rejoin."""
        with self._lock:
            return dict(self._unfit)

    def ask(self, messages: Mapping[str, bytes], deadline: float) -> Answered[str]:
        """Call children; return the answers, and a reason for each child that gave none."""
        reasons = self.inform(messages, deadline)
        answers, lost = self._call(messages, reasons, deadline)
        strangers = [name for name, answer in answers.items() if len(answer) < SHORT and answer == STRANGER]
        if strangers:
            with self._lock:
                self._informed -= set(strangers)
            refused = self.inform(strangers, deadline)
            again, more = self._call({name: messages[name] for name in strangers}, refused, deadline)
            answers = {name: answer for name, answer in answers.items() if name not in strangers} | dict(again)
            lost |= refused | more
        return answers, reasons | lost

    def inform(self, names: Collection[str], deadline: float) -> dict[str, str]:
        """Hand the charter to those who do not know it; return why some still do not."""
        with self._lock:
            new = [name for name in names if name not in self._informed and name not in self._unfit]
            self._rejoined -= set(new)
        charter = self.charter
        begin = {name: sent("begin", charter=charter.text, known=charter.known_to(name)) for name in new}
        answers, reasons = self.children.call(begin, deadline) if new else ({}, {})
        for name, answer in answers.items():
            try:
                decode(answer, ("ready",))
            except WireError as error:
                reasons[name] = str(error)
        with self._lock:  # what somebody said over a link before its present one counts no more
            self._informed |= answers.keys() - reasons.keys() - self._rejoined
            others = {name: why for name, why in reasons.items() if SiteError.found(why, *UNFIT)}
            unfit = {name: why for name, why in others.items() if name not in self._rejoined}
            self._unfit |= unfit
            left_out = {name: self._unfit[name] for name in names if name in self._unfit}
        for name, reason in unfit.items():
            log.warning("%s is left out until it rejoins: %s", name, reason)
        return reasons | left_out

    def rejoined(self, name: str) -> None:
        """Note that a child has a new link: it may have been started again, with other data."""
        with self._lock:
            self._informed.discard(name)
            self._unfit.pop(name, None)
            self._rejoined.add(name)

    def _call(self, messages: Mapping[str, bytes], without: Collection[str], deadline: float) -> Answered[str]:
        left = {name: message for name, message in messages.items() if name not in without}
        if not left:
            return {}, {}
        kind, began = kind_of(next(iter(left.values()))), time.monotonic()
        deadline = self._deadline(kind, left, deadline)
        answers, reasons = self.children.call(left, deadline, self.charter.longest_answer(kind))
        late = [name for name, why in reasons.items() if NO_ANSWER in why]
        with self._lock:
            self.took |= dict.fromkeys([(kind, name) for name in late or answers], time.monotonic() - began)
        return answers, reasons

    def _deadline(self, kind: str, names: Collection[str], most: float) -> float:
        """Return how long children have: some times what the slowest of them took; of a new one, what others took."""
        with self._lock:
            took = {name: seconds for (other, name), seconds in self.took.items() if other == kind}
        longest = max((took.get(name, max(took.values())) for name in names) if took else [math.inf])
        return min(most, max(self.min_deadline, SLACK * longest))


class Silences:
    """Says once that somebody gives no answer, and once that there is one again."""

    def __init__(self) -> None:
        self.silent: set[str] = set()

    def note(self, asked: Iterable[str], reasons: Mapping[str, str], when: str = "") -> None:
        """Take whom somebody asked, and the reasons of those who gave no answer that could be used."""
        for name in asked:
            if name in reasons and name not in self.silent:
                log.warning("%sno answer from %s (%s)", when, name, reasons[name])
                self.silent.add(name)
            elif name not in reasons and name in self.silent:
                log.info("%s%s answers again", when, name)
                self.silent.discard(name)
