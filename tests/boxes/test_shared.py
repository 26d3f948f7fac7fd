"""Providers that all episodes of a process share."""

from typing import ClassVar

import pytest

from agentloop.boxes.shared import close_providers, provider_of
from agentloop.errors import SandboxError


class Hesitant:
    """Opens at the second attempt."""

    opened: ClassVar = []

    async def open(self):
        self.opened.append(self)
        if len(self.opened) == 1:
            raise SandboxError("the engine does not answer")

    async def close(self):
        self.opened.remove(self)


async def test_a_provider_that_failed_to_open_is_opened_again():
    name = f"{__file__}:Hesitant"
    with pytest.raises(SandboxError, match="does not answer"):
        await provider_of(name)
    provider = await provider_of(name)
    assert await provider_of(name) is provider
    await close_providers()
    assert provider not in provider.opened
