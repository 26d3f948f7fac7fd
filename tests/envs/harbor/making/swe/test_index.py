"""Packages of the index become tasks that their own tests judge."""

import json

import pytest

from agentloop.envs.harbor.check import check_tasks
from agentloop.envs.harbor.making.swe.making import SweOptions, swe_tasks
from agentloop.envs.harbor.tasks.task import HarborTask
from agentloop.errors import UserError

pytestmark = [pytest.mark.slow, pytest.mark.ecosystem]


@pytest.mark.parametrize("package", ["iniconfig==2.3.1", "isodate==0.7.2", "parse==1.22.4"])
async def test_a_package_of_the_index_becomes_tasks(package, tmp_path, provider):
    folders = [folder async for folder in swe_tasks(package, tmp_path / "tasks", 2, provider, SweOptions(seed=1))]
    assert len(folders) == 2
    found = [finding async for finding in check_tasks(folders, provider)]
    assert [(each.problems, each.rewards) for each in found] == [([], {"solution": 1.0, "nothing": 0.0})] * 2
    plans = [json.loads(next(folder.rglob("plan.json")).read_text()) for folder in folders]
    assert not [name for plan in plans for name in plan["chosen"] if "test_date.py" in name and "[" in name], (
        "isodate's parameters are a set with None, whose hash no seed fixes before Python 3.12"
    )
    config = HarborTask.load(folders[0]).config
    assert "pytest==" in config.environment.docker_image
    assert package.partition("==")[0] not in config.environment.docker_image, "the sound package would be there"


async def test_packages_missing_from_the_index_are_reported(tmp_path, provider):
    for package, options, says in [
        (
            "iniconfig==0.0.0.1",
            SweOptions(),
            r"source distribution of iniconfig==0\.0\.0\.1 cannot be downloaded(.|\n)*pip says",
        ),
        (
            "iniconfig==2.3.1",
            SweOptions(requires=["pytest==0.0.0.1"]),
            "The requirements of the tests cannot",
        ),
    ]:
        with pytest.raises(UserError, match=says):
            _ = [folder async for folder in swe_tasks(package, tmp_path / "tasks", 1, provider, options)]
