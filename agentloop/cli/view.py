"""The command `agentloop view`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentloop.errors import UserError

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def view(
    run: Annotated[Path | None, typer.Argument(help="Folder of a run; default: the newest below runs/.")] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Everyone who can reach it can read the run.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free port.")] = 8265,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
) -> None:
    """Show curves, times and trajectories of a run in a browser.

    New steps appear while the run continues.
    """
    from agentloop.trainer.viewer.records import Records

    records = Records(run or newest(Path("runs")))
    try:
        import uvicorn

        from agentloop.trainer.viewer.app import application
    except ImportError as error:
        raise UserError(
            f"agentloop view needs {error.name}, which is not installed. Run: pip install 'agentloop[serve]'"
        ) from error
    from agentloop.tools.serving.http.listening import address_of, listen

    app = application(records) if host in _LOOPBACK else application(records, hosts=("*",))
    with listen(host, port) as listener:
        address = address_of(listener)
        print(f"Showing {records.folder.root} at {address} (press Ctrl-C to stop)", flush=True)
        if browser:
            import webbrowser

            webbrowser.open(address)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


def newest(folder: Path) -> Path:
    """Return the newest run below `folder`. Raises `UserError` if there are no runs."""
    runs = [path.parent for pattern in ("*/config.yaml", "*/*/config.yaml") for path in folder.glob(pattern)]
    if not runs:
        raise UserError(f"There are no runs below {folder.resolve()}. Give the folder of a run: agentloop view FOLDER.")
    return max(runs, key=lambda path: path.stat().st_mtime)
