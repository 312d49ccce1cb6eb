"""What a run needs of this machine, checked before anything is written or replaced."""

from collections.abc import Iterable

from fedbac import data
from fedbac.config.experiment import Experiment, Runtime
from fedbac.local import check_device
from fedbac.runs.configure import Inputs
from fedbac.runs.tracking import check_tracker


def check_ready(experiments: Iterable[Experiment], runtime: Runtime, inputs: Inputs) -> None:
    """Refuse runs whose device, tracker or data are not here; each data set is looked for once."""
    if runtime.engine == "simulator":
        check_device(runtime)
    check_tracker(runtime.track)
    if inputs.dataset is None and runtime.engine != "federation":  # whose data are elsewhere
        data.check(dict.fromkeys(experiment.task.dataset for experiment in experiments), inputs.data_folder)
