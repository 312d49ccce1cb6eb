"""A parent's questions to its children, all of whom must know the charter first."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from fedbac.deploy.charter import Charter
from fedbac.deploy.transport import Children
from fedbac.deploy.wire import WireError, decode, encode

SHORT = 1024
"""Bytes: an answer without tensors is shorter."""
STRANGER = encode("stranger", {}, {})
"""The answer of a child that does not know the charter, as after a restart."""
FORGOTTEN = encode("forgotten", {}, {})
"""The answer of a child that does not have the networks whose changes it was sent."""

Child = TypeVar("Child")
Heard = tuple[dict[Child, bytes], dict[Child, str]]
"""By child, answers, and the reasons of those who gave none."""


def ask_twice(
    ask: Callable[[Mapping[Child, bytes]], Heard[Child]],
    messages: Mapping[Child, bytes],
    whole: Callable[[Child], bytes],
) -> Heard[Child]:
    """Ask children; those who do not have what their message builds on are asked again with the whole of it."""
    answers, reasons = ask(messages)
    forgetful = [child for child, answer in answers.items() if len(answer) < SHORT and answer == FORGOTTEN]
    if not forgetful:
        return answers, reasons
    answers = {child: answer for child, answer in answers.items() if child not in forgetful}
    more, lost = ask({child: whole(child) for child in forgetful})
    return answers | more, reasons | lost


def ask_informed(
    children: Children, messages: Mapping[str, bytes], charter: Charter, deadline: float
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Call children; those that do not know the charter are handed it and called again."""
    answers, reasons = children.call(messages, deadline)
    strangers = [name for name, answer in answers.items() if len(answer) < SHORT and answer == STRANGER]
    if not strangers:
        return answers, reasons
    informed, uninformed = children.call(dict.fromkeys(strangers, charter.encoded()), deadline)
    for name, answer in informed.items():
        try:
            decode(answer, ("ready",))
        except WireError as error:
            uninformed[name] = str(error)
    again = {name: messages[name] for name in strangers if name not in uninformed}
    answers = {name: answer for name, answer in answers.items() if name not in strangers}
    reasons |= uninformed
    if again:
        more, lost = children.call(again, deadline)
        answers, reasons = answers | more, reasons | lost
    return answers, reasons
