"""What the daemon says at its start."""

from __future__ import annotations

from agentloop.sandboxes.levels.registry import LEVELS
from agentloop.tools.serving.daemon import Daemon


def banner(daemon: Daemon, address: str) -> str:
    """A few plain lines; the first has the address."""
    settings, level, load = daemon.settings, daemon.sandbox.level, daemon.sandbox.load()
    meaning = f": {LEVELS.get(level).protects}" if level in LEVELS else ""
    lines = [
        f"agentloop tools: {address}",
        f"  isolation  {level}{meaning}",
        f"  slots      {load.slots} at once, {settings.memory_mb} MiB each unless a request says otherwise",
        f"  preload    {', '.join(settings.preload) or 'nothing'}",
        f"  packages   {', '.join(settings.packages) or 'the standard library'}",
        f"  token      {'required' if settings.token else 'none: only this machine can reach the daemon'}",
    ]
    return "\n".join(lines)
