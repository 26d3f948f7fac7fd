"""Install agentloop, and its sibling folders as subpackages of it."""

from setuptools import find_packages, setup

_INSIDE = ("boxes", "envs", "recipes", "sandboxes", "tools", "trainer")

setup(
    package_dir={"agentloop": "agentloop"} | {f"agentloop.{folder}": folder for folder in _INSIDE},
    packages=["agentloop"]
    + [f"agentloop.{name}" for name in find_packages("agentloop")]
    + [f"agentloop.{folder}" for folder in _INSIDE]
    + [f"agentloop.{folder}.{name}" for folder in _INSIDE for name in find_packages(folder)],
)
