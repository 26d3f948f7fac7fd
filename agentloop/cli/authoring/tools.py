"""The commands `agentloop tools`: list and call tools, serve them over HTTP, and index a corpus."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from agentloop.cli.authoring.arguments import given_twice, read_json, read_pairs
from agentloop.cli.authoring.listing import Entry, print_entries
from agentloop.errors import UserError
from agentloop.registry.registry import package_of
from agentloop.tools import registry
from agentloop.tools.base import ToolResult
from agentloop.tools.serving.state.settings import Settings
from agentloop.tools.summary import summary
from agentloop.tools.toolset import Toolset
from agentloop.types.messages import Content, ParsedTurn, ToolCall


class IndexEngine(StrEnum):
    """Library that builds and reads a full-text index."""

    SQLITE = "sqlite"
    TANTIVY = "tantivy"


class BoxNetwork(StrEnum):
    """What boxes of the daemon may reach."""

    NONE = "none"
    PUBLIC = "public"


app = typer.Typer(
    help="List tools, call one, index a corpus, or serve tools and sandboxes.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command("list")
def list_tools() -> None:
    """List the registered tools with the arguments that the model passes."""
    print_entries(_entry(name, package_of(entry)) for name, entry in registry.TOOLS.entry_points().items())


def _entry(name: str, package: str) -> Entry:
    try:
        about = summary(name)
    except UserError as error:
        return Entry(name, package, error=str(error))
    details = [f"arguments: {', '.join(about.parameters)}"] if about.parameters else []
    return Entry(name, package, about.description, [*details, *([f"needs: {about.needs}"] if about.needs else [])])


@app.command("call")
def call_tool(
    name: Annotated[str, typer.Argument(help="A registered name, 'package.module:name' or 'path/to/file.py:name'.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Arguments of the call.")
    ] = None,
    as_json: Annotated[str | None, typer.Option("--json", help="Arguments of the call, as a JSON object.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Option of the tool itself; repeat for more.")
    ] = None,
    tool: Annotated[
        str | None, typer.Option(help="Name of the tool, if NAME has several, such as an MCP server.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Row that the tool sees as ctx.task, as a JSON object.")] = None,
    image: Annotated[list[Path] | None, typer.Option(help="Image file for ctx.images; repeat for more.")] = None,
    show_schema: Annotated[
        bool, typer.Option("--schema", help="Print the tool's JSON Schema as models see it, without a call.")
    ] = False,
) -> None:
    """Call a tool once and print its result. Exit with 1 if the result is an error."""
    toolset = Toolset([registry.chosen(registry.load_all(name, **read_pairs(option or [])), tool, spec=name)])
    (schema,) = toolset.schemas
    if show_schema:
        print(json.dumps(schema, indent=2, ensure_ascii=False))
        return
    function = schema["function"]
    given = _arguments_of_call(as_json, arguments or [], function["parameters"]["properties"])
    row, images = read_json(task, "--task"), [_read_image(path) for path in image or []]
    result = asyncio.run(_call(toolset, ToolCall(function["name"], given, "call_0"), row, images))
    print(_shown(result.content))
    raise typer.Exit(int(result.is_error))


def _arguments_of_call(as_json: str | None, pairs: list[str], properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of both forms. Raises `UserError` if one is given twice."""
    of_json, of_pairs = read_json(as_json, "--json"), read_pairs(pairs, properties)
    for name in of_json:
        if name in of_pairs:
            raise given_twice(name)
    return of_json | of_pairs


@app.command("serve")
def serve_tools(
    host: Annotated[
        str, typer.Option(help="Address to listen on; except for loopback, it needs --token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free port.")] = 8080,
    token: Annotated[
        str | None, typer.Option(envvar="AGENTLOOP_TOKEN", help="Bearer token of requests; safer in the environment.")
    ] = None,
    isolation: Annotated[
        str, typer.Option(help="Isolation level: auto, slots, bubblewrap, landlock, docker or none.")
    ] = "auto",
    slots: Annotated[
        int | None, typer.Option(help="Maximum concurrent executions; default: the level decides.")
    ] = None,
    preload: Annotated[str, typer.Option(help="Modules to import in advance, for example numpy,sympy.")] = "",
    packages: Annotated[
        str, typer.Option(help="Installed packages that code may import, for example numpy,pandas.")
    ] = "",
    level_option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Option of the level, for example image=...; repeat for more."),
    ] = None,
    memory_mb: Annotated[int, typer.Option(help="Memory in MiB of an execution that sets none.")] = 1024,
    max_memory_mb: Annotated[int, typer.Option(help="Maximum memory in MiB that an execution may request.")] = 16384,
    disk_mb: Annotated[int | None, typer.Option(help="Maximum MiB of each directory that code can write to.")] = None,
    max_seconds: Annotated[float, typer.Option(help="Longest time limit in seconds that a request may set.")] = 3600.0,
    max_sessions: Annotated[int, typer.Option(help="Maximum open sessions.")] = 256,
    max_body_mb: Annotated[int, typer.Option(help="Maximum MiB of a request body.")] = 64,
    max_connections: Annotated[int, typer.Option(help="Maximum open connections.")] = 4096,
    body_seconds: Annotated[float, typer.Option(help="Seconds in which a whole request must arrive.")] = 120.0,
    drain_seconds: Annotated[float, typer.Option(help="Seconds that running requests get after SIGTERM.")] = 30.0,
    boxes: Annotated[
        str | None, typer.Option(help="Also serve boxes of this provider: rootfs, docker or podman.")
    ] = None,
    box_option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Option of the provider, for example folder=...; repeat for more."),
    ] = None,
    max_boxes: Annotated[int, typer.Option(help="Maximum open boxes.")] = 64,
    box_network: Annotated[
        BoxNetwork, typer.Option(help="What boxes may reach if a request asks for it: nothing, or what it names.")
    ] = BoxNetwork.NONE,
    max_image_mb: Annotated[int, typer.Option(help="Maximum MiB of all box images that clients send.")] = 16384,
    tool: Annotated[
        list[str] | None,
        typer.Option(metavar='NAME[={"option": ...}]', help="Also serve this tool; repeat for more."),
    ] = None,
    log_level: Annotated[
        str, typer.Option(help="Log level: debug, info (a line per request), warning or error.")
    ] = "info",
) -> None:
    """Serve sandboxes and tools over HTTP until SIGTERM. The API includes SandboxFusion's protocol."""
    try:
        from agentloop.tools.serving import lifecycle
    except ImportError as error:
        raise UserError(
            f"agentloop tools serve needs {error.name}, which is not installed. Run: pip install 'agentloop[serve]'"
        ) from error
    settings = Settings(
        host=host,
        port=port,
        token=token,
        isolation=isolation,
        slots=slots,
        preload=_names(preload),
        packages=_names(packages),
        level_options=read_pairs(level_option or []),
        memory_mb=memory_mb,
        max_memory_mb=max_memory_mb,
        disk_mb=disk_mb,
        max_seconds=max_seconds,
        max_sessions=max_sessions,
        boxes=boxes,
        box_options=read_pairs(box_option or []),
        max_boxes=max_boxes,
        box_network=box_network.value,
        max_image_mb=max_image_mb,
        max_body_mb=max_body_mb,
        max_connections=max_connections,
        body_seconds=body_seconds,
        drain_seconds=drain_seconds,
        tools=tuple(tool or ()),
        log_level=log_level,
    )
    lifecycle.serve(settings, announce=lambda text: print(text, flush=True))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


@app.command("index")
def index_corpus(
    corpus: Annotated[
        Path,
        typer.Argument(
            help="JSON Lines with contents, or with title and text; or a folder, whose files .txt, .text, .md, "
            ".markdown and .rst are read."
        ),
    ],
    index: Annotated[Path, typer.Argument(help="File to write; with tantivy, a folder.")],
    engine: Annotated[
        IndexEngine, typer.Option(help="Index library; tantivy is faster, but an extra package.")
    ] = IndexEngine.SQLITE,
) -> None:
    """Build a full-text index of a corpus, for the tool `search`."""
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    from agentloop.tools.search import tantivy_index
    from agentloop.tools.search.index import TEXT_SUFFIXES, read_corpus
    from agentloop.tools.search.index import build as build_sqlite

    skipped: list[int] = []
    build = tantivy_index.build if engine is IndexEngine.TANTIVY else build_sqlite
    with Progress(TextColumn("{task.description}"), TimeElapsedColumn()) as progress:
        task = progress.add_task(_passages(0), total=None)
        count = build(
            read_corpus(corpus, skipped.append), index, lambda done: progress.update(task, description=_passages(done))
        )
    files = index.iterdir() if index.is_dir() else [index]
    size = sum(file.stat().st_size for file in files) / 1e6
    print(f"{index}: {_passages(count)}, {size:.1f} MB")
    if num := sum(skipped):
        files_skipped = "1 file was" if num == 1 else f"{num:,} files were"
        print(f"{files_skipped} skipped: only {', '.join(TEXT_SUFFIXES)} are read.")


def _passages(count: int) -> str:
    return "1 passage" if count == 1 else f"{count:,} passages"


async def _call(toolset: Toolset, call: ToolCall, task: dict[str, Any], images: list[Any]) -> ToolResult:
    await toolset.start()
    messages = [*task.get("messages", ()), ParsedTurn("", calls=[call]).message()]
    sessions = toolset.sessions("shell", task=task, seed=0, images=images, messages=messages)
    try:
        return await sessions.call(call, time.monotonic() + toolset.tools[call.name].timeout)
    finally:
        await sessions.close()
        await toolset.shutdown()


def _shown(content: Content) -> str:
    """Return the text of a result, with a note in place of each image."""
    if isinstance(content, str):
        return content
    return "".join(
        part["text"] if part["type"] == "text" else "[image of {} x {} pixels]".format(*part["image"].size)
        for part in content
    )


def _read_image(path: Path) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise UserError(
            f"--image {path} cannot be read as an image: {error}. Give a PNG, a JPEG or another image file."
        ) from error
