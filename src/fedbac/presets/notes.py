"""What there is to know of presets beside their settings: where they come from, and where they differ from it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """Of one preset."""

    reference: str
    """Authors, title and year of the work that defines it."""
    summary: str
    differences: tuple[str, ...] = ()
    """What we do otherwise, and why."""
    interpretation: bool = False
    """Whether the definition could not be found, so that ours is a reading of it."""


FEDREP = (
    "Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning, "
    "2021"
)
APFL = "Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, 2020"
DITTO = "Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization, 2021"
ON_EDGES = "The original personalizes clients; here edges own what is personal, and average it over their clients."
APFL_DIFFERENCES = (
    "In a client's blend, the network for all is the one it received; the original trains both in the same steps.",
    "The blend itself is trained, at α² times the rate, which moves the personal network by α times the rate; "
    "gradients are clipped and weights decay as those of the blend.",
    "α learns once a round from the mean gradient of its local training, not from that of its first batch: the "
    "gradient that, held constant, would have moved the blend as far. Below α = 0.1 it is that of the network for all.",
)

NOTES: dict[str, Note] = {
    "ditto": Note(DITTO, "a network for all, and one of each client's own that is pulled to it"),
    "ditto-edges": Note(DITTO, "a network for all, and one of each edge's own that is pulled to it", (ON_EDGES,)),
    "fedper": Note(
        "Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, 2019",
        "one body for all, a last layer of each edge's own",
        (ON_EDGES,),
    ),
    "fedrep": Note(FEDREP, "as FedPer, but the head is trained first and then the body", (ON_EDGES,)),
    "fedrep-clients": Note(
        FEDREP,
        "as FedPer, but the head is trained first and then the body; heads belong to clients",
        ("Heads are not fine-tuned once more after the last round.",),
    ),
    "apfl": Note(APFL, "every client predicts with a mix of its own network and the one for all", APFL_DIFFERENCES),
    "apfl-edges": Note(
        APFL, "every edge predicts with a mix of its own network and the one for all", (ON_EDGES, *APFL_DIFFERENCES)
    ),
    "fedrod": Note(
        "Chen, Chao: On Bridging Generic and Personalized Federated Learning for Image Classification, 2022",
        "one body under a generic head, trained by the balanced softmax, and a head of each edge's own beside it",
        (
            ON_EDGES,
            "The personal head is trained after the body and the generic head, not in the same steps.",
            "A class that a client lacks counts as a millionth of an example in the balanced softmax.",
            "The personal head is linear and begins at zero.",
        ),
    ),
    "fedala": Note(
        "Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for Personalized Federated "
        "Learning, 2023",
        "every edge starts from a mix of its own network and the one for all, weight by weight in the last layer",
        (
            ON_EDGES,
            "The mix learns from the mean gradient of a round's local training, as many steps as that has; the "
            "original trains it before, on a sample of the data, and in the first round until it converges.",
        ),
    ),
    "fed-cam": Note(
        "Ma, Zhou, Long, Jiang, Zhang: Structured Federated Learning through Clustered Additive Modeling, 2023",
        "a network for all plus one of the cluster, trained jointly; lowest-loss assignment",
        ("Edges are clustered, not clients.", "Assignments are made every 20 rounds."),
        interpretation=True,
    ),
    "fed-cam-alternate": Note(
        "Ma, Zhou, Long, Jiang, Zhang: Structured Federated Learning through Clustered Additive Modeling, 2023",
        "as fed-cam, but one network is trained while the other keeps still",
        ("Edges are clustered, not clients.", "Each of the two networks is trained for all local epochs of a round."),
        interpretation=True,
    ),
}
