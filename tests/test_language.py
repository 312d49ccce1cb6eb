"""Language models of transformers and peft as networks, and SmolLM2 in languages."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.func import functional_call

import fedbac
from fedbac import Adapters, ConfigError, language
from fedbac.core.parts import extension
from fedbac.data.natural import FAMILIES, UDHR
from fedbac.data.tokens import read_udhr_tokens
from fedbac.language import SmolLM2
from fedbac.models import builder, weights
from tests.unit.tiny import tiny_run, tiny_task

SIZES: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "tie_word_embeddings": True,
}  # fmt: skip


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_one_clients_adapters_are_those_of_peft() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    theirs = peft.get_peft_model(llama(), config).eval()
    scheme = Adapters(owners=("cloud",), target=("*.q_proj", "*.v_proj"), rank=4, alpha=12)
    build = builder(SmolLM2(), llama(), (7,), 50, 0, 49, steps=(7,), extend=extension(scheme))
    ours, generator = build(0).eval(), torch.Generator().manual_seed(1)
    params = {name: torch.randn(v.shape, generator=generator) for name, v in weights(ours).items()}
    state = theirs.state_dict()
    for name, value in params.items():
        path, _, half = name.removeprefix("inner.").partition(".adapter_cloud.")
        state[f"base_model.model.{path}.lora_{half.upper()}.default.weight"].copy_(value)
    x = torch.randint(0, 50, (3, 7), generator=generator)
    assert sum(v.numel() for v in params.values()) == theirs.get_nb_trainable_parameters()[0]
    torch.testing.assert_close(functional_call(ours, params, (x,)), theirs(x).logits, rtol=1e-5, atol=1e-5)
    assert torch.equal(ours.head(ours.features(x)), ours(x))  # type: ignore[operator]
    assert ours.inner.lm_head.weight is ours.inner.model.embed_tokens.weight  # type: ignore[union-attr]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_peft_loads_what_a_run_saves_for_it_and_transformers_what_is_merged(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    settings = ("personalization=adapters", "personalization.rank=2", 'personalization.target=["*.q_proj", "*.v_proj"]')
    x = np.random.default_rng(0).integers(0, 50, (200, 8))
    data = fedbac.Dataset.from_arrays("made up", x[:, :-1], x[:, 1:], x[:60, :-1], x[:60, 1:])
    run = tiny_run("fed-bac", *[f"method.{one}" for one in settings], task=tiny_task(loss={"kind": "next_token"}),
                   dataset=data, network=llama())  # fmt: skip
    given = torch.from_numpy(x[:5, :-1])
    wanted = run.model(edge=1)(given)
    assert not torch.allclose(wanted, llama()(given).logits, atol=1e-3)
    theirs = peft.PeftModel.from_pretrained(llama(), run.save_model(tmp_path / "mine.peft", edge=1))
    torch.testing.assert_close(theirs(given).logits, wanted, rtol=1e-5, atol=1e-5)
    whole = llama()
    whole.load_state_dict(load_file(run.save_model(tmp_path / "mine.safetensors", edge=1)))
    torch.testing.assert_close(whole(given).logits, wanted, rtol=1e-5, atol=1e-5)
    mine: Any = run.model(edge=1).merged()
    mine.save_pretrained(tmp_path / "whole")
    again = type(whole).from_pretrained(tmp_path / "whole")
    torch.testing.assert_close(again(given).logits, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_a_network_of_peft_is_one_as_it_is_and_its_halves_may_have_owners() -> None:
    """A for all, B every client's own: what is trained is named by patterns."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    scheme = Adapters(owners=(), whole={"cloud": ("*lora_A*",), "client": ("*lora_B*",)})
    build = builder(SmolLM2(), lambda: peft.get_peft_model(llama(), config), (7,), 50, 0, 49, steps=(7,),
                    extend=extension(scheme))  # fmt: skip
    parts = scheme.init(build, {"cloud": 1, "client": 3})
    assert {name.partition("lora_")[2][0] for name in parts["client"]} == {"B"}
    assert [len(parts["cloud"]), len(parts["client"])] == [2, 2]
    network = build(0)
    x = torch.zeros(2, 7, dtype=torch.int64)
    assert torch.equal(network.head(network.features(x)), network(x))  # type: ignore[operator]


@pytest.mark.full
@pytest.mark.skipif(language.missing() != [], reason="the packages of SmolLM2 are not installed")
def test_languages_of_the_declaration_are_rows_of_its_tokens() -> None:
    data = fedbac.data.load("udhr-smollm2")
    assert data.tiers is not None
    assert data.num_classes == language.VOCABULARY
    assert (data.x_train[:, 1:] == data.y_train[:, :-1])[data.y_train[:, :-1] >= 0].all()
    assert len(set(data.tiers.groups)) == 8


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.skipif(language.missing() != [], reason="the packages of SmolLM2 are not installed")
@pytest.mark.filterwarnings("ignore")
def test_smollm2_learns_languages_and_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    """Of two languages a row of eight tokens for each client, and one to judge each language by."""
    two = {family: codes[:1] for family, codes in list(FAMILIES.items())[:2]}
    x, y, x_test, y_test, tiers = read_udhr_tokens([UDHR], two)
    assert tiers is not None
    rows, tested = (np.unique(owner, return_index=True)[1] for owner in (tiers.client_train, tiers.edge_test))
    few = replace(tiers, client_train=tiers.client_train[rows], edge_test=tiers.edge_test[tested])
    arrays = x[rows, :8], y[rows, :8], x_test[tested, :8], y_test[tested, :8]
    data = fedbac.Dataset.from_arrays("two", *arrays, num_classes=language.VOCABULARY, tiers=few)
    settings = ("personalization=adapters", "personalization.owners=[cloud]", 'personalization.target=["*.q_proj"]')
    options: dict[str, Any] = {
        "dataset": data, "rounds": 2, "device": "cpu", "workers": 1,
        "settings": ["task.num_edges=2", *[f"method.{one}" for one in settings]],
    }  # fmt: skip
    whole = fedbac.run("hierfavg", "udhr-smollm2", **options)
    with fedbac.play("hierfavg", "udhr-smollm2", **options, out=tmp_path / "run") as playing:
        next(iter(playing))
    resumed = fedbac.resume(tmp_path / "run", dataset=data)
    assert whole.records[1]["loss"] < whole.records[0]["loss"]
    states = [run.model(edge=1).state_dict() for run in (whole, resumed)]
    learned = [name for name, value in states[0].items() if name.endswith(".b") and value.count_nonzero()]
    assert len(learned) == 30
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name])


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "HOME", "no_such_package")
    language._pretrained.cache_clear()
    with pytest.raises(ConfigError, match=r"not installed \(.*no_such_package\).*pip install"):
        SmolLM2().build((5,), language.VOCABULARY, 5, True)


def test_it_reads_tokens_of_its_own_only() -> None:
    with pytest.raises(ConfigError, match="smollm2 reads rows of tokens"):
        SmolLM2().build((3, 8, 8), 10)
