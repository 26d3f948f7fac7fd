"""Pull images and build Dockerfiles with buildah, without an engine. All calls block."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentloop.errors import UserError

_SECONDS = 3600.0
_SHOWN_LINES = 8


@dataclass(slots=True, frozen=True, kw_only=True)
class Pulled:
    """An image as an OCI layout on this machine."""

    layers: tuple[tuple[str, Path], ...]
    """(digest of its uncompressed content, archive), the lowest first."""
    env: dict[str, str]
    workdir: str | None
    user: str | None


class Buildah:
    """Buildah with separate storage: it shares layers with earlier builds but nothing with other programs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def build(self, context: Path, layout: Path) -> Pulled:
        """Build the Dockerfile in `context`, and write the image to `layout`. Raises `UserError`."""
        if not (context / "Dockerfile").is_file():
            raise UserError(f"The image's Dockerfile {context / 'Dockerfile'} does not exist: correct its path.")
        name = self._run(f"The Dockerfile of {context} cannot be built", *_BUILD, context).splitlines()[-1]
        return self._push(name, layout)

    def pull(self, reference: str, layout: Path) -> Pulled:
        """Pull an image of a registry, and write it to `layout`. Raises `UserError`."""
        what = f"The image {reference} of a box is unavailable"
        return self._push(self._run(what, "pull", "--quiet", reference).splitlines()[-1], layout)

    def _push(self, name: str, layout: Path) -> Pulled:
        self._run("An image cannot be copied", "push", "--quiet", "--disable-compression", name, f"oci:{layout}:image")
        index = json.loads((layout / "index.json").read_text())
        manifest = _blob(layout, index["manifests"][0]["digest"])
        config = _blob(layout, manifest["config"]["digest"])
        settings = config.get("config") or {}
        return Pulled(
            layers=tuple(
                (digest.replace(":", "-"), _path(layout, layer["digest"]))
                for digest, layer in zip(config["rootfs"]["diff_ids"], manifest["layers"], strict=True)
            ),
            env=dict(each.split("=", 1) for each in settings.get("Env") or ()),
            workdir=settings.get("WorkingDir") or None,
            user=settings.get("User") or None,
        )

    def _run(self, what: str, *arguments: str | Path) -> str:
        command = ["buildah", "--root", self._folder / "storage", "--runroot", self._folder / "run", *arguments]
        try:
            with tempfile.NamedTemporaryFile("w", suffix=".conf") as registries:
                registries.write(_registries())
                registries.flush()
                env = {**os.environ, _REGISTRIES: registries.name}
                for _ in range(_ATTEMPTS):
                    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=env)
                    if done.returncode == 0 or _BUSY not in done.stderr:
                        break
        except FileNotFoundError:
            raise UserError(
                f"{what}: the provider rootfs needs buildah (`apt-get install buildah`, `dnf install buildah`)."
            ) from None
        except subprocess.TimeoutExpired:
            raise UserError(f"{what}: it took longer than an hour.") from None
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()[-_SHOWN_LINES:]
            raise UserError(f"{what}:\n" + "\n".join(lines))
        return done.stdout.strip()


_ATTEMPTS = 5
_BUSY = "sealing memfd copy: Device or resource busy"
"""An error of buildah on busy machines: before each command of a build it copies itself into memory."""
_BUILD: Sequence[str] = ("build", "--quiet", "--isolation", "chroot", "--layers", "--force-rm")

_REGISTRIES = "CONTAINERS_REGISTRIES_CONF"
_OF_THE_MACHINE = "/etc/containers/registries.conf"
_DOCKER_HUB = 'unqualified-search-registries = ["docker.io"]\n'


def _registries() -> str:
    """Return this machine's registry settings. Names without a registry mean docker.io unless the settings differ."""
    places = [os.environ.get(_REGISTRIES), Path.home() / ".config/containers/registries.conf", _OF_THE_MACHINE]
    found = next((Path(place) for place in places if place and Path(place).is_file()), None)
    text = "" if found is None else found.read_text()
    try:
        says = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{found} is not valid TOML: {error}.") from error
    return text if {"unqualified-search-registries", "registries"} & says.keys() else _DOCKER_HUB + text


def _path(layout: Path, digest: str) -> Path:
    return layout / "blobs" / digest.replace(":", "/")


def _blob(layout: Path, digest: str):  # type: ignore[no-untyped-def]
    return json.loads(_path(layout, digest).read_text())
