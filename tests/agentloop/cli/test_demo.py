import io
import json

import pytest
from rich.console import Console

from agentloop.cli import main
from agentloop.cli.demo.plot import plot
from agentloop.cli.demo.progress import SeedRun
from agentloop.cli.demo.report import coloured, print_examples, print_summary, write_summary
from agentloop.recipes.tiny.model import build_model
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for
from agentloop.types.trajectory import SegmentKind, Trajectory

pytestmark = pytest.mark.slow

METRICS = {"eval/tool_call_rate": 0.5, "rollout/tool_call_rate": 0.5, "reward/mean": 0.25}


def seed_run(seed, before, after, model=""):
    steps = [
        {"step": 0, "eval/reward/mean": before, "eval/tool_call_rate": 0.5},
        {"step": 1} | METRICS,
        {"step": 2, "eval/reward/mean": after} | METRICS,
    ]
    return SeedRun(seed, model=model, steps=steps, seconds=3.0)


def episode(renderer, task, reward, calls, answer):
    trajectory = Trajectory(task={"id": task}, reward=reward, metrics={"calls": calls})
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 * 7?"}]
    trajectory.append(SegmentKind.PROMPT, renderer.render_prompt(messages))
    ids = renderer.encode(answer)
    trajectory.append(SegmentKind.SAMPLED, ids, logprobs=[0.0] * len(ids), versions=[0] * len(ids))
    trajectory.append(SegmentKind.OBSERVATION, renderer.encode("seen"))
    return trajectory


def printed(function, *args, **options):
    console = Console(width=120, record=True, file=io.StringIO())
    function(console, *args, **options)
    return console.export_text()


def test_the_table_has_every_seed_and_the_mean():
    text = printed(print_summary, [seed_run(0, 0.1, 0.9), seed_run(1, 0.3, 1.0)], seconds=6.0)
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    assert lines == [
        ["0", "0.100", "0.900", "50%", "50%", "2", "3"],
        ["1", "0.300", "1.000", "50%", "50%", "2", "3"],
        ["mean", "0.200", "0.950", "50%", "50%", "2", "3"],
    ]


def test_the_summary_file_has_the_curve(tmp_path):
    write_summary([seed_run(4, 0.1, 0.9)], tmp_path / "summary.json")
    (data,) = json.loads((tmp_path / "summary.json").read_text())
    assert (data["seed"], data["before"], data["after"], data["rewards"]) == (4, 0.1, 0.9, [0.25, 0.25])


def test_tokens_are_coloured_by_who_wrote_them():
    renderer = renderer_for(build_tokenizer())
    text = coloured(episode(renderer, "a", 1.0, 1, "forty-two"), renderer)
    styles = {text.plain[span.start : span.end]: span.style for span in text.spans}
    assert styles["forty-two"] == "bold green"
    assert styles["seen"] == "yellow"
    hidden = len(renderer.encode("system\nBe brief.")) + 3  # <|im_start|>, <|im_end|> and the line end
    assert text.plain.startswith(f"[{hidden} tokens: the tool's schema]\n<|im_start|>user\n6 * 7?<|im_end|>\n")


def test_the_example_is_a_question_that_was_learned(tmp_path):
    model = build_model(tmp_path / "model")
    renderer = renderer_for(model)
    run = seed_run(0, 0.5, 1.0, model=str(model))
    run.evaluated = {
        0: {
            "known": episode(renderer, "known", 1.0, 1, "right-0"),
            "guessed": episode(renderer, "guessed", 0.0, 0, "wrong-1"),
            "learned": episode(renderer, "learned", 0.0, 1, "wrong-2"),
        },
        2: {
            "known": episode(renderer, "known", 1.0, 1, "right-3"),
            "guessed": episode(renderer, "guessed", 1.0, 1, "right-4"),
            "learned": episode(renderer, "learned", 1.0, 1, "right-5"),
        },
    }
    text = printed(print_examples, [run])
    assert text.index("wrong-2") < text.index("right-5")
    assert "wrong-1" not in text
    assert "right-3" not in text


def test_the_curve_is_an_image(tmp_path):
    path = plot([seed_run(0, 0.1, 0.9), seed_run(1, 0.2, 0.8)], tmp_path / "curve.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_whole_command_on_a_random_model(tmp_path, capsys):
    """Run every part for real, sandbox included; two steps are too few to learn from."""
    model = build_model(tmp_path / "model")
    small = ["algorithm.group_size=2", "algorithm.groups_per_step=2", "data.eval_options.num_rows=3"]
    folder = tmp_path / "demo"
    arguments = [f"model={model}", *small, "--seeds", "2", "--steps", "2", "--folder", str(folder)]
    with pytest.raises(SystemExit) as end:
        main(["demo", *arguments])
    assert end.value.code == 0
    output = capsys.readouterr().out
    assert "mean reward on held-out tasks" in output
    summary = json.loads((folder / "summary.json").read_text())
    assert [(run["seed"], run["steps"], len(run["rewards"])) for run in summary] == [(0, 2, 2), (1, 2, 2)]
    metrics = [json.loads(line) for line in (folder / "seed_1" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [0, 1, 2]
    assert {"eval/reward/mean", "eval/tool_call_rate"} <= metrics[0].keys() & metrics[2].keys()
    assert (folder / "curve.png").stat().st_size > 10_000
