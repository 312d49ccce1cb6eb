"""Where presets come from, and how they differ from the originals."""

from typing import NamedTuple


class Difference(NamedTuple):
    """What is otherwise than in the original."""

    words: str
    """A sentence."""
    original: tuple[str, ...] = ()
    """Settings with which it is as in the original, some of them with kinds of benchmarks/originals.py: the page of the
    method says how many points more it then has (``python benchmarks/paired.py costs``)."""
    unpriced: str = ""
    """Why it has no price, in words that follow a colon."""


class Note(NamedTuple):
    """What a reader should know about a preset."""

    reference: str
    """Authors, title, year."""
    summary: str
    """What it does, in short."""
    differences: tuple[Difference, ...] = ()
    """From the original, but for what a comparison shares: docs/methods.md."""
    interpretation: bool = False
    """Whether the definition is our reading, because the original's could not be found in full."""


OF_CLIENTS = ("method.unit=client", "method.topology.kind=flat")
EDGES = Difference("Members are edges, not clients.", OF_CLIENTS)
EDGES_ALIKE = Difference(EDGES.words, (*OF_CLIENTS, "method.client_weight=uniform"))
OWNERS = Difference("Edges own the personal part, not clients.", ("method.personalization.owner=client",))
ALL_CLIENTS = Difference(
    "All clients train; originally a share of them.", ("method.selection={kind: random, fraction: 0.1}",)
)
UNDEFINED = "not defined in full"
FEDREP = "Collins et al.: Exploiting Shared Representations for Personalized Federated Learning, 2021"
APFL = "Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, 2020"
FEDPER = "Arivazhagan et al.: Federated Learning with Personalization Layers, 2019"
FEDROD = "Chen, Chao: On Bridging Generic and Personalized Federated Learning for Image Classification, 2022"
FEDALA = "Zhang et al.: FedALA: Adaptive Local Aggregation for Personalized Federated Learning, 2023"
DITTO = "Li et al.: Ditto: Fair and Robust Federated Learning Through Personalization, 2021"

PAPER = (
    "Bashir, Dagiuklas, Iqbal: Fed-BAC: Federated Bandit-Guided Additive Clustering in Hierarchical Federated "
    "Learning, 2026"
)
PAPER_START = "Edges start in one cluster on Fashion-MNIST, each in its own elsewhere."
SHORTER = "In runs of fewer than 100 rounds the period is a fifth of them."
OURS = "this project"
FED_CAM = (
    "Ma et al.: Structured Federated Learning through Clustered Additive Modeling, NeurIPS 2023 "
    "(https://papers.nips.cc/paper_files/paper/2023/hash/8668fdc7b2ddf55a0e235824c66f2eee-Abstract-Conference.html)"
)
CAM_SUMMARY = (
    "A shared network plus one of the cluster, trained jointly. Before every round each client joins the cluster "
    "whose sum has the lowest loss."
)
CAM_DIFFERENCES = (
    Difference(
        "Only the abstract could be read: clustering alternates with training, and each network learns what the other "
        "leaves. Steps, their order, a warm-up and the number of clusters are ours.",
        unpriced=f"{UNDEFINED}, and no public code was found",
    ),
)
AT_ONCE = Difference("Both networks are trained at once, not in turns.", ("method.personalization.order=alternate",))
PHE_FL = "Lee et al.: Personalizing Federated Learning for Hierarchical Edge Networks with Non-IID Data, 2025"
FEDAVG = "McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017"
FEDOPT = "Reddi et al.: Adaptive Federated Optimization, 2021 (Algorithm 2)"
TUNED = Difference(
    "The server's learning rate is the authors' for EMNIST.", unpriced="they tune it; tune method.step.learning_rate"
)
HIERFAVG = "Liu et al.: Client-Edge-Cloud Hierarchical Federated Learning, 2020"
FEDGWC = "Licciardi et al.: Interaction-Aware Gaussian Weighting for Clustered Federated Learning, 2025"
FEDGWC_SUMMARY = (
    "Members are rewarded for losses near their cluster's mean. A cluster whose rewards have settled is split by "
    "spectral clustering."
)
FEDGWC_TRACES = Difference(
    "Traces are mean losses of epochs, not steps.", unpriced="members take different numbers of steps"
)
IFCA = "Ghosh et al.: An Efficient Framework for Clustered Federated Learning, 2020"
CFL = (
    "Sattler, Müller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under "
    "Privacy Constraints, 2021"
)
FL_HC = (
    "Briggs, Fan, Andras: Federated learning with hierarchical clustering of local updates to improve training on "
    "non-IID data, 2020"
)
FL_HC_SUMMARY = (
    "FedAvg for n0 rounds. Then updates are clustered once, agglomeratively, and every cluster continues alone from "
    "the joint network."
)
FL_HC_DIFFERENCES = (
    Difference(
        "Distances are Euclidean and linkage is Ward's, not Manhattan and complete.",
        ("method.clustering.kind=agglomerative_manhattan",),
    ),
    Difference(
        "The cut is at the largest relative gap in the heights of joins, into 2 to M/2 clusters.",
        unpriced="the authors set a threshold by hand for each data set",
    ),
)
FEDDRIFT = "Jothimurugesan et al.: Federated Learning under Distributed Concept Drift, 2023"
FEDDRIFT_SUMMARY = (
    "A member for whom the best network becomes worse begins a cluster of its own, the others join the cluster of the "
    "best, and clusters merge, by complete linkage, where each network fits the other's data."
)
FEDDRIFT_DIFFERENCES = (
    Difference(
        "Networks are compared every 5 rounds, or five times in a shorter run; originally once in every step of time, "
        "in which the data stay as they are.",
        unpriced="a task has no steps of time",
    ),
    Difference(
        "Accuracies are compared, with δ = 0.06, as in the authors' code, not losses, as in their paper.",
        ("method.clustering.compares=losses", "method.clustering.delta=0.1"),
    ),
)
PFEDGRAPH = "Ye et al.: Personalized Federated Learning with Inferred Collaboration Graphs, 2023"
PFEDGRAPH_SUMMARY = (
    "Every member starts from a mix of all networks and keeps near its direction. Shares grow with the data, and with "
    "how alike networks have moved since the start."
)
PFEDGRAPH_DIFFERENCES = (
    Difference(
        "The local loss has −0.01 times the cosine with the mix received, the authors' approximation, with the paper's "
        "sign, not the public code's.",
        ("method.personalization.kind=directed_away",),
    ),
    Difference(
        "Cosines above 0.9 stay; the public code rounds them up to 1.",
        ("method.sharing={kind: similar_rounded, since: start}",),
    ),
)
CHPFL = "Song et al.: CHPFL: Clustered adaptive hierarchical federated learning for edge-level personalization, 2026"
CHPFL_SUMMARY = (
    "Members are grouped by k-means++ on their updates. Every group trains from a blend of its network and the mean "
    "of all, in learned shares."
)
CHPFL_DIFFERENCES = (
    Difference(
        "α follows APFL's rule for groups, by the direction of a round's update over its squared length; the cloud "
        "averages groups by data.",
        unpriced=UNDEFINED,
    ),
    Difference("Distances are exact: updates are not projected to fewer dimensions.", unpriced=UNDEFINED),
)
CFLHKD = (
    "Ahmad et al.: Clustered Federated Learning with Hierarchical Knowledge Distillation, 2025 "
    "(https://arxiv.org/abs/2512.10443)"
)
CFLHKD_SUMMARY = (
    "Members with similar updates form clusters. They learn from the mean of all networks and the two most similar "
    "clusters, and networks are drawn towards their mean every five rounds."
)
CFLHKD_DIFFERENCES = (
    Difference(
        "Only the abstract could be read: clusters of clients at edges, one model of all at the cloud, and teachers "
        "across clusters.",
        unpriced=f"{UNDEFINED}, and no public code was found",
    ),
    Difference(
        "Clusters are agglomerative by cosine, cut at 0.5, after 10 rounds and then every 20; λ = 0.3 after 10 rounds, "
        "temperature 3, ρ = 0.1. No period is longer than a fifth of the run. Teachers travel twice: to be measured on "
        "members' training data after the last round, and to teach.",
        unpriced=UNDEFINED,
    ),
)
FEDBABU = "Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification, 2022"
FEDBABU_SUMMARY = (
    "The body is trained under a fixed random head; in the last rounds every client fine-tunes all layers."
)
FINE_TUNING = Difference(
    "The last 10 rounds fine-tune, whatever their epochs; originally 5 epochs.",
    ("method.personalization.last=5", "method.sharing.alone_rounds=5"),
)
CFL_DIFFERENCES = (
    Difference("Thresholds are in units of the first rounds' updates.", ("method.clustering.thresholds=absolute",)),
)


def _heads_rest(owner: str) -> Difference:
    return Difference(
        "Heads are not fine-tuned after the last round.",
        ("task.rounds=21", f"method.personalization={{kind: head_last, owner: {owner}, body_epochs: 1}}"),
    )


def _fedrod(owner: str) -> tuple[Difference, ...]:
    return (
        Difference(
            "The personal head is trained first, not with the rest.",
            (f"method.personalization={{kind: heads_together, owner: {owner}}}",),
        ),
        Difference(
            "To the balanced softmax, a class that a client lacks is a millionth of an example.",
            unpriced="the original has the logarithm of 0",
        ),
        Difference(
            "The personal head starts at zero, not at random.",
            (f"method.personalization={{kind: random_head, owner: {owner}}}",),
        ),
    )


def _last_mix(owner: str) -> Difference:
    return Difference(
        "It predicts with the last training's mix; the original first learns a new one.",
        ("task.rounds=21", f"method.personalization={{kind: mixed_again, owner: {owner}}}"),
    )


def _public_rewards(settings: str = "") -> tuple[Difference, ...]:
    """Return what FedGWC's public code does otherwise, under the settings that a preset has."""
    public = f"method.clustering={{kind: public_rewards, {settings}"
    return (
        Difference(
            "Affinities compare the rows of W, as in the paper, not columns, as in the public code.",
            (f"{public}columns: true}}",),
        ),
        Difference("The running change of W begins with the first change, not with 1.", (f"{public}from_one: true}}",)),
        Difference(
            "Losses are not augmented by Gaussian draws to 100, as in the public code.", (f"{public}draws: 100}}",)
        ),
    )


def _note(reference: str, summary: str, *differences: Difference, interpretation: bool = False) -> Note:
    return Note(reference, summary, differences, interpretation)


NOTES: dict[str, Note] = {
    "fedfork": _note(
        OURS,
        "Edges train one model together, the sum of two networks or one LSTM, until a client has about a thousand "
        "steps left. Then they fork: each continues in a cluster of its own, unless the shared model is better, and "
        "clusters that fit merge again. Edges predict with a blend of their own model and the mean of all. All clients "
        "train except those whose labels cannot be learned.",
    ),
    "fed-bac": _note(
        PAPER,
        "A network shared by all plus one of the cluster predicts (Eq. 2). A LinUCB bandit assigns edges to clusters "
        "(Eqs. 7 to 10), and Thompson sampling selects clients (Eqs. 11 and 12). Edges may move every 20 rounds. "
        f"{SHORTER}",
        Difference(
            "Selection is rewarded on validation data, not on the test data that are reported.",
            ("method.selection.reward_split=test",),
        ),
        Difference("What the paper leaves open is chosen by us.", unpriced="docs/open-questions.md says what and why"),
    ),
    "paper-text": _note(PAPER, f"Fed-BAC by the paper's text, with rewards on test data. {PAPER_START}"),
    "paper-figures": _note(PAPER, f"Fed-BAC by the paper's figures: edges move every round. {PAPER_START}"),
    "fed-bac-random": _note(PAPER, "Fed-BAC without Thompson sampling: 80 % of the clients, at random."),
    "fed-bac-full": _note(PAPER, "Fed-BAC without selection: all clients train."),
    "singletons": _note(OURS, "Fed-BAC without its cluster bandit: every edge keeps its own cluster."),
    "linucb-isolated": _note(OURS, "Fed-BAC without the shared network: clusters have nothing in common."),
    "fedbac-plus": _note(
        OURS,
        "The predecessor of fedfork: clusters merge where their networks fit each other's data, and share them once "
        "they overfit; clients are credited one by one.",
    ),
    "fedavg": _note(
        FEDAVG,
        "Every client trains the shared network, and the cloud averages by data: w ← Σ_i (n_i / n) w_i.",
        ALL_CLIENTS,
    ),
    "fedprox": _note(
        "Li et al.: Federated Optimization in Heterogeneous Networks, 2020",
        "FedAvg whose clients minimize F_i(w) + (μ/2)‖w − w^t‖²; w^t is what they received.",
        Difference(
            "The pull is clipped with the gradient.",
            ("method.personalization={kind: pulled_whole, proximal: 0.01}",),
        ),
        Difference(
            "μ = 0.01, one of the authors' values.", unpriced="they tune it; tune method.personalization.proximal"
        ),
    ),
    "scaffold": _note(
        "Karimireddy et al.: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, 2020",
        "Clients correct their gradients by the mean of all clients' less their own of their last training (option "
        "II). This sends twice FedAvg's bytes.",
    ),
    "feddyn": _note(
        "Acar et al.: Federated Learning Based on Dynamic Regularization, 2021",
        "Clients learn with a linear term h_i and a pull to the network they received, so that all agree in the end; "
        "the server corrects the average by the mean h_i.",
        Difference("The pull is clipped with the gradient.", ("method.personalization.kind=dynamic_pulled_whole",)),
        Difference("α = 0.01, one of the authors' values.", unpriced="they tune it; tune both α"),
    ),
    "mtgc": _note(
        "Fang et al.: Hierarchical Federated Learning with Multi-Timescale Gradient Correction, 2024",
        "Clients correct their gradients towards their edge's after each of two edge averages a round, and towards "
        "everybody's after the round. The first correction restarts at 0 each round, as in the authors' code. Two "
        "corrections travel with each client's network, one between edge and cloud.",
        Difference(
            "Clients may take different numbers of steps: changes are divided by how far SGD with momentum moves in as "
            "many.",
            unpriced="originally all take as many",
        ),
    ),
    "fedavgm": _note(
        "Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual "
        "Classification, 2019",
        "FedAvg whose server adds a round's mean change to a velocity, v ← β v + Δ, and moves by it.",
        ALL_CLIENTS,
    ),
    "fedadam": _note(
        FEDOPT,
        "FedAvg whose server takes a step of Adam, with a round's mean change as the gradient.",
        ALL_CLIENTS,
        TUNED,
    ),
    "fedyogi": _note(
        FEDOPT,
        "FedAvg whose server takes a step of Yogi, with a round's mean change as the gradient.",
        ALL_CLIENTS,
        TUNED,
    ),
    "hierfavg": _note(
        HIERFAVG,
        "Edges average their clients, w_m = Σ_i (n_i / n_m) w_i, and the cloud the edges, w = Σ_m (n_m / n) w_m. "
        "With one edge average a round and all clients, as in the paper, this is FedAvg.",
    ),
    "hierfavg-wide": _note(PAPER, "HierFAVG with a network as large as Fed-BAC's two together."),
    "hierfavg-periods": _note(
        HIERFAVG,
        "HierFAVG with κ1 local epochs and κ2 = 2 edge averages per cloud average.",
    ),
    "abad": _note(
        "Abad et al.: Hierarchical Federated Learning Across Heterogeneous Cellular Networks, 2020",
        "HierFAVG over sparse links. A client sends the largest 1 % of its update, other links the largest 10 %, per "
        "tensor; the rest is added the next time.",
        Difference(
            "A client sends the change of its epochs, not one step's gradient, without momentum correction.",
            unpriced="with a step a round nothing is learned in as many rounds as others need",
        ),
    ),
    "ifca": _note(
        IFCA,
        "Before every round each client joins the cluster whose network has the lowest loss on its data. Networks "
        "start apart.",
        ALL_CLIENTS,
    ),
    "ifca-edges": _note(
        IFCA,
        "IFCA on edges, which count alike, as members originally do.",
        EDGES_ALIKE,
    ),
    "ifca-paper": _note(
        f"{IFCA}. As run in: {PAPER}",
        "IFCA as the authors of Fed-BAC ran it; ifca-edges is a fairer version. Edges begin one cluster after another, "
        "all from the same network, and move only every 20 rounds, for a loss below 95 % of the current one. "
        f"{SHORTER}",
    ),
    "cfl": _note(
        CFL,
        "Clients start in one cluster. A cluster splits in two, by the cosine of updates, once its mean update is "
        "small while a single one is large.",
        *CFL_DIFFERENCES,
    ),
    "cfl-edges": _note(
        CFL,
        "CFL on edges, by the averages of their clients' updates, which are smaller.",
        *CFL_DIFFERENCES,
        EDGES_ALIKE,
    ),
    "fedbabu": _note(FEDBABU, FEDBABU_SUMMARY, FINE_TUNING),
    "fedbabu-edges": _note(FEDBABU, "FedBABU on edges.", FINE_TUNING, EDGES),
    "ditto": _note(DITTO, "A shared network, and one per client that is pulled towards it and predicts."),
    "ditto-edges": _note(DITTO, "Ditto with a personal network per edge.", OWNERS),
    "fedper": _note(FEDPER, "One body for all, and a last layer per client."),
    "fedper-edges": _note(FEDPER, "FedPer with a head per edge.", OWNERS),
    "fedrep": _note(
        FEDREP,
        "Like FedPer, but the head is trained first and then the body.",
        _heads_rest("client"),
    ),
    "fedrep-edges": _note(FEDREP, "FedRep with a head per edge.", _heads_rest("edge"), OWNERS),
    "apfl": _note(APFL, "Every client predicts with a mix of its network and the shared one."),
    "apfl-edges": _note(APFL, "APFL with a personal network per edge.", OWNERS),
    "pfedme": _note(
        "Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes, 2020",
        "A shared network and one per client, which predicts, each pulled towards the other.",
    ),
    "fedrod": _note(
        FEDROD,
        "One body under a generic head, trained by the balanced softmax, and a head per client.",
        *_fedrod("client"),
    ),
    "fedrod-edges": _note(
        FEDROD,
        "FedRoD with a personal head per edge.",
        *_fedrod("edge"),
        OWNERS,
    ),
    "fedala": _note(
        FEDALA,
        "Every client starts from a mix of its network and the shared one, weight by weight in the last layer.",
        _last_mix("client"),
    ),
    "fedala-edges": _note(FEDALA, "FedALA with a personal network per edge.", _last_mix("edge"), OWNERS),
    "fed-cam": _note(FED_CAM, CAM_SUMMARY, *CAM_DIFFERENCES, AT_ONCE, interpretation=True),
    "fed-cam-edges": _note(FED_CAM, "Fed-CAM on edges.", *CAM_DIFFERENCES, AT_ONCE, EDGES, interpretation=True),
    "fed-cam-alternate": _note(
        FED_CAM,
        "Like fed-cam, but in turns: first the cluster's network learns what the shared one leaves, then the reverse.",
        *CAM_DIFFERENCES,
        Difference("Each of the two networks is trained for all local epochs of a round.", unpriced=UNDEFINED),
        interpretation=True,
    ),
    "fl-hc": _note(FL_HC, FL_HC_SUMMARY, *FL_HC_DIFFERENCES),
    "fl-hc-edges": _note(FL_HC, "FL+HC on edges.", *FL_HC_DIFFERENCES, EDGES),
    "fedgwc": _note(
        FEDGWC,
        FEDGWC_SUMMARY,
        Difference(
            "Half of all clients train in a round; originally a tenth of each cluster, for 10,000 rounds. In under "
            "about a hundred rounds W seldom comes to rest, and nothing splits.",
            ("method.selection.fraction=0.1",),
        ),
        FEDGWC_TRACES,
        *_public_rewards("discount: null, patience: null, gamma: 0.1, epsilon: 1.0e-5, "),
    ),
    "fedgwc-edges": _note(
        FEDGWC,
        "FedGWC on edges, which all report in every round. Even IID members may part: W is scaled by its own range, so "
        "small lasting differences of losses look large.",
        FEDGWC_TRACES,
        *_public_rewards(),
        EDGES,
        Difference(
            "As nobody is sampled, a round's weight is fixed at 0.2, the patience at 5 rounds, epsilon at 1e-4 and γ "
            "at 1, not 0.1. Rows of W are then constant: what is left is distance from the mean loss.",
            (
                "method.clustering={kind: gaussian_rewards, discount: null, patience: null, gamma: 0.1, "
                "epsilon: 1.0e-5}",
            ),
        ),
    ),
    "feddrift": _note(FEDDRIFT, FEDDRIFT_SUMMARY, *FEDDRIFT_DIFFERENCES),
    "feddrift-edges": _note(FEDDRIFT, "FedDrift on edges.", *FEDDRIFT_DIFFERENCES, EDGES),
    "chpfl": _note(CHPFL, CHPFL_SUMMARY, *CHPFL_DIFFERENCES, interpretation=True),
    "chpfl-edges": _note(
        CHPFL, "CHPFL on edges.", *CHPFL_DIFFERENCES, Difference(EDGES.words, OF_CLIENTS[:1]), interpretation=True
    ),
    "phe-fl": _note(
        PHE_FL,
        "Every edge blends its network with the mean of all others', in proportion to both's accuracy on validation "
        "data, as in the authors' code; phe-fl-kd distils.",
        Difference(
            "Validation data come from training data; in the authors' code from test data.",
            ("method.sharing.split=test",),
        ),
    ),
    "phe-fl-kd": _note(
        PHE_FL,
        "PHE-FL as others describe it: the mean of the other edges' networks teaches an edge's clients.",
        Difference(
            "Clients distil while they train, with λ = 0.5 and temperature 3; the authors' code blends parameters.",
            unpriced=UNDEFINED,
        ),
        interpretation=True,
    ),
    "cflhkd": _note(CFLHKD, CFLHKD_SUMMARY, *CFLHKD_DIFFERENCES, interpretation=True),
    "cflhkd-edges": _note(
        CFLHKD,
        "CFLHKD on edges.",
        *CFLHKD_DIFFERENCES,
        Difference(EDGES.words, OF_CLIENTS[:1]),
        interpretation=True,
    ),
    "fed-csad": _note(
        "Lu et al.: Fed-CSAD, 2026 (known only from Table I of the Fed-BAC paper)",
        "A contextual bandit selects clients. The mean of all edges' networks teaches every edge, the more the better "
        "it is.",
        Difference(
            "A client's context is its loss, data, rounds since its selection and speed, without the entropy of "
            "labels. λ = 0.5·σ(10·(acc(mean) − acc(own))) on validation data, temperature 3.",
            unpriced=UNDEFINED,
        ),
        interpretation=True,
    ),
    "local": _note(
        "no paper: the baseline without federation across edges",
        "Every edge averages its own clients only.",
    ),
    "fedavg-ft": _note(
        f"fine-tuning after FedAvg, a common baseline of personalization ({FEDAVG})",
        "One network for all; in the last 10 rounds every edge continues from it alone.",
    ),
    "pfedgraph": _note(PFEDGRAPH, PFEDGRAPH_SUMMARY, *PFEDGRAPH_DIFFERENCES),
    "pfedgraph-edges": _note(PFEDGRAPH, "pFedGraph on edges.", *PFEDGRAPH_DIFFERENCES, EDGES),
    "power-of-choice": _note(
        "Cho, Wang, Joshi: Towards Understanding Biased Client Selection in Federated Learning, 2022",
        "Of d candidates, drawn by data, the B with the largest loss of the received model train; with variant=last "
        "(rpow-d) the largest loss in their last training. With p = 0.8 at most a fifth of the clients is turned down; "
        "a smaller p shows more of the rule. cpow-d, which measures on one batch, is left out.",
    ),
    "ucb-cs": _note(
        "Cho et al.: Bandit-based Communication-Efficient Client Selection Strategies for Federated Learning, 2020",
        "The B clients with the largest upper confidence bounds of their discounted losses train.",
        Difference(
            "ln T is 0 while the discounted number of rounds T is below 1; a selected client without an update counts "
            "as reporting its mean loss.",
            unpriced="the original has no rule for either",
        ),
    ),
    "oort": _note(
        "Lai et al.: Oort: Efficient Federated Learning via Guided Participant Selection, 2021",
        "Clients with high losses are exploited, new ones explored, slow ones penalized, by a pacer's limit. Constants "
        "are the public code's.",
        Difference(
            "Only task.world.over_selection selects spare clients; the original selects 1.1 times as many.",
            ("task.world={over_selection: 1.1}",),
        ),
        Difference(
            "The first round only explores, and a selected client that never returned an update counts as the mean of "
            "the others.",
            unpriced="the public code fails there",
        ),
        Difference("ε is 0 once no client is new, a round earlier.", ("method.selection.kind=oort_late",)),
        Difference(
            "The pacer sums the utility of all selected clients that are not new, also of those filling the budget.",
            ("method.selection.kind=oort_paced",),
        ),
    ),
    "cs-ucb": _note(
        "Xia et al.: Multi-Armed Bandit-Based Client Scheduling for Federated Learning, 2020",
        "The quickest clients train, by upper confidence bounds; with fairness above 0 (CS-UCB-Q) also those owed "
        "rounds. With B close to N_m the bonus outweighs rewards, and clients take turns.",
        Difference(
            "Unless set, τ_max is the time expected of the edge's slowest client, and dropping out has the reward 0.",
            unpriced="the original gives no value for either",
        ),
    ),
    "cocs": _note(
        "Qu et al.: Context-Aware Online Client Selection for Hierarchical Federated Learning, 2022",
        "Clients seldom selected in their cell of downlink and speed come first, then those whose updates arrived most "
        "often.",
        Difference(
            "Every client costs 1 and has one edge, so the budget is max(1, ⌊p·N_m⌋) clients; devices and links are "
            "constant, so clients stay in their cells.",
            unpriced="a task has no prices, no clients between edges and no links that change",
        ),
        Difference(
            "h = 3 and K(t) = 0.1 t^(2/5) ln t; ten times that would only explore in 200 rounds.",
            unpriced="the original leaves both to its analysis",
        ),
    ),
    "trindade": _note(
        "Trindade, da Fonseca: Client Selection in Hierarchical Federated Learning, 2024",
        "The B clients with the best score train: the mean of speed, link, data, low training loss and updates that "
        "counted, each scaled to 0 to 1 within the edge.",
        Difference(
            "The score follows what others say about it, without energy, which simulated devices do not have.",
            unpriced=UNDEFINED,
        ),
        interpretation=True,
    ),
}
"""By the name of the preset."""
