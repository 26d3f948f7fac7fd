"""On-policy distillation: from a later checkpoint that the learner loads, or from a service."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentloop.api.recipe import load_fine_tuning_config
from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.batch.distillation import TeacherEndpoint, distilled
from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.fine_tuning.train import fine_tune
from agentloop.trainer.run.export import export
from agentloop.trainer.run.train import resolve_run, train

pytestmark = pytest.mark.slow

HF = "engine={name: hf, options: {device: cpu}}"
SHORT = ["limits={max_turns: 1, max_turn_tokens: 8, max_tokens: 512}", "run.loggers=[]", "eval.every=0"]
EARLY = 26
"""Step of supervised training after which the student is a copy of the model; the teacher learns on."""


@pytest.fixture
async def checkpoints(sums):
    """Folders of an early checkpoint and of the last one of the same supervised run."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"What is {n} plus {n}?"},
                {"role": "assistant", "content": "The sum is even."},
            ]
        }
        for n in range(8)
    ]
    (sums / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (sums / "sft.yaml").write_text(
        "model: ./model\ndata: {train: rows.jsonl, tools: ['sums.py:add']}\nbatch_size: 8\n"
        f"learner: {{lr: 5e-3, device: cpu}}\nrun: {{steps: 40, save_every: {EARLY}, loggers: []}}\n"
    )
    folder = await fine_tune(load_fine_tuning_config(str(sums), [], "sft"), sums / "supervised")
    export(folder.root, sums / "early", step=EARLY)
    return sums / "early", folder.model


def config(sums, teacher, *overrides):
    distillation = f"algorithm.distillation={{teacher: '{teacher}'}}"
    return load_config(RunConfig, sums / "config.yaml", [HF, *SHORT, distillation, *overrides])


async def test_a_model_reaches_its_later_checkpoint(sums, checkpoints):
    student, teacher = checkpoints
    settings = [f"model={student}", "learner.lr=6e-3", "learner.lr_schedule=cosine", "run.steps=90", "env.reward=null"]
    folder = await train(config(sums, teacher, *settings, "algorithm.groups_per_step=4"), sums / "run")
    kl = [line["distillation/reverse_kl"] for line in folder.read_metrics()]
    assert np.mean(kl[:3]) > 0.5
    assert np.mean(kl[-8:]) < 0.05


async def test_rewards_and_the_teacher_mix_in_every_mode(sums, checkpoints):
    mode = ["staleness.mode=partial", "learner.corrections=[truncate]", "run.steps=3"]
    folder = await train(config(sums, checkpoints[1], *mode), sums / "run")
    assert all("distillation/reverse_kl" in line and "reward/mean" in line for line in folder.read_metrics())


def test_the_gap_to_the_teacher_is_added_to_the_advantage_of_each_token():
    mask = np.array([False, True, False, True])
    logprobs = np.where(mask, np.float32(-2), np.float32(0))
    sample = Sample(np.zeros(4, np.int32), mask, logprobs, np.zeros(4, np.int32), advantage=0.5)
    [found], metrics = distilled([sample], [np.array([-1.0, -4.0], np.float32)], 0.5)
    assert found.advantage.tolist() == [0.5 + 0.5 * 1, 0.5 - 0.5 * 2]
    assert metrics == {"distillation/reverse_kl": pytest.approx(0.5)}


@pytest.fixture
def service(sums_model):
    """The address of a service that answers as vLLM does, with the log-probabilities of transformers."""
    model = AutoModelForCausalLM.from_pretrained(sums_model, dtype=torch.float32)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.reply({"data": [{"id": "teacher"}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert (body["model"], body["prompt_logprobs"]) == ("teacher", 0)
            ids = torch.tensor(body["prompt"])
            with torch.no_grad():
                scores = model(ids[None]).logits[0].log_softmax(-1)
            told = [
                None,
                *({str(i.item()): {"logprob": row[i].item()}} for i, row in zip(ids[1:], scores, strict=False)),
            ]
            self.reply({"choices": [{"text": "", "prompt_logprobs": told}]})

        def reply(self, answer):
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


async def test_a_service_scores_as_the_model_does(sums, service, monkeypatch):
    made, make = [], TeacherEndpoint.__init__
    monkeypatch.setattr(TeacherEndpoint, "__init__", lambda *given: made.append(make(*given)))
    folder = await train(config(sums, service, "run.steps=1"), sums / "run")
    [line] = folder.read_metrics()
    assert line["distillation/reverse_kl"] == pytest.approx(0, abs=1e-4)  # it serves the model itself
    assert len(made) == 1  # the check at the start and the run share its client


def test_a_service_that_cannot_be_reached_is_named():
    with pytest.raises(UserError, match=r"http://127.0.0.1:9/v1 cannot be reached"):
        TeacherEndpoint("http://127.0.0.1:9/v1", pause=0.0)([])


async def test_a_service_that_cannot_be_reached_ends_the_start(sums):
    with pytest.raises(UserError, match=r"http://127.0.0.1:9/v1 cannot be reached"):
        await train(config(sums, "http://127.0.0.1:9/v1"), sums / "run")
    assert not (sums / "run").exists()


def test_an_address_that_is_none_is_named():
    with pytest.raises(UserError, match=r"http://\[::1/v1 cannot be reached"):
        TeacherEndpoint("http://[::1/v1").start()


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("learner.kl_coef=0.1", "another one"),
        ("learner.loss=sft", "ignores advantages"),
        ("algorithm.dynamic_sampling={}", "and distillation"),
    ],
)
def test_settings_that_contradict_a_teacher_are_refused(sums, override, error):
    with pytest.raises(UserError, match=error):
        resolve_run(config(sums, sums / "model", override), sums / "run")
