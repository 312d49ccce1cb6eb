"""Three hundred hostile inputs, the same each time; ``benchmarks/soak.py`` tries thousands."""

from pathlib import Path

from tests.inputs.hostile import Attacks


def test_whatever_comes_in_the_answer_is_a_value_or_an_error_of_ours(tmp_path: Path) -> None:
    attacks = Attacks(tmp_path)
    complaints = [complaint for number in range(150) if (complaint := attacks.complaint(number))]
    assert complaints == []
