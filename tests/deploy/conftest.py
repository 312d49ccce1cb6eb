"""What the tests of links share."""

import pytest

from tests.deploy.links import Identities


@pytest.fixture(scope="session")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    """A federation's certificates; a test that changes them makes its own."""
    return Identities(tmp_path_factory.mktemp("identities"))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cloud in this process looks again at once whether somebody is back."""
    from fedbac.deploy.roles import edges, enrolment, epochs

    for module in (edges, enrolment, epochs):
        monkeypatch.setattr(module, "AGAIN", 0.01)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is reached directly, whatever this machine's environment says."""
    monkeypatch.setenv("no_grpc_proxy", "127.0.0.1")
