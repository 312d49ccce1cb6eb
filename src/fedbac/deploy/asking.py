"""A parent's questions to its children, all of whom must know the charter first."""

from collections.abc import Mapping

from fedbac.deploy.charter import Charter
from fedbac.deploy.transport import Children
from fedbac.deploy.wire import WireError, decode, encode

SHORT = 1024
"""Bytes: an answer without tensors is shorter."""
STRANGER = encode("stranger", {}, {})
"""The answer of a child that does not know the charter, as after a restart."""


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
