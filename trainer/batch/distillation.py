"""On-policy distillation: add a teacher's log-probabilities of sampled tokens to their advantages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from agentloop.errors import UserError
from agentloop.process.retries import RETRIED, seconds_before_retry
from agentloop.trainer.batch.train_batch import Sample

_CONCURRENCY = 32
_ATTEMPTS = 6
_TIMEOUT = 300.0
"""Seconds."""
_CONNECT_SECONDS = 15.0


def distilled(
    samples: Sequence[Sample], teacher: Sequence[NDArray[np.float32]], weight: float
) -> tuple[list[Sample], dict[str, float]]:
    """Add weight * (log teacher - log policy) to the advantage of each sampled token (arXiv 2306.13649).

    `teacher` has the teacher's log-probabilities of the sampled tokens of each sample, [num_sampled]. The policy is the
    sampling policy, so the mean difference estimates the reverse KL, which is reported as a metric in nats per token.
    """
    gaps = [
        (scores - sample.logprobs[sample.loss_mask]).astype(np.float32)
        for sample, scores in zip(samples, teacher, strict=True)
    ]
    found = [
        replace(sample, advantage=(np.asarray(sample.advantage, np.float32) + np.float32(weight) * gap))
        for sample, gap in zip(samples, gaps, strict=True)
    ]
    count = sum(map(len, gaps))
    total = sum(float(gap.sum(dtype=np.float64)) for gap in gaps)
    return found, {"distillation/reverse_kl": -total / count} if count else {}


class TeacherEndpoint:
    """A teacher behind an OpenAI API whose completions return `prompt_logprobs`, like those of vLLM."""

    def __init__(self, url: str, served_name: str = "", *, pause: float = 1.0) -> None:
        """Set the address; `pause` is the number of seconds before the first retry, which doubles each time."""
        self._url = url.rstrip("/")
        self._client = httpx.Client(timeout=httpx.Timeout(_TIMEOUT, connect=_CONNECT_SECONDS))
        self._name = served_name
        self._pause = pause

    def start(self) -> None:
        """Contact the service once. Raises `UserError` if nothing answers, so that no step is played in vain."""
        try:
            self._client.get(f"{self._url}/models", timeout=_CONNECT_SECONDS)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error

    def __call__(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Return the teacher's log-probabilities of the sampled tokens of each sample, at temperature 1.

        Raises `UserError` if the service is unreachable, rejects a request or returns no log-probabilities.
        """
        if any(sample.images for sample in samples):
            raise UserError(
                f"An episode has images, which the teacher at {self._url} cannot score by token ids. Set "
                "algorithm.distillation.teacher to the folder of the teacher."
            )
        if any(sample.constrained for sample in samples):
            raise UserError(
                f"An episode has turns with a grammar, which the teacher at {self._url} scores without it. Set "
                "algorithm.distillation.teacher to the folder of the teacher."
            )
        if not self._name:
            self._name = str(self._request("GET", "models")["data"][0]["id"])
        with ThreadPoolExecutor(_CONCURRENCY, thread_name_prefix="teacher") as threads:
            return list(threads.map(self._score, samples))

    def _score(self, sample: Sample) -> NDArray[np.float32]:
        ids = sample.token_ids.tolist()
        body = {"model": self._name, "prompt": ids, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        answer = self._request("POST", "completions", body)["choices"][0].get("prompt_logprobs")
        if not isinstance(answer, list) or len(answer) != len(ids):
            raise UserError(
                f"The teacher at {self._url} returned no log-probabilities of the prompt. Serve it with a server whose "
                "completions take prompt_logprobs, such as `vllm serve`."
            )
        places = np.flatnonzero(sample.loss_mask)
        return np.array([answer[place][str(ids[place])]["logprob"] for place in places], np.float32)

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        for attempt in range(1, _ATTEMPTS + 1):
            last = attempt == _ATTEMPTS
            headers: httpx.Headers | None = None
            try:
                answer = self._client.request(method, f"{self._url}/{path}", json=body)
            except httpx.HTTPError as error:
                if last:
                    raise self._unreachable(error) from error
            else:
                if answer.is_success:
                    return answer.json()
                if last or answer.status_code not in RETRIED:
                    raise UserError(
                        f"The teacher at {self._url} rejected a request with status {answer.status_code}: "
                        f"{answer.text[:300]}. Its context must be longer than the episodes, and "
                        "algorithm.distillation.served_name one of its models."
                    )
                headers = answer.headers
            time.sleep(seconds_before_retry(attempt, self._pause, headers))
        raise AssertionError("the last attempt returns or raises")

    def _unreachable(self, error: Exception) -> UserError:
        return UserError(
            f"The teacher at {self._url} cannot be reached ({type(error).__name__}: {error}). Start it, or set "
            "algorithm.distillation.teacher to its address."
        )
