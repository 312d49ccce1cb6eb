"""Where methods come from, and where our presets differ from the originals."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """What is known of a method's origin."""

    reference: str
    """Authors, title, year."""
    summary: str
    """What it does, in short."""
    differences: tuple[str, ...] = ()
    """What our preset does otherwise."""
    interpretation: bool = False
    """Whether the original's definition, or a part of it, could not be found and is our reading."""


ON_EDGES = "Members are edges, not clients; method.unit=client has it as in the original."
ONE_ROUND = "Updates are those of one round, from wherever a cluster started, not since the first round."

NOTES: dict[str, Note] = {
    "fl-hc": Note(
        reference="Briggs, Fan, Andras: Federated learning with hierarchical clustering of local updates to improve "
        "training on non-IID data, 2020",
        summary="FedAvg for n0 rounds; then an agglomerative clustering of all updates is cut once, and every cluster "
        "goes on alone from the joint network.",
        differences=(
            ON_EDGES,
            "The paper leaves metric, linkage and threshold to the user. By default: Euclidean distance, Ward linkage, "
            "and a cut at the largest relative gap in the heights of joins, into 2 to M/2 clusters.",
            "A member without an update in that round stays in the cluster that keeps most members, instead of going "
            "to the nearest centroid: the cloud has no vector of it to compare.",
        ),
    ),
    "fedgwc": Note(
        reference="Licciardi, Leo, Fani, Caputo, Ciccone: Interaction-Aware Gaussian Weighting for Clustered Federated "
        "Learning, 2025",
        summary="Members are rewarded by how near their losses are to their cluster's mean; a cluster whose rewards "
        "have come to rest is split by spectral clustering.",
        differences=(
            ON_EDGES,
            "All members report in every round, so the weight of a round is fixed at 0.2 and the patience at 5 rounds, "
            "instead of following from the share of clients that are sampled; and epsilon is 1e-4.",
            "Traces are mean losses of epochs, not of single steps: members take different numbers of steps.",
            "Affinities compare the rows of W, as in the paper. The public code compares its columns, which are all "
            "the same where everybody reports.",
            "γ is 1, not 0.1: rows have ten entries instead of a hundred.",
            "The running change of W begins with the first change, not with 1: runs last 50 to 200 rounds, not 10,000.",
            "Losses are not augmented by Gaussian draws.",
        ),
    ),
    "chpfl": Note(
        reference="Song, Li, Jiang, Wei, Guo: CHPFL, clustered hierarchical personalized federated learning, 2025",
        summary="Members are grouped by k-means++ on their updates; every group trains from a blend of its network and "
        "the mean of all, in shares that are learned.",
        differences=(
            ON_EDGES + " The original attaches the clients of a group to one edge; here an edge forwards one sum per "
            "group, which gives the same averages.",
            "Our reading: α follows the rule of APFL at the level of groups, by the direction of a round's update, "
            "divided by its squared length.",
            "Our reading: the cloud averages groups by their data.",
            "Updates are not projected to fewer dimensions: distances are exact.",
        ),
        interpretation=True,
    ),
    "phe-fl": Note(
        reference="Lee et al.: Personalized hierarchical edge-enabled federated learning (PHE-FL), 2025",
        summary="Every edge blends its network with the mean of all other edges', by the accuracy of both on "
        "validation data.",
        differences=(
            "Blends parameters, as the authors' code does; see phe-fl-kd for distillation.",
            "Validation data are held out from training data; the authors' code takes them from the test data "
            "(method.sharing.split=test).",
        ),
    ),
    "phe-fl-kd": Note(
        reference="Lee et al.: Personalized hierarchical edge-enabled federated learning (PHE-FL), 2025",
        summary="PHE-FL as others describe it: the mean of all other edges' networks teaches an edge's clients.",
        differences=(
            "Our reading: clients distill while they train, with λ = 0.5 and temperature 3; the authors' code blends "
            "parameters.",
        ),
        interpretation=True,
    ),
    "cflhkd": Note(
        reference="Ahmad, Kanatbekova, Brandić, Aral: Clustered federated learning with hierarchical knowledge "
        "distillation, 2025",
        summary="Clusters of similar updates; members learn from the mean of all networks and the two most similar "
        "clusters, and networks are drawn towards their mean every five rounds.",
        differences=(
            "Our reading of the whole, from the abstract: agglomerative clusters by cosine, cut at 0.5, after 10 "
            "rounds and every 20; λ = 0.3 after 10 rounds, temperature 3, and ρ = 0.1.",
            "Teachers are measured on members' training data after the round before, so they travel once to be "
            "measured and once to teach.",
        ),
        interpretation=True,
    ),
    "fed-csad": Note(
        reference="Lu et al.: Fed-CSAD, 2026",
        summary="Client selection by a contextual bandit, and the mean of all edges' networks as a teacher that counts "
        "the more the better it is.",
        differences=(
            "Our reading of the whole: neither paper nor code was found, only a row of a table.",
            "λ = 0.5·σ(10·(acc(mean) − acc(own))) on validation data, temperature 3.",
        ),
        interpretation=True,
    ),
    "local": Note(
        reference="No method: the baseline without federation across edges",
        summary="Every edge averages its own clients and nobody else.",
    ),
    "fedavg-ft": Note(
        reference="Fine-tuning after FedAvg (McMahan et al.: Communication-efficient learning of deep networks from "
        "decentralized data, 2017), a baseline of the literature on personalization",
        summary="One network for all, then every edge alone from it for the last rounds.",
        differences=("Fine-tuning takes the last 10 rounds of the same total, by the same training.",),
    ),
    "pfedgraph": Note(
        reference="Ye, Ni, Wu, Chen, Wang: Personalized federated learning with inferred collaboration graphs, 2023",
        summary="Every member starts from a mix of all networks: shares near those of data, with more of those whose "
        "updates point the same way.",
        differences=(
            ON_EDGES,
            ONE_ROUND,
            "The term of the local loss that pulls clients to the direction of their mix is left out.",
            "Cosines above 0.9 are not rounded up to 1.",
        ),
    ),
}
"""By the name of the preset."""
