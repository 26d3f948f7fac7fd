"""The commands `agentloop rewards`: list rewards, and judge an answer with one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentloop.cli.authoring.arguments import read_json, read_pairs
from agentloop.errors import AgentLoopError, UserError, raised

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentloop.config.run import RunConfig
    from agentloop.envs.rewards import RewardFunction
    from agentloop.envs.rewards.function import Judgement

app = typer.Typer(help="List rewards, or judge an answer with one.", no_args_is_help=True, add_completion=False)


@app.command("list")
def list_rewards() -> None:
    """List the rewards with their options (`env.reward_options`)."""
    from agentloop.cli.authoring.listing import print_registry
    from agentloop.envs.rewards.loading import REWARDS, load_written

    print_registry(REWARDS, load_written, ("trajectory", "task"))


@app.command("try")
def try_reward(
    reward: Annotated[
        str,
        typer.Argument(
            help="Name of a reward, 'package.module:name' or 'path/to/file.py:name'; or a recipe, whose reward and "
            "tasks are used: its config.yaml, its folder or its name. A name that both have is that of the reward."
        ),
    ],
    answer: Annotated[str, typer.Argument(help="Last turn of the model.")],
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Option of the reward; repeat for more.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Row of the task, as a JSON object.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Dataset with the row: a file, a folder, or 'file.py:function'.")
    ] = None,
    row: Annotated[int, typer.Option(min=0, help="Index of the row in the dataset.")] = 0,
) -> None:
    """Judge an answer for one task, and print the reward and its parts. Exit with 1 if it cannot be judged."""
    from agentloop.envs.rewards import load_reward

    config = _config(reward)
    if config is not None and option:
        raise UserError(
            f"--option needs a reward, but {reward} is a recipe, which sets the options itself: omit --option."
        )
    if config is None:
        function = load_reward(reward, read_pairs(option or []))
    elif config.env.reward is None:
        raise UserError(
            f"{reward} has no reward (env.reward): its environment {config.env.factory!r} scores episodes itself."
        )
    else:
        function = load_reward(config.env.reward, config.env.reward_options)
    try:
        judgement = asyncio.run(_judge(function, _task(task, data, row, config), answer))
    except AgentLoopError:
        raise
    except Exception as error:  # the reward may raise anything
        unset = config is None and task is None and data is None
        hint = " Neither --task nor --data sets the row: pass one if the reward reads columns." if unset else ""
        typer.echo(f"The reward {function.name!r} raised {raised(error)}.{hint}", err=True)
        raise typer.Exit(1) from error
    turn_rewards = sum(judgement.turn_rewards)
    lines = {"reward": judgement.reward + turn_rewards}
    # A term of a sum may be named like the whole.
    lines |= {f"reward/{name}" if name in lines else name: value for name, value in judgement.metrics.items()}
    if turn_rewards:
        lines["turn reward"] = turn_rewards
    for name, value in lines.items():
        typer.echo(f"{name:16} {value:g}")


def _config(spec: str) -> RunConfig | None:
    """Return the config of a recipe given by its path or name; None for the spec of a reward."""
    from agentloop.api.recipe import built_in_recipes, load_run_config
    from agentloop.envs.rewards.loading import REWARDS

    path = Path(spec).expanduser()
    is_path = path.suffix in (".yaml", ".yml") or path.is_dir()
    is_recipe = is_path or (spec not in REWARDS and spec in built_in_recipes())
    return load_run_config(spec, []) if is_recipe else None


def _task(task: str | None, data: str | None, row: int, config: RunConfig | None) -> dict[str, Any]:
    """Return the row in `--task`, or a row of the dataset in `--data`, or else of the recipe."""
    from agentloop.envs.datasets.dataset import load_dataset

    if task is not None and data is not None:
        raise UserError("--task and --data both set the row: omit one of them.")
    source: str | Sequence[str] | None = data
    options: Mapping[str, Any] = {}
    if data is None and task is None and config is not None:
        source, options, _ = config.data.train_blocks[0]
    if source is None:
        return read_json(task, "--task")
    rows = load_dataset(source, options=options, limit=row + 1, needs_prompt=False)
    if len(rows) <= row:
        raise UserError(f"--row is {row}, but the dataset {source} has only {len(rows)} rows. The first is row 0.")
    return rows[row]


async def _judge(function: RewardFunction, task: Mapping[str, Any], answer: str) -> Judgement:
    from agentloop.rendering.parsing import TurnParser
    from agentloop.types.trajectory import Trajectory

    turn = TurnParser(None).parse(answer).message()
    trajectory = Trajectory(messages=[*task.get("messages", ()), turn], turn_rewards=[0.0], task=dict(task))
    await function.start()
    try:
        return await function.judge(trajectory, task)
    finally:
        await function.shutdown()
