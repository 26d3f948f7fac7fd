"""Every metric of metrics.jsonl: unit, meaning and when to worry. docs/reference/metrics.md shows this table."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(slots=True, frozen=True)
class Metric:
    """A metric, or a family of metrics."""

    name: str
    """Name; `*` stands for any text."""
    unit: str
    meaning: str
    worry: str = ""
    """Values that indicate a problem; empty if none do."""


METRICS = (
    Metric("step", "steps", "Number of the step. Step 0 is the evaluation before training."),
    Metric("policy_version", "steps", "Version of the weights after the step."),
    Metric("epoch", "passes", "Complete passes over the dataset."),
    # Rewards and episodes
    Metric("reward/mean", "reward", "Mean reward of the episodes of the step.", "It does not rise over 50 steps."),
    Metric("reward/std", "reward", "Standard deviation of these rewards.", "It is 0: there is nothing to learn."),
    Metric("reward/equal_groups", "share", "Groups whose episodes all have the same reward.", "It stays above 0.8."),
    Metric("reward/*", "of the reward", "Mean of a value that the reward function returns besides the reward."),
    Metric("source/*/groups", "groups", "Groups that were played for the step, of this source."),
    Metric("source/*/reward", "reward", "Mean reward of the episodes of this source.", "It does not rise."),
    Metric("source/*/level", "level", "Level of the source, from 0.", "It stays: lower `raise_at`."),
    Metric("source/*/kept", "share", "Measured tasks whose rewards are within `keep`.", "It falls to 0."),
    Metric("rollout/episodes", "episodes", "Episodes that were played for the step."),
    Metric("rollout/turns", "turns", "Mean turns of an episode.", "It falls to 1 although the task needs tools."),
    Metric("rollout/calls", "calls", "Mean tool calls of an episode.", "It falls to 0 although the task needs tools."),
    Metric("rollout/tool_call_rate", "share", "Episodes that called a tool.", "It falls to 0."),
    Metric("rollout/tokens", "tokens", "Mean length of an episode, with prompt and observations."),
    Metric("rollout/tokens_max", "tokens", "Length of the longest episode."),
    Metric("rollout/sampled_tokens", "tokens", "Mean sampled tokens of an episode.", "It keeps growing."),
    Metric("rollout/truncated", "share", "Episodes that a limit ended.", "It is above 0.2: raise the limit."),
    Metric("stop/*", "share", "Episodes that ended for this reason (`StopReason`)."),
    Metric("failures/episodes", "episodes", "Failed episodes. They are not trained.", "It is not 0."),
    Metric("failures/*", "failures", "Failures of this component. `model` counts unusable tool calls.", "It rises."),
    Metric("overruns/*", "calls", "Calls of environment or reward that exceeded their time.", "It is not 0."),
    Metric("tool/*", "of the tool", "Mean of a value that a tool reports, summed over the calls of an episode."),
    Metric("env/*", "of the environment", "Mean of a value that the environment reports."),
    Metric("eval/reward/mean", "reward", "Mean reward on the held-out tasks.", "It falls while reward/mean rises."),
    Metric("eval/reward/*", "as reward/*", "As `reward/*`, on the held-out tasks."),
    Metric(
        "eval/loss",
        "loss",
        "Loss per token of held-out conversations, or loss of held-out pairs.",
        "It rises: fewer epochs.",
    ),
    Metric("eval/accuracy", "as learner/*", "As `learner/accuracy`, on held-out pairs."),
    Metric("eval/margin", "as learner/*", "As `learner/margin`, on held-out pairs."),
    Metric(
        "eval/*_reward", "as learner/*", "As `learner/better_reward` and `learner/worse_reward`, on held-out pairs."
    ),
    Metric("eval/tool_call_rate", "share", "As `rollout/tool_call_rate`, on the held-out tasks."),
    Metric("eval/failed", "share", "Failed episodes of the evaluation.", "It is not 0: they do not count in the mean."),
    # Learner
    Metric(
        "distillation/reverse_kl",
        "nats",
        "Mean of log policy - log teacher over sampled tokens.",
        "It stays high: the model is too small, or the teacher has another format.",
    ),
    Metric("learner/loss", "loss", "Mean loss over updates. Its size says little for policy gradients."),
    Metric("learner/grad_norm", "norm", "Norm of the gradient before clipping.", "It jumps by a factor of ten."),
    Metric("learner/lr", "rate", "Learning rate."),
    Metric("learner/entropy", "nats", "Entropy of the sampled distributions.", "It approaches 0, or rises steadily."),
    Metric(
        "learner/logprob_diff",
        "nats",
        "Mean difference of the log-probabilities of learner and engine, before the first update.",
        "It is above 0.05, or grows from step to step: engine and learner compute different models.",
    ),
    Metric("learner/logprob_diff_max", "nats", "Largest such difference of a token."),
    Metric("learner/ratio", "ratio", "Mean of new to old probability of the tokens.", "It is far from 1."),
    Metric("learner/approx_kl", "nats", "KL divergence of the old to the new policy (k3).", "It is above 0.1."),
    Metric("learner/reference_kl", "nats", "KL divergence to the reference model.", "It keeps growing."),
    Metric("learner/clip_fraction", "share", "Tokens whose update was clipped.", "It is above 0.3: lower the rate."),
    Metric("learner/dual_clip_fraction", "share", "Tokens that the second bound clipped.", "It is above 0.05."),
    Metric(
        "learner/sequence_ratio",
        "ratio",
        "Geometric mean of the ratios of an episode, averaged over tokens.",
    ),
    Metric("learner/importance_weight", "ratio", "Mean weight of the corrections of stale tokens.", "It is below 0.5."),
    Metric("learner/rejected", "share", "Tokens that the corrections rejected.", "It is above 0.3."),
    Metric("learner/accuracy", "share", "Pairs of dpo whose better answer has the higher reward.", "It stays at 0.5."),
    Metric("learner/margin", "nats", "Reward of the better answer of a pair of dpo, minus that of the worse one."),
    Metric(
        "learner/better_reward", "nats", "beta * log(policy / reference) of the better answers of dpo.", "It falls."
    ),
    Metric("learner/worse_reward", "nats", "The same for the worse answers."),
    Metric(
        "learner/experts/max_share",
        "share",
        "Fraction of router choices for the busiest expert of a layer, averaged over layers.",
        "It grows: the router collapses to few experts.",
    ),
    Metric("learner/experts/max_share/*", "share", "The same of one layer."),
    Metric("learner/experts/idle", "share", "Experts that computed no token of the step.", "It grows."),
    Metric("learner/experts/idle/*", "share", "The same of one layer."),
    Metric("learner/experts/entropy", "nats", "Entropy of the load of the experts, averaged over layers."),
    Metric("learner/experts/entropy/*", "nats", "The same of one layer."),
    Metric(
        "learner/experts/changed",
        "share",
        "Experts chosen by the engine that the learner's router would not choose (`learner.router_replay`).",
        "It is above 0.1: engine and learner compute different models.",
    ),
    Metric("learner/updates", "updates", "Updates of the optimizer in the step.", "It is 0."),
    Metric(
        "learner/updates_skipped",
        "updates",
        "Updates skipped because of a gradient that is not finite.",
        "It is not 0.",
    ),
    Metric("learner/updates_skipped_total", "updates", "The same since the run started.", "It grows."),
    Metric("learner/num_tokens", "tokens", "Tokens of the batch."),
    Metric("learner/num_sampled", "tokens", "Trained tokens of the batch."),
    Metric("learner/num_trajectories", "token streams", "Token streams of the batch."),
    Metric("learner/computed_tokens", "tokens", "Tokens that went through the model, shared prefixes once."),
    Metric("learner/balance", "share", "Mean work of a rank relative to the busiest one.", "It is below 0.8."),
    Metric("learner/memory_peak_gib", "GiB", "Largest memory of torch on a GPU of the learner."),
    Metric(
        "learner/memory_expected_gib",
        "GiB",
        "Estimate of `agentloop plan` for the peak.",
        "It is far from the peak.",
    ),
    Metric("learner/largest_row", "tokens", "Tokens of the largest micro-batch of the first rank so far."),
    Metric("critic/explained_variance", "share", "Variance of the returns that the critic explains.", "It stays at 0."),
    Metric("critic/*", "as learner/*", "As `learner/*`, of the critic."),
    Metric("process_reward/accuracy", "share", "Outcomes that the process reward model predicts.", "It is near 0.5."),
    Metric("process_reward/*", "as learner/*", "As `learner/*`, of the process reward model."),
    Metric("batch/*", "token streams", "Token streams of the step that were not trained, by reason.", "It is not 0."),
    Metric(
        "sampling/rounds", "rounds", "Rounds of dynamic sampling.", "It is near its limit: tasks are too easy or hard."
    ),
    Metric("sampling/groups_*", "groups", "Groups that the step played, by outcome."),
    # Asynchronous runs and workers
    Metric("staleness/mean", "steps", "Mean age of the trained tokens.", "It is at the bound."),
    Metric("staleness/max", "steps", "Age of the oldest trained token. It never exceeds the bound."),
    Metric("staleness/mixed", "share", "Token streams with tokens of several versions."),
    Metric("staleness/masked", "share", "Sampled tokens that were too old to train.", "It is above 0.1."),
    Metric("queue/groups_running", "groups", "Groups that play at the end of the step."),
    Metric("queue/groups_waiting", "groups", "Finished groups that wait for training.", "Often 0: the learner waits."),
    Metric("queue/dropped/*", "episodes", "Episodes dropped since the run started, by reason.", "It grows each step."),
    Metric("queue/admitted", "episodes", "Episodes started since the run started."),
    Metric(
        "queue/trained",
        "episodes",
        "Episodes of trained groups since the run started, also those without a trained token.",
    ),
    Metric(
        "bias/tokens",
        "ratio",
        "Mean length of trained over finished episodes, since the run started.",
        "Below 0.9: long ones are lost.",
    ),
    Metric("workers/alive", "workers", "Ray workers that are ready.", "It is below the requested number."),
    Metric("workers/draining", "workers", "Workers that finish their episodes and leave."),
    Metric("workers/room", "episodes", "Episodes that all workers may play at once."),
    Metric("workers/recalled_turns", "turns", "Turns of interrupted episodes that were replayed."),
    Metric(
        "workers/engine_*", "times", "Restarts of engines, by cause, since the run started or resumed.", "It grows."
    ),
    Metric("workers/weights_*", "times", "Weight updates of workers, by transport, since the run started or resumed."),
    Metric("workers/*", "times", "Workers lost since the run started or resumed, by cause.", "It grows."),
    Metric("memory/*_gib", "GiB", "Memory of all processes on the learner's first GPU, while it is shared."),
    # Times: all metrics that depend on the clock
    Metric("time/step", "seconds", "From the end of the step before to the end of this one, with its evaluation."),
    Metric("time/rollout", "seconds", "Waiting for episodes.", "Far above time/train: add engines, or overlap both."),
    Metric("time/train", "seconds", "Training."),
    Metric("time/publish", "seconds", "Sending weights to the engines.", "It is above a tenth of the step."),
    Metric("time/episode_mean", "seconds", "Mean time of an episode."),
    Metric("time/generating_mean", "seconds", "Part of it in the engine."),
    Metric("time/tools_mean", "seconds", "Part of it in tools.", "It is most of the episode."),
    Metric("time/bias_seconds", "ratio", "As `bias/tokens`, of the seconds of all episodes.", "It is below 0.9."),
    Metric("time/tokens_per_second", "1/s", "Tokens that the learner computes per second."),
    Metric("time/flops_per_second", "1/s", "FLOPs of the learner per second, on all ranks."),
    Metric("time/mfu", "share", "The same relative to the peak of the GPUs.", "It is below 0.2 on a large model."),
    Metric("time/learner_*", "seconds", "A phase of the learner: forward_backward, optimizer, log-probabilities."),
    Metric("time/tool/*", "seconds", "As `tool/*`, for times."),
    Metric(
        "time/env/seconds_waiting_for_box",
        "seconds",
        "Mean wait for a box after an episode got its turn.",
        "It is a large part of the episode: raise env.prepare_ahead.",
    ),
    Metric("time/env/seconds_starting_box", "seconds", "Mean time until a box was ready, in the background or not."),
    Metric("time/env/*", "seconds", "As `env/*`, for times."),
    Metric("time/reward/*", "seconds", "As `reward/*`, for times."),
    Metric("time/load", "seconds", "Start of models and tools, in the first line of a run."),
    Metric("time/load_*", "seconds", "Start of workers and learner. Both overlap unless they share a process or GPUs."),
    Metric("time/sleep", "seconds", "Handing shared GPUs from engines to the learner."),
    Metric("time/wake", "seconds", "Handing shared GPUs from the learner to engines."),
    Metric("time/eval", "seconds", "Evaluation."),
    Metric("time/save", "seconds", "Waiting for a checkpoint, a part of the step after it."),
)
"""The first entry that matches a name describes the metric."""


def find(name: str) -> Metric | None:
    """Return the entry of a metric; None if there is none."""
    return next((metric for metric in METRICS if fnmatchcase(name, metric.name)), None)
