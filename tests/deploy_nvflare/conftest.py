"""A federation for NVFlare, with data for every site."""

import pytest

from fedbac.deploy.transports.nvflare.project import provision
from tests.deploy.clinics import Clinic, make_clinic


@pytest.fixture(scope="session")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Clinic:
    """Two edges with two clients each, with NVFlare's startup folders."""
    made = make_clinic(tmp_path_factory.mktemp("federation"), "nvflare")
    provision(made.folder)
    return made
