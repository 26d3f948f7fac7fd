from pathlib import Path

import pytest

from agentloop import boxes
from agentloop.boxes import BoxSpec, Image, Network
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


IMAGE = Image(reference="builtin:busybox")


@pytest.mark.parametrize(
    ("limit", "value", "least"),
    [
        ("cpus", 0, "0.01"),
        ("cpus", -1, "0.01"),
        ("cpus", 0.0001, "0.01"),
        ("cpus", float("inf"), "0.01"),
        ("cpus", float("nan"), "0.01"),
        ("memory_mb", 0, "6"),
        ("memory_mb", -5, "6"),
        ("memory_mb", 1, "6"),
        ("storage_mb", 0, "1"),
        ("storage_mb", -1, "1"),
        ("processes", 0, "3"),
        ("processes", 2, "3"),
    ],
)
def test_limits_with_which_no_box_works_are_refused(limit, value, least):
    with pytest.raises(UserError, match=rf"^{limit} of a box is {value}: set a finite number of at least {least}, or"):
        BoxSpec(image=IMAGE, **{limit: value})


@pytest.mark.parametrize(
    ("limit", "value", "most"),
    [
        ("cpus", 1e9, "65536"),
        ("memory_mb", 10**15, "4294967296"),
        ("storage_mb", 10**15, "4294967296"),
        ("processes", 10**9, "4194304"),
    ],
)
def test_limits_that_the_kernel_cannot_set_are_refused(limit, value, most):
    with pytest.raises(UserError, match=rf"^{limit} of a box is {value:.16g}: set at most {most}, or leave it out\.$"):
        BoxSpec(image=IMAGE, **{limit: value})


@pytest.mark.parametrize("variables", [{"A=B": "c"}, {"": "c"}, {"A": "b\0c"}, {"A\0": "c"}, {"A": 5}, {5: "a"}])
def test_variables_that_no_program_can_get_are_refused(variables):
    with pytest.raises(UserError, match=r"^The variable .* of a box (is 5: make|is 'a': make|cannot be set: use)"):
        BoxSpec(image=IMAGE, env=variables)


@pytest.mark.parametrize("mode", ["foo", "", None, "Public"])
def test_an_unknown_network_is_refused(mode):
    with pytest.raises(UserError, match=rf"^A box has no network {mode!r}\..* Use one of none, allowlist, public\.$"):
        Network(mode=mode)


@pytest.mark.parametrize("host", ["10.0.0.0/99", "10.0.0.1/8", "ü..", "", "a b", "*.10.0", "[::1]"])
def test_hosts_that_never_match_are_refused(host):
    with pytest.raises(UserError, match=r"^A host of the network of a box cannot be used: '.*' must be a host name"):
        Network(mode="allowlist", hosts=("a.org", host))


async def test_podman_without_its_service_says_how_to_start_it(tmp_path):
    pytest.importorskip("docker")
    with pytest.raises(UserError, match=r"^Cannot connect to the service of podman at .*systemctl start podman.socket"):
        await boxes.create("podman", address=f"unix://{tmp_path}/none").open()


def test_the_least_limits_and_none_are_taken():
    least = BoxSpec(image=IMAGE, cpus=0.01, memory_mb=6, storage_mb=1, processes=3)
    assert (least.cpus, least.memory_mb, least.storage_mb, least.processes) == (0.01, 6, 1, 3)
    assert BoxSpec(image=IMAGE).cpus is None


@pytest.mark.parametrize("provider", ["rootfs", "docker", "podman"])
@pytest.mark.parametrize(("limit", "value"), [("memory_mb", 0), ("memory_mb", 1), ("storage_mb", 0)])
def test_providers_refuse_such_defaults(provider, limit, value):
    with pytest.raises(UserError, match=rf"^{limit} of a box is {value}: "):
        boxes.create(provider, **{limit: value})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "nothing"),
        ({"reference": ""}, "nothing"),
        ({"reference": "debian", "tree": Path("/root-fs")}, "reference and tree"),
    ],
)
def test_an_image_sets_exactly_one_field(given, says):
    kinds = "reference, dockerfile, tarball, tree"
    with pytest.raises(UserError, match=rf"^The image of a box sets {says}: set exactly one of {kinds}\.$"):
        Image(**given)


@pytest.mark.parametrize(
    ("provider", "options"),
    [("rootfs", {}), ("docker", {}), ("remote", {"address": "http://127.0.0.1:9"})],
)
async def test_a_start_without_open_names_the_cause(provider, options):
    with pytest.raises(AssertionError, match="call open first"):
        await boxes.create(provider, **options).start(BoxSpec(image=IMAGE))
