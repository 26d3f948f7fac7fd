"""`RolloutSetup`: datasets, tools, reward and renderer of a run, loaded from its config."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop import engines
from agentloop.config.resolved import ResolvedConfig, context_length
from agentloop.config.run import RunConfig
from agentloop.config.tasks import SourceConfig
from agentloop.envs.agent.program import AgentProgram
from agentloop.envs.base import BaseEnv, Env
from agentloop.envs.datasets.dataset import load_dataset
from agentloop.envs.datasets.images import has_row_images
from agentloop.envs.datasets.verl_columns import unused_agents
from agentloop.envs.mixture import MixedSampler, Source
from agentloop.envs.players.program import PlayersProgram
from agentloop.envs.registry import load_factory, make_env
from agentloop.envs.rewards import RewardFunction, load_reward
from agentloop.envs.sampler import TaskSampler
from agentloop.envs.tool_env import ToolEnv
from agentloop.envs.workers.pool import close_pools
from agentloop.episodes.loop import AgentLoop
from agentloop.episodes.prompt_lengths import check_one_fits, of_length
from agentloop.episodes.worker import RolloutWorker
from agentloop.errors import UserError
from agentloop.players.checks import check_players
from agentloop.players.opponents import close_opponents
from agentloop.registry.named_objects import load_object
from agentloop.registry.options import as_annotated
from agentloop.rendering import renderer_for
from agentloop.rendering.transcript import Transcript
from agentloop.tools import registry
from agentloop.tools.toolset import Toolset
from agentloop.types.requests import RolloutRequest, Sampling

if TYPE_CHECKING:
    from agentloop.engines.base import Engine
    from agentloop.rendering.base import Renderer

Row = dict[str, Any]

_logger = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class RunTasks:
    """Parts of a run that need no model: tasks, tools, environment and reward."""

    blocks: list[list[Row]]
    """Training tasks: one list, or one list for each level of each source."""
    eval: list[Row]
    """Held-out tasks; empty if the run has none."""
    toolset: Toolset
    reward: RewardFunction | None
    """Reward function; None if the environment alone scores episodes."""
    make_env: Callable[[Row], Env | AgentProgram]
    needs_prompt: bool
    can_prepare: bool
    """Whether the environments begin something in `prepare`."""

    @property
    def train(self) -> list[Row]:
        """All training tasks."""
        return [row for block in self.blocks for row in block]

    @classmethod
    def load(cls, config: RunConfig) -> RunTasks:
        """Load the tasks, tools, environment and reward of a config. Raises `UserError` for unusable parts."""
        data = config.data
        factory = load_factory(config.env.factory, config.env.options)
        options = as_annotated(factory, config.env.options, of=f"environment {config.env.factory!r}")
        if isinstance(factory, type) and issubclass(factory, AgentProgram):
            from agentloop.gateway.server import load_server

            load_server()
        needs_prompt = getattr(factory, "needs_prompt", False)
        load = partial(load_dataset, needs_prompt=needs_prompt)
        reward = _load_reward(config, factory)
        toolset = Toolset([tool for each in config.env.tools for tool in registry.load_all(each.name, **each.options)])
        tasks = cls(
            needs_prompt=needs_prompt,
            can_prepare=getattr(factory, "prepare", BaseEnv.prepare) is not BaseEnv.prepare,
            reward=reward,
            toolset=toolset,
            blocks=[load(source, options=options, limit=limit) for source, options, limit in data.train_blocks],
            eval=load(data.eval, options=data.eval_options, limit=data.eval_limit) if data.eval else [],
            make_env=partial(make_env, factory, toolset=toolset, reward=reward, options=options),
        )
        rows = [*tasks.train, *tasks.eval]
        if isinstance(factory, type) and issubclass(factory, BaseEnv):
            factory.check_rows(rows, config.env.options)
        if factory is ToolEnv:  # other environments may read these columns
            for problem in unused_agents(rows, toolset.tools):
                _logger.warning(problem)
        if isinstance(factory, type) and issubclass(factory, PlayersProgram):
            check_players(rows, tasks.make_env)
        return tasks


@dataclass(slots=True, frozen=True)
class RolloutSetup:
    """Datasets, tools, reward and renderer of a run."""

    config: RunConfig
    """The config, with `run.epochs` converted to steps."""
    train: list[Row]
    eval: list[Row]
    """Held-out tasks; empty if the run has none."""
    toolset: Toolset
    reward: RewardFunction | None
    """Reward function; None if the environment alone scores episodes."""
    renderer: Renderer
    make_env: Callable[[Row], Env | AgentProgram]
    sources: Sequence[Source] = ()
    """Sources of the training tasks; empty if `data.train` has no weighted sources."""
    needs_prompt: bool = True
    """Whether rows contain the prompts; otherwise the environment writes its own."""
    can_prepare: bool = False
    """Whether the environments begin something in `prepare`."""

    @classmethod
    def load(cls, config: RunConfig, model: Path) -> RolloutSetup:
        """Load the setup. Raises `UserError` for unusable parts.

        The tokenizer comes from the folder `model`; engines that take messages do not need one.
        """
        tasks = RunTasks.load(config)
        toolset = tasks.toolset
        renderer = _load_renderer(config, model)
        fitting = partial(of_length, most=config.data.max_prompt_tokens, renderer=renderer, tools=toolset.schemas)
        blocks = [fitting(block) for block in tasks.blocks]
        episodes = cls(
            config=config,
            train=[row for block in blocks for row in block],
            sources=_sources(config.data.sources, blocks),
            eval=fitting(tasks.eval),
            toolset=toolset,
            reward=tasks.reward,
            renderer=renderer,
            make_env=tasks.make_env,
            needs_prompt=tasks.needs_prompt,
            can_prepare=tasks.can_prepare,
        )
        episodes._check_images()
        longest = config.max_tokens(context_length(model))
        if tasks.needs_prompt:
            for key, rows in (("data.train", episodes.train), ("data.eval", episodes.eval)):
                check_one_fits(rows, key, most=longest, renderer=renderer, tools=toolset.schemas)
        if not engines.ENGINES.get(config.engine.name).takes_images:
            episodes.renderer.vision = None  # text notes replace images in tool results
        return episodes

    def _check_images(self) -> None:
        """Raise `UserError` if rows have images that the model or the engine cannot take."""
        rows = (
            row for row in [*self.train, *self.eval] if row.get("images") or has_row_images(row.get("messages", ()))
        )
        row = next(rows, None)
        if row is None:
            return
        if not engines.ENGINES.get(self.config.engine.name).takes_images:
            raise UserError(
                f"Row {row['id']!r} has images, but the engine {self.config.engine.name} takes none. Set engine.name "
                "to vllm or hf."
            )
        if self.renderer.vision is None:
            raise UserError(
                f"Row {row['id']!r} has images, but {self.config.model} has no vision tower. Set model to a "
                "vision-language model (Qwen2-VL, Qwen2.5-VL, Qwen3-VL), or remove the images from the rows."
            )

    @property
    def sampling(self) -> Sampling:
        """Sampling parameters of the run."""
        return Sampling(**self.config.sampling.model_dump())

    def sampler(self) -> TaskSampler | MixedSampler:
        """Return the sampler that draws the training tasks of the run."""
        seed, shuffle = self.config.run.seed, self.config.data.shuffle
        if self.sources:
            return MixedSampler(self.sources, seed=seed, shuffle=shuffle)
        return TaskSampler(len(self.train), seed=seed, shuffle=shuffle)

    def worker(self, engine: Engine) -> RolloutWorker:
        """Return a worker that plays requests of this run against an engine."""
        loop = AgentLoop(engine, self.renderer, limits=self.config.limits, sampling=self.sampling)
        return RolloutWorker(
            loop,
            self._env_of,
            max_concurrency=self.config.engine.max_concurrency,
            prepare_ahead=self.config.env.prepare_ahead if self.can_prepare else 0,
        )

    def _env_of(self, request: RolloutRequest) -> Env | AgentProgram:
        rows = self.train if request.split == "train" else self.eval
        return self.make_env(rows[request.row])


def _sources(sources: Sequence[SourceConfig], blocks: Sequence[list[Row]]) -> list[Source]:
    """Return the sources with their index ranges in the list of all training tasks."""
    ends = [0, *accumulate(map(len, blocks))]
    tasks = iter([range(start, end) for start, end in pairwise(ends)])
    return [
        Source(
            name=each.shown_name,
            weight=each.weight,
            levels=[next(tasks) for _ in each.levels or [{}]],
            keep=each.keep,
            raise_at=each.raise_at,
        )
        for each in sources
    ]


def _load_renderer(config: RunConfig, model: Path) -> Renderer:
    rendering, engine = config.rendering, config.engine.name
    if (reader := engines.ENGINES.get(engine).read_turn) is not None:
        if own := [f"rendering.{name}" for name in ("inline", "chat_template_kwargs") if getattr(rendering, name)]:
            raise UserError(
                f"{' and '.join(own)} cannot apply to engine.name={engine}: the service renders messages itself. Unset "
                f"{' and '.join(own)}; pass fields of the service in engine.options.extra_body."
            )
        return Transcript(load_object(reader, "engine"))
    return renderer_for(model, **dict(rendering))


def _load_reward(config: RunConfig, factory: Callable[..., Env | AgentProgram]) -> RewardFunction | None:
    if config.env.reward is not None:
        return load_reward(config.env.reward, config.env.reward_options)
    if config.algorithm.distillation is not None:
        return load_reward("none")
    if isinstance(factory, type) and issubclass(factory, ToolEnv) and factory.score is ToolEnv.score:
        raise UserError("env.reward is missing. Name the reward that judges the answers, such as `reward: exact`.")
    return None


def make_engine(config: ResolvedConfig) -> Engine:
    """Make the engine of a resolved config, without starting it. Raises `UserError`."""
    return engines.create(config.engine.name, **config.engine.options)


@asynccontextmanager
async def started(engine: Engine, episodes: RolloutSetup) -> AsyncIterator[Engine]:
    """Start the engine, the tools and the reward of the episodes, and shut them down at the end.

    Workers of environments start on demand; they are shut down here, too.
    """
    reward = episodes.reward
    async with AsyncExitStack() as stack:  # a failure of one does not keep the others open
        stack.push_async_callback(episodes.toolset.shutdown)
        if reward is not None:
            stack.push_async_callback(reward.shutdown)
        stack.push_async_callback(engine.close)
        stack.push_async_callback(close_opponents)
        stack.callback(close_pools)
        await episodes.toolset.start()
        if reward is not None:
            await reward.start()
        await engine.start()
        yield engine
