"""Methods as rows of choices: one function per row, given the task it is for."""

from collections.abc import Callable

from fedbac.config.choices import plugins, say_hidden
from fedbac.config.experiment import Method, Task
from fedbac.errors import ConfigError, unknown
from fedbac.presets import additive, blending, clustered, personal, plain, selecting

Preset = Callable[[Task], Method]

METHODS: dict[str, Preset] = {
    "fed-bac": additive.fed_bac,
    "fedavg": plain.fedavg,
    "fedprox": plain.fedprox,
    "scaffold": plain.scaffold,
    "feddyn": plain.feddyn,
    "fedavgm": plain.fedavgm,
    "fedadam": plain.fedadam,
    "fedyogi": plain.fedyogi,
    "hierfavg": plain.hierfavg,
    "hierfavg-wide": plain.hierfavg_wide,
    "hierfavg-periods": plain.hierfavg_periods,
    "mtgc": plain.mtgc,
    "abad": plain.abad,
    "trindade": selecting.trindade,
    "chpfl": blending.chpfl,
    "phe-fl": blending.phe_fl,
    "phe-fl-kd": blending.phe_fl_kd,
    "ifca": clustered.ifca,
    "ifca-original": clustered.ifca_original,
    "ifca-clients": clustered.ifca_clients,
    "cfl": clustered.cfl,
    "cfl-clients": clustered.cfl_clients,
    "fl-hc": clustered.fl_hc,
    "fed-cam": additive.fed_cam,
    "fed-cam-alternate": additive.fed_cam_alternate,
    "fedgwc": clustered.fedgwc,
    "cflhkd": clustered.cflhkd,
    "power-of-choice": selecting.power_of_choice,
    "oort": selecting.oort,
    "cs-ucb": selecting.cs_ucb,
    "ucb-cs": selecting.ucb_cs,
    "cocs": selecting.cocs,
    "fed-csad": selecting.fed_csad,
    "ditto": personal.ditto,
    "ditto-edges": personal.ditto_edges,
    "apfl": personal.apfl,
    "apfl-edges": personal.apfl_edges,
    "pfedme": personal.pfedme,
    "fedrep": personal.fedrep,
    "fedrep-clients": personal.fedrep_clients,
    "fedper": personal.fedper,
    "fedbabu": blending.fedbabu,
    "fedrod": personal.fedrod,
    "fedala": personal.fedala,
    "pfedgraph": blending.pfedgraph,
    "fedavg-ft": blending.fedavg_ft,
    "local": blending.local,
    "paper-text": additive.paper_text,
    "paper-figures": additive.paper_figures,
    "fed-bac-random": additive.fed_bac_random,
    "fed-bac-full": additive.fed_bac_full,
    "singletons": additive.singletons,
    "linucb-isolated": additive.linucb_isolated,
    "fedbac-plus": additive.fedbac_plus,
    "fedbac-plus-2": additive.fedbac_plus_2,
}


def known() -> dict[str, Preset]:
    """Return all presets: ours, and those of other packages that have names of their own."""
    say_hidden(frozenset(plugins().keys() & METHODS.keys()))
    return {**plugins(), **METHODS}


def method(name: str, task: Task) -> Method:
    """Return a preset by name."""
    presets = METHODS if name in METHODS else known()
    if name not in presets:
        raise ConfigError(unknown("method", name, presets, "fedbac methods"))
    try:
        found = presets[name](task)
    except ConfigError:
        raise
    except Exception as error:  # whatever another package's function does
        why = " ".join(str(error).split())
        raise ConfigError(f"method {name!r}: its preset failed with {type(error).__name__}: {why}") from error
    if not isinstance(found, Method):
        raise ConfigError(f"method {name!r}: its preset must return a Method, not a {type(found).__name__}")
    return found
