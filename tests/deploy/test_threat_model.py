"""What the threat model says that sites can learn and do, where no other test shows it."""

import shutil
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedbac import Perceptron
from fedbac.config.experiment import Training
from fedbac.deploy.local_data import LocalData
from fedbac.deploy.pki import authority
from fedbac.deploy.pki.authority import Authority
from fedbac.deploy.pki.kits import FederationFolder, Kit, KitSigner
from fedbac.deploy.protocol.heads import KINDS, kind_of
from fedbac.deploy.protocol.messages import sent
from fedbac.deploy.protocol.wire import decode, encode
from fedbac.deploy.roles.releases import Releases
from fedbac.errors import DeployError
from tests.deploy.folders import make
from tests.deploy.in_memory import Answer, MemoryChildren
from tests.deploy.links import FIRST, PATIENCE, Identities, child, edge
from tests.deploy.proxy import proxy
from tests.deploy.small import small
from tests.deploy.test_authority import shake_hands
from tests.deploy.test_privacy import SECRET, parts, released

# ------------------------------------------------------------------------------------------- who learns what


def answered(links: MemoryChildren) -> list[tuple[str, bytes, bytes]]:
    """Return who is asked what on some links from now on, and answers what."""
    words: list[tuple[str, bytes, bytes]] = []

    def noting(name: str, answer: Answer) -> Answer:
        def note(payload: bytes, gone: threading.Event) -> bytes:
            said = answer(payload, gone)
            words.append((name, payload, said))
            return said

        return note

    links.answers = {name: noting(name, answer) for name, answer in links.answers.items()}
    return words


@pytest.mark.covering
@pytest.mark.parametrize(("method", "cloud"), [("hierfavg", False), ("fedavg", True)])
@pytest.mark.parametrize("settings", [(), SECRET], ids=["plain", "secret sums"])
def test_who_sees_the_update_of_one_client(method: str, cloud: bool, settings: tuple[str, ...], tmp_path: Path) -> None:
    """Its edge, and without tiers the cloud too; nobody where there are secret sums."""
    federation = small(method, *settings, rounds=1).federation(tmp_path)
    to_cloud, to_edge = answered(federation.cloud), answered(federation.children("edge-0"))
    federation.run()
    at_edge, at_cloud = {kind_of(said) for _, _, said in to_edge}, set[str]()
    for _, _, said in to_cloud:
        word = decode(said, KINDS)
        passed_on = word.tensors.values() if word.kind == "relayed" else ()
        at_cloud |= {word.kind, *(kind_of(answer.numpy().tobytes()) for answer in passed_on)}
    shown, hidden = ("secret", "update") if settings else ("update", "secret")
    assert shown in at_edge
    assert (shown in at_cloud) == cloud
    assert hidden not in at_edge | at_cloud


def test_the_cloud_sees_updates_where_clients_are_clustered_by_them(tmp_path: Path) -> None:
    federation = small("cfl", "method.topology=hierarchical", rounds=1).federation(tmp_path)
    heard = answered(federation.cloud)
    federation.run()
    rows = {
        name: {len(rows) for path, rows in decode(said, KINDS).tensors.items() if "/updates/" in path}
        for name, _, said in heard
        if kind_of(said) == "trained"
    }
    assert rows == {"edge-0": {2}, "edge-1": {3}}, "one of each client"


def test_an_update_tells_the_image_that_it_was_learned_from(tmp_path: Path) -> None:
    """Of a linear network and one image: what a class's weights changed by, over what its bias did, is the image."""
    learning = Training(epochs=1, learning_rate=0.1)
    tiny = small("hierfavg", "method.selection.fraction=1.0", rounds=1, training=learning)
    task = tiny.experiment.task.model_copy(update={"network": Perceptron(hidden=())})
    experiment = tiny.experiment.model_copy(update={"task": task})
    one = {f"{letter}_train": tiny.sites[FIRST][f"{letter}_train"][:1] for letter in "xy"}
    sites = {**tiny.sites, FIRST: {**tiny.sites[FIRST], **one}}
    federation = replace(tiny, experiment=experiment, sites=sites).federation(tmp_path)
    enrolled = federation.enrol()
    heard = answered(federation.children("edge-0"))
    federation.run(enrolled=enrolled)
    (pair,) = ((asked, said) for name, asked, said in heard if name == FIRST and kind_of(said) == "update")
    before, after = (decode(data, KINDS).tensors for data in pair)
    weight, bias = (
        (after[f"trained/parts_C/global/1.{name}"] - before[f"train/bank/global/1.{name}"])[0]
        for name in ("weight", "bias")
    )
    place = int(bias.abs().argmax())
    mean, deviation = enrolled.normalization
    image = (weight[place] / bias[place]).numpy() * deviation[0] + mean[0]
    np.testing.assert_allclose(image * 255, one["x_train"].reshape(-1), atol=1)


def test_who_sees_totals_with_and_without_a_client_knows_what_it_holds(tmp_path: Path) -> None:
    """A cloud that lies asks an edge to leave one out."""
    federation = small("hierfavg").federation(tmp_path)
    plain = federation.experiment.model_dump(mode="json")

    def totals(*without: str) -> np.ndarray:
        asking = sent("enroll", experiment=plain, only=(), without=without)
        answer = federation.edges["edge-0"].answer(asking, threading.Event())
        counts = decode(answer, ("roster",)).head["together"]["classes"]
        return np.pad(counts, (0, 10 - len(counts)))

    holds = np.concatenate([federation.data[FIRST][f"y_{split}"] for split in ("train", "validation")])
    assert (totals() - totals(FIRST)).tolist() == np.bincount(holds, minlength=10).tolist()


def test_models_with_and_without_a_client_s_label_differ(tmp_path: Path) -> None:
    """So whoever has models and all other data knows it: nothing bounds what models tell, but for noise."""
    federation = small("hierfavg", "method.selection.fraction=1.0", rounds=1)
    mine = federation.sites[FIRST]
    other = {**mine, "y_train": np.r_[9 - mine["y_train"][:1], mine["y_train"][1:]]}
    changed = replace(federation, sites={**federation.sites, FIRST: other})
    models = [one.federation(tmp_path / str(number)).run().models for number, one in enumerate((federation, changed))]
    one, same = (found.parts["global"]["1.weight"] for found in models)
    assert not torch.equal(one, same)


def test_who_has_the_same_data_recognizes_their_hash(tmp_path: Path) -> None:
    federation = small("hierfavg")
    enrolled = federation.federation(tmp_path).enrol()

    def guessed(**other: np.ndarray) -> str:
        arrays = {**federation.sites[FIRST], **other}
        x, y = ({name[2:]: array for name, array in arrays.items() if name[0] == letter} for letter in "xy")
        return LocalData(x, y).fingerprint

    known = enrolled.charter.holdings[FIRST].fingerprint
    assert guessed() == known
    assert guessed(y_train=9 - federation.sites[FIRST]["y_train"]) != known


def test_of_two_clients_each_learns_from_the_mean_pixel_who_has_the_brighter_images(tmp_path: Path) -> None:
    federation = small("hierfavg", counts=(2,))
    dark = {name: array // 4 if name[0] == "x" else array for name, array in federation.sites[FIRST].items()}
    enrolled = replace(federation, sites={**federation.sites, FIRST: dark}).federation(tmp_path).enrol()
    mean = enrolled.normalization[0][0] * 255
    mine, theirs = (
        np.concatenate([arrays["x_train"], arrays["x_validation"]])
        for arrays in (dark, federation.sites["edge-0-client-1"])
    )
    assert mine.mean() < mean
    # With a guess of how many the other has, it knows their mean.
    guessed = (mean * (len(mine) + len(theirs)) - mine.sum() / mine[0].size) / len(theirs)
    assert guessed == pytest.approx(theirs.mean(), rel=1e-3)


def test_who_listens_on_a_link_sees_how_much_is_said(identities: Identities) -> None:
    heard = []
    with (
        edge(identities) as parent,
        proxy(parent.children.port) as link,
        child(identities.of(FIRST), link.address, FIRST),
    ):
        parent.wait_for(FIRST)
        for size in (10_000, 110_000):
            before = len(link.heard)
            assert not parent.children.call({FIRST: bytes(size)}, PATIENCE)[1]
            heard.append(len(link.heard) - before)
    assert heard[1] - heard[0] == pytest.approx(2 * 100_000, rel=0.05), "there and back"


def test_who_listens_on_a_link_reads_nothing(identities: Identities) -> None:
    message = b"a word that is nowhere else" * 100
    with (
        edge(identities) as parent,
        proxy(parent.children.port) as link,
        child(identities.of(FIRST), link.address, FIRST),
    ):
        parent.wait_for(FIRST)
        assert parent.children.call({FIRST: message}, PATIENCE) == ({FIRST: message}, {})
        assert len(link.heard) > 2 * len(message)
        assert b"nowhere" not in link.heard


def test_what_a_site_keeps_is_readable_by_its_user_only(tmp_path: Path) -> None:
    tiny = small("ditto", rounds=2)
    tiny.federation(tmp_path).run()
    kept = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert len(kept) > 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}


def test_what_a_site_keeps_is_not_encrypted(tmp_path: Path) -> None:
    federation = small("ditto", rounds=1).federation(tmp_path)
    models = federation.run().models
    kept = b"".join(path.read_bytes() for path in (tmp_path / "state" / FIRST).rglob("*") if path.is_file())
    assert models.parts["global"]["1.weight"].numpy().tobytes() in kept


# -------------------------------------------------------------------------------------------- who can do what


def test_a_liar_in_a_secret_sum_is_not_noticed(tmp_path: Path) -> None:
    reached = []
    for lie in (0, 2**24):
        tiny = small("hierfavg", *SECRET, "method.selection.fraction=1.0", rounds=1)
        federation = tiny.federation(tmp_path / str(lie))
        enrolled = federation.enrol()
        sums = federation.shops[FIRST].sums
        trained = sums._trained

        def lying(said: Any, lie: int = lie, trained: Any = trained) -> Any:
            words, work = trained(said)
            np.add(words.network, np.uint32(lie), out=words.network)
            return words, work

        sums._trained = lying  # type: ignore[method-assign]
        (record,) = federation.run(enrolled=enrolled).records
        assert (record["selected"], record["failed"]) == ([[0, 1], [2, 3, 4]], [])
        reached.append(record["accuracy_per_edge"])
    assert reached[0] != reached[1]


def test_an_edge_leaves_out_whom_it_wants(tmp_path: Path) -> None:
    """It says of one that it is away: for the cloud it is."""
    federation = small("hierfavg", "method.selection.fraction=1.0").federation(tmp_path)
    enrolled = federation.enrol()
    links = federation.children("edge-0")
    heard = answered(links)
    links.lost = {FIRST}
    for record in federation.run(enrolled=enrolled).records:
        assert record["selected"] == [[1], [2, 3, 4]]
    assert {name for name, _, _ in heard} == {"edge-0-client-1"}


def test_an_update_that_is_wrong_but_no_larger_than_others_is_accepted(tmp_path: Path) -> None:
    """A client says the opposite of what it learned: nobody is named, and the models are others."""
    honest = small("hierfavg", "method.selection.fraction=1.0").federation(tmp_path / "honest").run()
    federation = small("hierfavg", "method.selection.fraction=1.0").federation(tmp_path)
    links = federation.children("edge-0")
    learned = links.answers[FIRST]

    def opposite(payload: bytes, gone: threading.Event) -> bytes:
        said = learned(payload, gone)
        if kind_of(said) != "update":
            return said
        sent, update = decode(payload, KINDS).tensors, decode(said, KINDS)
        mine = {
            path: 2 * sent[path.replace("trained/parts_C", "train/bank")] - value if "parts_C" in path else value
            for path, value in update.tensors.items()
        }
        return encode("update", update.head, mine)

    links.answers[FIRST] = opposite
    run = federation.run()
    for record in run.records:
        assert (0 in record["selected"][0], record["failed"], "reasons" in record) == (True, [], False)
    assert run.records[-1]["loss"] != honest.records[-1]["loss"]


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> FederationFolder:
    return make(tmp_path_factory.mktemp("threats") / "clinic", 1, 1)


def test_whoever_has_the_authority_s_key_can_pose_as_any_site(clinic: FederationFolder, tmp_path: Path) -> None:
    stolen = Authority.load(Path(shutil.copytree(clinic.path / "authority", tmp_path / "stolen")))
    posing = Path(shutil.copytree(clinic.kit("edge-0"), tmp_path / "posing"))
    pair = stolen.issue({"edge-0": "edge"})["edge-0"]
    (posing / "site.key").write_bytes(pair.key)
    (posing / "site.crt").write_bytes(pair.certificate)
    shake_hands(clinic.kit("cloud"), posing, "cloud")
    shake_hands(posing, clinic.kit("edge-0-client-0"), "edge-0")


def test_whoever_has_the_authority_s_key_can_invent_clients(clinic: FederationFolder, tmp_path: Path) -> None:
    """Others share their secrets with it, and it proves what an edge wants."""
    names = ("edge-0-client-0", "edge-0-client-1")
    stolen = Authority.load(Path(shutil.copytree(clinic.path / "authority", tmp_path / "stolen")))
    pair = stolen.issue({names[1]: "client"})[names[1]]
    assert names[1] not in {path.name for path in (clinic.path / "kits").iterdir()}
    certificate = x509.load_pem_x509_certificate(pair.certificate).public_bytes(Encoding.DER)
    signed = authority.sign(authority.as_key(pair.key, "stolen"), b"keys")
    KitSigner(Kit.load(clinic.kit(names[0])), names).check(2, certificate, b"keys", signed)


def test_a_client_believes_an_edge_that_was_revoked_and_the_cloud_does_not(tmp_path: Path) -> None:
    clinic = make(tmp_path / "clinic", 1)
    clinic.revoke("edge-0")
    shake_hands(clinic.kit("edge-0"), clinic.kit("edge-0-client-0"), "edge-0")
    with pytest.raises(OSError, match="revoked"):
        shake_hands(clinic.kit("cloud"), clinic.kit("edge-0"), "cloud", clinic.kit("cloud") / "revoked.crl")


def test_the_cloud_cannot_be_revoked(clinic: FederationFolder) -> None:
    with pytest.raises(DeployError, match="make a new federation instead"):
        clinic.revoke("cloud")


def test_a_site_that_lost_its_noise_and_what_it_released_spends_a_round_twice(tmp_path: Path) -> None:
    kept = Releases(tmp_path)
    kept.once((1, 0), parts(1.0), lambda: parts(float(kept.secret >> 200)))
    before = released(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    fresh = Releases(tmp_path)
    fresh.once((1, 0), parts(1.0), lambda: parts(float(fresh.secret >> 200)))
    assert released(tmp_path).keys() == before.keys()
    assert released(tmp_path) != before
