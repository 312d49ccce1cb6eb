"""A claim is a sentence with an id and a verdict. Comparisons that several tables and figures make are here too."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedbac_paper.measures import Number, accuracy, spread, values
from fedbac_paper.results import Results
from fedbac_paper.tasks import task_name
from fedbac_paper.verdicts import Verdict, above, below, every


@dataclass(frozen=True)
class Claim:
    """A sentence that may hold or not."""

    id: str
    """In kebab-case, begins with the name of the artefact, and is unique in the study; the sentence may change, the id
    stays."""
    sentence: str
    """Has {} where the subject stands, if there is one."""
    verdict: Verdict
    subject: str = ""
    """The method that the sentence is about, where the same is claimed of several."""

    @property
    def text(self) -> str:
        """The sentence with its subject."""
        return self.sentence.format(self.subject) if self.subject else self.sentence


def claim_about(subject: str, id_: str, sentence: str, verdict: Verdict) -> Claim:
    """Return a claim that is made of several methods; the method ends its id."""
    return Claim(f"{id_}-{subject}", sentence, verdict, subject)


def by_id(claims: Sequence[Claim]) -> dict[str, Claim]:
    """Return claims by their ids."""
    return {claim.id: claim for claim in claims}


def in_all(results: Results, tasks: Sequence[str], higher: str, lower: str) -> Verdict:
    """Judge "one variant is more accurate than another in each of these settings"."""
    return every(
        {task_name(task): above(values(results, task, higher), values(results, task, lower)) for task in tasks}
    )


def fairer(results: Results, task: str, variant: str, other: str) -> Verdict:
    """Judge "a variant has the smaller standard deviation over edges"."""
    return below(values(results, task, variant, spread), values(results, task, other, spread))


def severe_against_moderate(
    results: Results,
    variant: str,
    pairs: Mapping[str, str],
    judge: Callable[[Mapping[int, float], Mapping[int, float]], Verdict],
    number: Number = accuracy,
) -> dict[str, Verdict]:
    """Judge a variant at α = 0.1 against itself at α = 0.5, on each data set."""
    return {
        task_name(moderate, alpha=False): judge(
            values(results, severe, variant, number), values(results, moderate, variant, number)
        )
        for moderate, severe in pairs.items()
    }


def own_numbers(place: str, contradictions: list[str]) -> str:
    """Return what the paper's own numbers say against its sentence."""
    return f"the paper's own {place}: {', '.join(contradictions)}" if contradictions else ""


def noted(verdict: Verdict, note: str) -> Verdict:
    """Add a note to a verdict's evidence."""
    return replace(verdict, detail=f"{verdict.detail}; {note}".removeprefix("; ")) if note else verdict
