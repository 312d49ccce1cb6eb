"""Where presets come from, and how they differ from the originals."""

from typing import NamedTuple


class Note(NamedTuple):
    """What is to be known of a preset."""

    reference: str
    """Authors, title, year."""
    summary: str
    differences: tuple[str, ...] = ()
    """From the original."""
    interpretation: bool = False
    """Whether the definition is our reading, because the original's could not be found."""


PER_EDGE = "The original has two tiers; here every edge selects among its own clients, and B is max(1, ⌊p·N_m⌋)."
BY_DATA = "Edges weight clients by their data; the original takes the plain mean."

NOTES: dict[str, Note] = {
    "power-of-choice": Note(
        reference="Cho, Wang, Joshi, Towards Understanding Biased Client Selection in Federated Learning, 2022",
        summary="Draw d candidates in proportion to n_i, have the received model measured on their data, take the B "
        "with the largest loss. With variant=last it is rpow-d, which counts the loss of the last training.",
        differences=(
            PER_EDGE,
            BY_DATA,
            "With p = 0.8 at most a fifth of the clients can be turned down; a smaller p shows more of the rule.",
            "The variant cpow-d, which measures on one batch, is left out.",
        ),
    ),
    "ucb-cs": Note(
        reference="Cho, Gupta, Joshi, Yağan, Bandit-based Communication-Efficient Client Selection Strategies for "
        "Federated Learning, 2020",
        summary="A_i = (n_i / n)(L_i / N_i + √(2 σ² ln T / N_i)) with sums discounted by γ = 0.7; the B largest train.",
        differences=(
            PER_EDGE,
            "ln T counts as 0 while the discounted number of rounds T is below 1.",
            "A client that is selected and brings nothing home counts as if it had told its mean loss.",
        ),
    ),
    "oort": Note(
        reference="Lai, Zhu, Madhyastha, Chowdhury, Oort: Efficient Federated Learning via Guided Participant "
        "Selection, 2021",
        summary="U_i = n_i √(mean ℓ²), from 0 to 1, plus √(0.1 ln t / last round), times (T_pref / t_i)^2 for clients "
        "slower than T_pref; exploited clients are drawn by this score, the share ε of B explores. The pacer raises "
        "T_pref where the utility is flat. Constants are those of the public code.",
        differences=(
            PER_EDGE,
            "More clients than needed are selected only where task.world.over_selection says so; the original takes "
            "1.1 times as many.",
            "The first round, where the public code fails, explores only; ε is 0 as soon as nobody is new, a round "
            "earlier than there.",
            "The pacer sums the utility of all selected clients that had been selected before, also of those that only "
            "filled the budget.",
            "A client that was selected and never brought an update home counts as the mean of the others, and not as "
            "new.",
        ),
    ),
    "cs-ucb": Note(
        reference="Xia, Quek, Guo, Wen, Yang, Zhu, Multi-Armed Bandit-Based Client Scheduling for Federated Learning, "
        "2020",
        summary="The reward of a client is 1 − min(τ, τ_max) / τ_max for the τ seconds it took; the B largest of "
        "ȳ_i + √((B + 1) ln t / z_i) train. With fairness above 0 it is CS-UCB-Q, with a queue of owed rounds.",
        differences=(
            PER_EDGE,
            "τ_max is what the slowest client of the edge is expected to take, unless it is set.",
            "A client that drops out has the reward 0.",
            "With B close to N_m the bonus outweighs the rewards, and clients take turns.",
        ),
    ),
    "cocs": Note(
        reference="Qu, Duan, Chen, Xu, Lu, Liu, Context-Aware Online Client Selection for Hierarchical Federated "
        "Learning, 2022",
        summary="The context of a client, its downlink and its speed, lies in one of h² cells. Clients that were "
        "selected at most K(t) times in their cell come first, then those whose updates arrived most often.",
        differences=(
            "Every client costs 1 and belongs to one edge, so the budget is max(1, ⌊p·N_m⌋) clients.",
            "Devices and links do not change during a run, so a client stays in its cell.",
            "The original leaves h and K(t) to its analysis; here h = 3 and K(t) = 0.1 t^(2/5) ln t, a tenth of the "
            "usual choice, because otherwise a run of 200 rounds would only explore.",
            "Edges and the cloud weight by data; the original takes plain means.",
        ),
    ),
    "trindade": Note(
        reference="Trindade, da Fonseca, Client Selection in Hierarchical Federated Learning, 2024",
        summary="Our reading: score_i = Σ_f ω_f · feature_f(i), for speed, link, data, a low training loss and "
        "updates that counted, each from 0 to 1 within the edge, with equal weights; the B best train.",
        differences=(
            "The original's score could not be found; this is our reading of what is said about it elsewhere.",
            "Energy is left out: the simulated devices have none.",
        ),
        interpretation=True,
    ),
}
