"""Where presets come from, and how they differ from the originals."""

from typing import NamedTuple


class Note(NamedTuple):
    """What is to be known of a preset."""

    reference: str
    """Authors, title, year."""
    summary: str
    """What it does, in short."""
    differences: tuple[str, ...] = ()
    """From the original."""
    interpretation: bool = False
    """Whether the definition is our reading, because the original's could not be found."""


PER_EDGE = "The original has two tiers; here every edge selects among its own clients, and B is max(1, ⌊p·N_m⌋)."
BY_DATA = "Edges weight clients by their data; the original takes the plain mean."
ON_EDGES = "Members are edges, not clients; method.unit=client has it as in the original."
ONE_ROUND = "Updates are those of one round, from wherever a cluster started, not since the first round."
FEDREP = (
    "Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning, "
    "2021"
)
APFL = "Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, 2020"
DITTO = "Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization, 2021"
EDGES_OWN = "The original personalizes clients; here edges own what is personal, and average it over their clients."
APFL_DIFFERENCES = (
    "In a client's blend, the network for all is the one it received; the original trains both in the same steps.",
    "The blend itself is trained, at α² times the rate, which moves the personal network by α times the rate; "
    "gradients are clipped and weights decay as those of the blend.",
    "α learns once a round from the mean gradient of its local training, not from that of its first batch: the "
    "gradient that, held constant, would have moved the blend as far. Below α = 0.1 it is that of the network for all.",
)

PAPER = "Fed-BAC: Federated Bandit-Guided Additive Clustering in Hierarchical Federated Learning, 2026"
OURS = "fedbac itself"
FEDAVG = (
    "McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from "
    "Decentralized Data, 2017"
)
HIERFAVG = "Liu, Zhang, Song, Letaief: Client-Edge-Cloud Hierarchical Federated Learning, 2020"
IFCA = "Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, 2020"
CFL = (
    "Sattler, Müller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under "
    "Privacy Constraints, 2021"
)

NOTES: dict[str, Note] = {
    "fed-bac": Note(
        reference=PAPER,
        summary="Predictions are the sum of a network for all and one of the cluster (Eq. 2); a LinUCB bandit assigns "
        "edges to clusters (Eqs. 7 to 10), and Thompson sampling selects clients (Eqs. 11 and 12).",
        differences=(
            "The reward of selection is measured on validation data, not on the test data of the reported metric.",
            "What the paper leaves open, and what we chose, is on the page of open questions.",
        ),
    ),
    "paper-text": Note(
        reference=PAPER,
        summary="Fed-BAC with every choice as the text has it, rewards on test data included.",
    ),
    "paper-figures": Note(
        reference=PAPER,
        summary="Fed-BAC as its figures show it: edges are assigned anew in every round.",
    ),
    "fed-bac-random": Note(reference=PAPER, summary="Fed-BAC without Thompson sampling: p = 0.8 at random."),
    "fed-bac-full": Note(reference=PAPER, summary="Fed-BAC without selection: everybody trains."),
    "singletons": Note(reference=OURS, summary="Fed-BAC without its cluster bandit: every edge is a cluster for good."),
    "linucb-isolated": Note(reference=OURS, summary="Fed-BAC without the network for all: clusters share nothing."),
    "fedbac-plus": Note(
        reference=OURS,
        summary="Clusters merge where validation data say that it pays, share once they have overfitted, and credit "
        "clients one by one.",
    ),
    "fedavg": Note(
        reference=FEDAVG,
        summary="Every client trains the network for all, and the cloud averages by data: w ← Σ_i (n_i / n) w_i.",
        differences=("Everybody trains; method.selection.fraction=0.1 is the original's usual share.",),
    ),
    "fedprox": Note(
        reference="Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, 2020",
        summary="FedAvg whose clients minimize F_i(w) + (μ/2)‖w − w^t‖², w^t being what they received.",
        differences=(
            "μ = 0.01; the pull is part of the gradient that is clipped.",
            "Stragglers do not send half of a round.",
        ),
    ),
    "hierfavg": Note(
        reference=HIERFAVG,
        summary="Edges average their clients, the cloud averages the edges. As the paper runs it: one edge average a "
        "round, everybody trains, which is FedAvg.",
    ),
    "hierfavg-wide": Note(
        reference=PAPER, summary="HierFAVG with a wider network, of as many weights as Fed-BAC's two."
    ),
    "hierfavg-periods": Note(
        reference=HIERFAVG,
        summary="κ1 local epochs, κ2 = 2 edge averages for each average of the cloud.",
        differences=("κ1 counts epochs (task.training.epochs), not steps.",),
    ),
    "abad": Note(
        reference="Abad, Ozfatura, Gündüz, Erçetin: Hierarchical Federated Learning Across Heterogeneous Cellular "
        "Networks, 2020",
        summary="HierFAVG over sparse links: 1 % of a client's update and 10 % of what passes other links are sent, "
        "the largest entries of each tensor; what is left out is added the next time.",
        differences=(
            "A client sends what some epochs have changed, not the gradient of one step, and corrects no momentum.",
            "The model of cellular latency is left out; task.world simulates times.",
        ),
    ),
    "ifca": Note(
        reference=IFCA,
        summary="Every edge joins the cluster whose network has the lowest loss on its data. As the paper runs it: 5 "
        "clusters, every 20 rounds, and only for a loss below 95 % of the current one.",
        differences=(ON_EDGES, "All clusters start from the same network."),
    ),
    "ifca-original": Note(
        reference=IFCA,
        summary="IFCA on edges by its own rules: every round, no threshold, distinct networks.",
        differences=(ON_EDGES,),
    ),
    "ifca-clients": Note(
        reference=IFCA,
        summary="IFCA on clients, two tiers, every round, no threshold, distinct initial networks.",
        differences=("Everybody takes part in every round.", "Updates are averaged by data."),
    ),
    "cfl": Note(
        reference=CFL,
        summary="One cluster that splits in two, by the cosine of updates, where its mean update is small and a single "
        "one is large.",
        differences=(
            ON_EDGES,
            "Thresholds count in units of the first rounds' updates: those of edges are smaller than those of clients.",
            "Networks are averaged by data, and so is the mean update; the public code takes plain means.",
        ),
    ),
    "cfl-clients": Note(
        reference=CFL,
        summary="CFL on clients, two tiers: every client's update is compared with every other's.",
        differences=("As for cfl, but for the members.",),
    ),
    "fedbabu": Note(
        reference="Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification, 2022",
        summary="The body learns under a head that stays random; in the last rounds everything is fine-tuned.",
        differences=(
            ON_EDGES.replace("; method.unit=client has it as in the original", ""),
            "Fine-tuning takes the last 10 rounds of the same total.",
        ),
    ),
    "ditto": Note(DITTO, "a network for all, and one of each client's own that is pulled to it"),
    "ditto-edges": Note(DITTO, "a network for all, and one of each edge's own that is pulled to it", (EDGES_OWN,)),
    "fedper": Note(
        "Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, 2019",
        "one body for all, a last layer of each edge's own",
        (EDGES_OWN,),
    ),
    "fedrep": Note(FEDREP, "as FedPer, but the head is trained first and then the body", (EDGES_OWN,)),
    "fedrep-clients": Note(
        FEDREP,
        "as FedPer, but the head is trained first and then the body; heads belong to clients",
        ("Heads are not fine-tuned once more after the last round.",),
    ),
    "apfl": Note(APFL, "every client predicts with a mix of its own network and the one for all", APFL_DIFFERENCES),
    "apfl-edges": Note(
        APFL, "every edge predicts with a mix of its own network and the one for all", (EDGES_OWN, *APFL_DIFFERENCES)
    ),
    "fedrod": Note(
        "Chen, Chao: On Bridging Generic and Personalized Federated Learning for Image Classification, 2022",
        "one body under a generic head, trained by the balanced softmax, and a head of each edge's own beside it",
        (
            EDGES_OWN,
            "The personal head is trained before the body and the generic head, not in the same steps.",
            "A class that a client lacks counts as a millionth of an example in the balanced softmax.",
            "The personal head is linear and begins at zero.",
        ),
    ),
    "fedala": Note(
        "Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for Personalized Federated "
        "Learning, 2023",
        "every edge starts from a mix of its own network and the one for all, weight by weight in the last layer",
        (
            EDGES_OWN,
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
"""By the name of the preset."""
