"""Who trained when, as the records of the run tell: what sites must have kept since."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedbac.deploy.protocol.charter import Charter
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.messages import Expectations, Expected
from fedbac.deploy.settings import edge_name
from fedbac.errors import DeployError

EDGE = "edge"
"""The site itself, among the numbers of its clients."""
NOT_BACK = ("failed", "dropped", "late")


class History:
    """The last round in which every client and every site trained, of those that count."""

    def __init__(
        self,
        charter: Charter,
        records: Callable[[], Sequence[Mapping[str, Any]]],
        anyway: bool,
        moved: Mapping[str, str],
    ) -> None:
        """``records`` are those of the rounds before, once the first order is given. ``moved``: by the new place of a
        client that moved, the old one, in which it trained."""
        self.charter, self.records, self.anyway = charter, records, anyway
        number = {name: str(client) for client, name in enumerate(charter.names)}
        self.moved = {number[new]: number[old] for new, old in moved.items()}
        self.round = 0
        self.trained: dict[str, int] = {}
        self.latest: dict[str, int] = {}
        """The same of the round that is being played."""

    def begin(self, round_: int) -> None:
        """Note that a round begins, be it again: those before it count."""
        if self.round == 0:
            for record in self.records():
                missing = {client for name in NOT_BACK for client in record.get(name, ())}
                ages = dict.fromkeys(range(len(record["selected"])), 0)
                if "edges_back" in record:
                    ages = dict(zip(record["edges_back"], record["edge_ages"], strict=True))
                came = {m: age for m, age in ages.items() if m not in record.get("absent", ())}
                self.note(record["round"], record["selected"], missing, came)
                self.trained |= self.latest
        elif self.round < round_:
            self.trained |= self.latest
        self.round, self.latest = round_, {}

    def note(self, round_: int, selected: Sequence[Sequence[int]], missing: set[int], ages: Mapping[int, int]) -> None:
        """Note who trained for a round, by site that has answered; where the cloud does not wait, so many rounds ago. A
        site at which nobody was selected need not have been asked: its region may have selected others."""
        began = {m: round_ - age for m, age in ages.items() if selected[m]}
        sites = {f"{EDGE}-{m}": when for m, when in began.items()}
        self.latest |= sites | {str(c): began[m] for m in began for c in selected[m] if c not in missing}

    def expected(self, site: int) -> Expectations:
        """Return what a site and its clients must have kept."""
        names = {str(client): str(client) for client in self.charter.sites[site].clients} | {EDGE: f"{EDGE}-{site}"}
        return {name: Expected(self._trained(key), self.anyway) for name, key in names.items()}

    def _trained(self, key: str) -> int:
        while key not in self.trained and key in self.moved:
            key = self.moved[key]
        return self.trained.get(key, 0)

    def refuse(self, reason: str) -> None:
        """Stop the run if a site has not what it should have kept; the operator decides."""
        found = SiteError.found(reason, Failure.CLIENT_STATE, Failure.EDGE_STATE)
        if found is None:
            return
        number, after, kept = found.numbers
        name = dict(enumerate(self.charter.names)).get(number, f"client {number}")
        if found.failure is Failure.EDGE_STATE:
            name = edge_name(number) if self.charter.experiment.method.topology.tiers == 3 else "the cloud"
        fix = (
            f"it has kept state up to round {kept}. The cloud's run folder is an old copy: restore the newest one"
            if kept > after
            else f"its state is {f'of round {kept}' if kept else 'gone'}. Restore its state folder"
        )
        raise DeployError(
            f"the run stopped, as {name} cannot continue after round {after}: {fix}; or go on with what every site "
            "has, which gives other numbers than a run that was never interrupted: fedbac cloud KIT --accept-rollback"
        )
