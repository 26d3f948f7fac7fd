"""Trajectories of text and images, played turn by turn on an engine, and their logprobs from transformers."""

import copy

import numpy as np
import torch

from agentloop.engines.base import SamplingParams
from agentloop.types.trajectory import SegmentKind, Trajectory
from agentloop.vision.tower import patches, upload


def show(trajectory, renderer, ids, pictures, kind=SegmentKind.OBSERVATION):
    seen = [renderer.vision.see(one) for one in pictures]
    trajectory.append(kind, ids, images=renderer.vision.place(ids, seen, len(trajectory)))


def opened(renderer, pictures, name="t", text="look", group=None):
    parts = [{"type": "text", "text": text}, *({"type": "image", "image": one} for one in pictures)]
    trajectory = Trajectory(trajectory_id=name, group_id=group or name)
    show(trajectory, renderer, renderer.render_prompt([{"role": "user", "content": parts}]), pictures, "prompt")
    return trajectory


async def play(engine, renderer, trajectory, turns, seed=0, max_tokens=9):
    """Play an episode; `turns` lists the images that answer each turn."""
    for number, pictures in enumerate([*turns, None]):
        params = SamplingParams(max_tokens=max_tokens, seed=seed + number)
        turn = await engine.generate(
            trajectory.ids, params, trajectory_id=trajectory.trajectory_id, images=trajectory.images
        )
        trajectory.append(SegmentKind.SAMPLED, turn.ids, logprobs=turn.logprobs, versions=turn.versions)
        if pictures is not None:
            parts = [{"type": "image", "image": one} for one in pictures]
            answer = renderer.render_continuation(turn.ids, [{"role": "tool", "content": parts}])
            trajectory.append(SegmentKind.TEMPLATE, answer.closing)
            show(trajectory, renderer, answer.observation, pictures)
    return trajectory


@torch.inference_mode()
def logprobs_of(model, trajectory):
    """Return the log-probabilities of the sampled tokens, by one plain forward of transformers."""
    row = trajectory.token_ids.astype(np.int64)
    is_picture = np.zeros(len(row), bool)
    for image in trajectory.images:
        is_picture[image.start : image.end] = True
    # Transformers would expect an image for a sampled image token, so an unused id with the same
    # embedding takes its place.
    model, used = copy.deepcopy(model), set(row.tolist())
    spare = next(one for one in range(model.config.get_text_config().vocab_size) if one not in used)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    embeddings = model.get_input_embeddings().weight
    embeddings[spare] = embeddings[model.config.image_token_id]
    targets = row.copy()
    row[(row == model.config.image_token_id) & ~is_picture] = spare
    seen = [image.image for image in trajectory.images]
    out = model(
        input_ids=torch.from_numpy(row)[None],
        pixel_values=torch.cat([patches(one, s.format) for one, s in zip(upload(seen, "cpu"), seen, strict=True)]),
        image_grid_thw=torch.tensor([[1, *image.grid] for image in seen]),
        mm_token_type_ids=torch.from_numpy(is_picture.astype(np.int32))[None],
    )
    sampled = np.flatnonzero(trajectory.loss_mask)
    logprobs = torch.log_softmax(out.logits[0, sampled - 1].float(), -1)
    return logprobs.gather(1, torch.from_numpy(targets[sampled])[:, None])[:, 0].numpy()
