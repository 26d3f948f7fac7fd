import pytest

from agentloop.boxes import Network
from agentloop.errors import UserError


@pytest.mark.parametrize("mode", ["none", "public"])
def test_hosts_without_an_allowlist_are_refused(mode):
    with pytest.raises(
        UserError, match=rf"Only the network allowlist takes hosts.* {mode} with hosts a\.org, \*\.b\.org:"
    ):
        Network(mode=mode, hosts=("a.org", "*.b.org"))


def test_an_allowlist_takes_hosts_and_may_be_empty():
    assert Network(mode="allowlist", hosts=("a.org",)).hosts == ("a.org",)
    assert Network(mode="allowlist").hosts == ()
    assert Network(mode="public").hosts == ()
