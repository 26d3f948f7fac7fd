"""The command `agentloop view`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentloop.errors import UserError

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def view(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Folders of runs to compare, or folders with runs below them. Default: the newest run below runs/."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Everyone who can reach it can read the runs.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 8265,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
) -> None:
    """Show curves, times and episodes of runs in a browser.

    New steps of running runs, and new runs below a given folder, appear automatically.
    """
    from agentloop.trainer.viewer.runs import Runs, newest

    shown = Runs(runs or [newest(Path("runs"))])
    try:
        import uvicorn

        from agentloop.trainer.viewer.app import application
    except ImportError as error:
        raise UserError(
            f"agentloop view needs {error.name}, which is not installed. Run: pip install 'agentloop[serve]'"
        ) from error
    from agentloop.tools.serving.http.listening import address_of, listen

    app = application(shown) if host.lower() in _LOOPBACK else application(shown, hosts=("*",))
    with listen(host, port) as listener:
        address = address_of(listener)
        print(f"Showing {', '.join(shown)} at {address} (press Ctrl-C to stop)", flush=True)
        if browser:
            import webbrowser

            webbrowser.open(address)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
