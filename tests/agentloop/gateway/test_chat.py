"""The chat API through the official client: what comes back, and which tokens it leaves."""

import asyncio
from pathlib import Path

import httpx
import openai
import pytest

from agentloop import Limits, StopReason
from agentloop.engines.base import FinishReason
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.errors import EngineError, FailureKind
from agentloop.gateway import Gateway, Sampling
from agentloop.gateway.application import application
from agentloop.gateway.dialects.chat import Chat
from agentloop.tools.serving.http.protocol import BoundedProtocol
from agentloop.types.trajectory import SegmentKind

pytestmark = pytest.mark.slow

CHECKPOINT = Path(__file__).parents[3] / "recipes" / "tiny" / "checkpoint"
END = "<|im_end|>"
CALL = '<tool_call>\n{"name": "add", "arguments": {"b": 3, "a": 2}}\n</tool_call>'
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
        },
    }
]
KINDS = [
    SegmentKind.PROMPT,
    SegmentKind.SAMPLED,
    SegmentKind.TEMPLATE,
    SegmentKind.OBSERVATION,
    SegmentKind.SAMPLED,
]


class Endless(ScriptedEngine):
    """Its turns never end."""

    def __init__(self):
        super().__init__([[0]])
        self.running = asyncio.Event()

    async def generate(self, prompt, params, *, trajectory_id, images=()):
        self.running.set()
        return await asyncio.Event().wait()


def of_kind(trajectory, kind):
    ids = trajectory.token_ids.tolist()
    return [ids[s.start : s.end] for s in trajectory.segments if s.kind is kind]


async def test_a_tool_call_and_an_answer_are_one_stream(recorder, serving, ask, tokenizer, ids_of):
    engine = recorder(CALL + END, "It is 5." + END)
    async with serving(engine) as (client, session):
        messages = [{"role": "user", "content": "2 + 3?"}]
        first = await ask(client, messages, tools=TOOLS)
        (call,) = first.message.tool_calls
        assert (first.finish_reason, first.message.content) == ("tool_calls", None)
        assert (call.function.name, call.function.arguments) == ("add", '{"b": 3, "a": 2}')
        messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "5"}]
        second = await ask(client, messages, tools=TOOLS)
        assert (second.finish_reason, second.message.content) == ("stop", "It is 5.")
    (stream,) = session.trajectories()
    assert [segment.kind for segment in stream.segments] == KINDS
    assert of_kind(stream, SegmentKind.SAMPLED) == [ids_of(CALL + END), ids_of("It is 5." + END)]
    assert of_kind(stream, SegmentKind.TEMPLATE) == [ids_of("\n")]
    assert of_kind(stream, SegmentKind.OBSERVATION) == [
        ids_of("<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
    ]
    assert stream.logprobs[stream.loss_mask].tolist() == [*engine.sampled[0].logprobs, *engine.sampled[1].logprobs]
    assert stream.versions[stream.loss_mask].tolist() == [*engine.sampled[0].versions, *engine.sampled[1].versions]
    assert engine.names == ["t", "t"]
    whole = tokenizer.apply_chat_template(stream.messages, tools=TOOLS, tokenize=False)
    assert tokenizer.decode(stream.token_ids) + "\n" == whole


async def test_sampled_ids_are_kept_even_if_no_tokenizer_makes_them(recorder, serving, ask, renderer):
    """The text of the turn is "hello", in five tokens of a letter each."""
    letters = [renderer.encode(letter)[0] for letter in "hello"]
    assert renderer.encode("hello") != letters
    engine = recorder("")
    engine.turns = [[*letters, renderer.stop_token_ids[0]]]
    async with serving(engine) as (client, session):
        first = await ask(client, "Say hello.")
        assert first.message.content == "hello"
        await ask(client, [{"role": "user", "content": "Say hello."}, first.message, {"role": "user", "content": "x"}])
    (stream,) = session.trajectories()
    assert of_kind(stream, SegmentKind.SAMPLED) == [engine.turns[0]] * 2
    assert engine.asked[1][: len(engine.asked[0]) + 6] == [*engine.asked[0], *engine.turns[0]]


async def test_a_rewritten_history_begins_a_branch(recorder, serving, ask):
    engine = recorder("one" + END, "two" + END, "three" + END, "four" + END)
    question = {"role": "user", "content": "Count."}
    go_on = {"role": "user", "content": "go on"}
    async with serving(engine) as (client, session):
        first = {"role": "assistant", "content": (await ask(client, [question])).message.content}
        second = {"role": "assistant", "content": (await ask(client, [question, first, go_on])).message.content}
        edited = {"role": "user", "content": "go on, faster"}
        await ask(client, [question, first, edited])  # another question behind the first turn
        await ask(client, [question, first, go_on, second, {"role": "user", "content": "more"}])
    main, branch = session.trajectories()
    assert (main.trajectory_id, branch.trajectory_id) == ("t", "t.1")
    assert [m["content"] for m in main.messages] == ["Count.", "one", "go on", "two", "more", "four"]
    assert [m["content"] for m in branch.messages] == ["Count.", "one", "go on, faster", "three"]
    assert (main.num_turns, branch.num_turns) == (3, 1)
    shared = len(engine.asked[0]) + len(engine.sampled[0].ids)
    assert branch.segments[0].kind is SegmentKind.PROMPT
    assert branch.segments[0].end == shared
    assert branch.token_ids[:shared].tolist() == main.token_ids[:shared].tolist()
    assert not branch.loss_mask[:shared].any()  # "one" carries loss once
    assert branch.turn_rewards == [0.0]


async def test_an_assistant_message_that_was_changed_is_context(recorder, serving, ask, ids_of):
    engine = recorder("one" + END, "two" + END)
    question = {"role": "user", "content": "Count."}
    async with serving(engine) as (client, session):
        await ask(client, [question])
        await ask(client, [question, {"role": "assistant", "content": "ONE"}, question])
    main, other = session.trajectories()
    assert of_kind(main, SegmentKind.SAMPLED) == [ids_of("two" + END)]
    assert of_kind(other, SegmentKind.SAMPLED) == [ids_of("one" + END)]


async def test_the_same_request_twice_is_two_streams(recorder, serving, ask):
    engine = recorder("a" + END, "b" + END)
    async with serving(engine) as (client, session):
        await asyncio.gather(ask(client, "Name a letter."), ask(client, "Name a letter."))
    streams = session.trajectories()
    assert sorted(stream.final_text for stream in streams) == ["a", "b"]
    assert engine.asked[0] == engine.asked[1]
    assert len({params.seed for params in engine.params}) == 2
    assert len(set(engine.names)) == 2


async def test_thinking_may_be_sent_back_or_left_out(recorder, serving, ask):
    engine = recorder("<think>\nhm\n</think>\n\nyes" + END)
    question, go_on = {"role": "user", "content": "?"}, {"role": "user", "content": "!"}
    async with serving(engine) as (client, session):
        said = (await ask(client, [question])).message
        assert (said.content, said.reasoning_content) == ("yes", "hm")
        second = (await ask(client, [question, {"role": "assistant", "content": "yes"}, go_on])).message
        history = [question, {"role": "assistant", "content": "yes"}, go_on, second.model_dump(exclude_none=True)]
        await ask(client, [*history, go_on])
        changed = {"role": "assistant", "content": "yes", "reasoning_content": "changed"}
        await ask(client, [question, changed, go_on])
    assert [stream.num_turns for stream in session.trajectories()] == [1, 3]


async def test_a_template_that_cannot_append_gets_the_whole_conversation(recorder, serving, ask, renderer, monkeypatch):
    from agentloop.errors import UserError

    def unstable(*_):
        raise UserError("not prefix-stable")

    monkeypatch.setattr(renderer, "render_continuation", unstable)
    engine = recorder("one" + END, "two" + END)
    question = {"role": "user", "content": "Count."}
    async with serving(engine) as (client, session):
        first = (await ask(client, [question])).message
        await ask(client, [question, first, question])
    assert [stream.num_turns for stream in session.trajectories()] == [1, 1]
    assert engine.asked[1] == renderer.render_prompt([question, {"role": "assistant", "content": "one"}, question])


async def test_a_stream_of_events(recorder, serving):
    engine = recorder("Adding." + CALL + END)
    async with serving(engine) as (client, session):
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "2 + 3?"}], tools=TOOLS, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        events = [event async for event in stream]
    deltas = [event.choices[0].delta for event in events if event.choices]
    assert "".join(delta.content or "" for delta in deltas) == "Adding."
    (call,) = [call for delta in deltas for call in delta.tool_calls or ()]
    assert (call.index, call.function.name) == (0, "add")
    assert events[-2].choices[0].finish_reason == "tool_calls"
    assert events[-1].usage.completion_tokens == len(engine.sampled[0].ids)
    assert len({event.id for event in events}) == 1
    assert session.trajectories()[0].num_turns == 1


async def test_logprobs_ids_and_usage(recorder, serving, ids_of, tokenizer):
    engine = recorder("5é" + END)
    async with serving(engine) as (client, _):
        answer = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "?"}], logprobs=True,
            extra_body={"return_token_ids": True},
        )  # fmt: skip
    choice = answer.choices[0]
    assert choice.token_ids == ids_of("5é" + END)
    assert answer.prompt_token_ids == engine.asked[0]
    assert [entry.logprob for entry in choice.logprobs.content] == list(engine.sampled[0].logprobs)
    assert choice.logprobs.content[0].token == "5"
    assert choice.logprobs.content[-1].token == END
    assert answer.usage.prompt_tokens == len(engine.asked[0])
    assert answer.usage.total_tokens == len(engine.asked[0]) + len(choice.token_ids)


async def test_a_cut_turn_has_no_calls_and_can_be_continued(recorder, serving, ask, ids_of):
    engine = recorder(CALL + END, "ok" + END)
    messages = [{"role": "user", "content": "2 + 3?"}]
    async with serving(engine) as (client, session):
        cut = len(ids_of(CALL)) - 1
        first = await ask(client, messages, tools=TOOLS, max_completion_tokens=cut)
        assert (first.finish_reason, first.message.tool_calls) == ("length", None)
        assert first.message.content.startswith("<tool_call>")
        await ask(client, [*messages, first.message, {"role": "user", "content": "go on"}], tools=TOOLS)
    (stream,) = session.trajectories()
    assert of_kind(stream, SegmentKind.SAMPLED)[0] == ids_of(CALL)[:cut]
    assert of_kind(stream, SegmentKind.TEMPLATE) == [ids_of(END + "\n")]  # inserted, not sampled
    assert session.num_calls == 0


async def test_stop_strings_end_a_turn_with_the_token_that_completes_one(serving, ask, ids_of):
    said = ids_of("Thought: add. Observation: 7 and more" + END)
    engine = ScriptedEngine([said], model=CHECKPOINT)
    messages = [{"role": "user", "content": "2 + 3?"}]
    async with serving(engine) as (client, session):
        first = await ask(client, messages, stop=["Observation:", "never", ""])
        assert (first.finish_reason, first.message.content) == ("stop", "Thought: add.")
        await ask(client, [*messages, first.message, {"role": "user", "content": "Observation: 5"}])
    (stream,) = session.trajectories()
    assert of_kind(stream, SegmentKind.SAMPLED) == [ids_of("Thought: add. Observation:"), said]
    assert of_kind(stream, SegmentKind.TEMPLATE) == [ids_of(END + "\n")]


async def test_without_tool_choice_nothing_is_read_as_a_call(recorder, serving, ask):
    engine = recorder(CALL + END)
    async with serving(engine) as (client, session):
        choice = await ask(client, "2 + 3?", tools=TOOLS, tool_choice="none")
        assert choice.message.tool_calls is None
        assert choice.message.content == CALL
    assert session.num_calls == 0


async def test_a_call_that_cannot_be_read_is_text_and_counted(recorder, serving, ask):
    bad = '<tool_call>\n{"name": "add", "arguments": {"a": 2,}\n</tool_call>'
    engine = recorder(bad + END)
    async with serving(engine, limits=Limits(max_invalid_turns=2)) as (client, session):
        messages = [{"role": "user", "content": "2 + 3?"}]
        for _ in range(2):
            choice = await ask(client, messages, tools=TOOLS)
            assert (choice.message.content, choice.finish_reason) == (bad, "stop")
            messages += [choice.message, {"role": "user", "content": "Again."}]
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client, messages, tools=TOOLS)
    assert caught.value.code == "invalid_calls"
    assert session.refused is StopReason.INVALID_CALLS
    assert session.failures[FailureKind.MODEL] == 2
    assert session.num_calls == 2, "as in the loop: metrics compare the two numbers"
    assert session.trajectories()[0].num_turns == 2


async def test_limits_of_the_episode(recorder, serving, ask):
    engine = recorder("one" + END)
    async with serving(engine, limits=Limits(max_turns=2, max_tokens=60, max_turn_tokens=3)) as (client, session):
        await ask(client, "a")
        assert engine.params[0].max_tokens == 3
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client, "word " * 60)
        assert caught.value.code == "context_length_exceeded"
        assert session.refused is StopReason.MAX_TOKENS
        await ask(client, "b", max_tokens=2)
        assert engine.params[1].max_tokens == 2
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client, "c")
        assert caught.value.code == "max_turns"
    assert len(engine.asked) == 2
    assert len(session.trajectories()) == 2


async def test_turns_that_arrive_together_share_the_limit_of_the_episode(recorder, serving, ask):
    engine = recorder("one" + END)
    async with serving(engine, limits=Limits(max_turns=2)) as (client, session):
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client, "a", n=5)
        assert caught.value.code == "max_turns"
    assert len(engine.asked) == session.num_turns == 2


async def test_sampling_is_the_runs_unless_the_client_may_choose(recorder, serving, ask):
    asked = {"temperature": 0.2, "top_p": 0.5, "seed": 11, "extra_body": {"top_k": 4}}
    seeds = []
    for chosen_by in ("run", "client"):
        engine = recorder("x" + END)
        sampling = Sampling(temperature=0.9, top_p=0.8, top_k=3)
        async with serving(engine, sampling=sampling, chosen_by=chosen_by, seed=5) as (client, _):
            await ask(client, "?", **asked)
            await ask(client, "?")
        seeds.append([params.seed for params in engine.params])
        first, second = ([p.temperature, p.top_p, p.top_k] for p in engine.params)
        assert second == [0.9, 0.8, 3]
        assert first == ([0.9, 0.8, 3] if chosen_by == "run" else [0.2, 0.5, 4])
    (run_first, run_second), (client_first, client_second) = seeds
    assert client_first == 11
    assert run_first != run_second
    assert client_second == run_second  # the second call of the same conversation, in both


@pytest.mark.parametrize("asked", [{"temperature": 0.2}, {"top_p": 0.5}, {"extra_body": {"top_k": 4}}])
async def test_a_client_may_not_change_the_distribution_of_trained_turns(recorder, serving, ask, asked):
    engine = recorder("x" + END)
    sampling = Sampling(temperature=0.9, is_trained=True)
    async with serving(engine, sampling=sampling, chosen_by="client") as (client, session):
        with pytest.raises(openai.BadRequestError, match="this episode is trained"):
            await ask(client, "?", **asked)
        await ask(client, "?", temperature=0.9, top_p=1.0, seed=3, extra_body={"top_k": -1})
    assert [(params.temperature, params.top_p, params.top_k) for params in engine.params] == [(0.9, 1.0, 0)]
    assert len(session.trajectories()) == 1
    async with serving(recorder("x" + END), sampling=sampling, chosen_by="run") as (client, _):
        await ask(client, "?", **asked)


async def test_seeds_follow_from_the_episode_and_the_conversation_alone(recorder, serving, ask):
    found = []
    for seed, order in ((5, "ab"), (5, "ba"), (6, "ab")):
        engine = recorder("x" + END)
        async with serving(engine, seed=seed) as (client, _):
            for text in order:
                await ask(client, text)
        found.append({text: params.seed for text, params in zip(order, engine.params, strict=True)})
    assert found[0] == found[1]
    assert not set(found[0].values()) & set(found[2].values())


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{", 400, "Invalid JSON"),
        (b"[]", 400, "The body"),
        ({"messages": []}, 400, "messages: List should have at least 1 item"),
        ({"messages": [{"role": "wizard", "content": ""}]}, 400, r"messages[0] has the role 'wizard'"),
        ({"messages": [{"role": "user", "content": 3}]}, 400, "neither text nor a list"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, 400, "has the type 'audio'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y"}}]}]},
            400,
            "the gateway fetches nothing",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, 400, "has no function with a name"),
        ({"n": 0}, 400, "n: Input should be greater"),
        ({"tool_choice": "some"}, 400, "`tool_choice` is not supported"),
        ({"response_format": {"type": "json_object"}}, 400, "A constrained turn needs the model's tokenizer"),
        ({"response_format": {"type": "json_schema"}}, 400, "has no JSON Schema in `schema`"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"type": "object", "properties": {"a": {}}}}},
            400,
            "has no JSON Schema in `schema`",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, 400, "no JSON Schema in `schema`"),
        ({"logit_bias": {"3": 1}}, 400, "`logit_bias` is not supported"),
        ({"repetition_penalty": 1.2}, 400, "`repetition_penalty` is not supported"),
        ({"min_p": 0.1}, 400, "`min_p` is not supported"),
        ({"guided_json": {"type": "object"}}, 400, "`guided_json` is not supported here. Use `response_format`"),
        ({"guided_regex": "a+"}, 400, "`guided_regex` is not supported"),
        ({"guided_choice": ["a", "b"]}, 400, "`guided_choice` is not supported"),
        ({"guided_grammar": "root ::= 'a'"}, 400, "`guided_grammar` is not supported"),
        ({"structured_outputs": {"regex": "a+"}}, 400, "`structured_outputs` is not supported"),
        ({"temperature": "hot"}, 400, "temperature: Input should be a valid number"),
        ({"max_tokens": 0}, 400, "max_tokens"),
    ],
)
async def test_bad_requests_are_answered_in_the_shape_of_the_api(recorder, serving, body, status, says):
    engine = recorder("x" + END)
    async with serving(engine) as (client, session), httpx.AsyncClient() as http:
        if isinstance(body, dict):
            response = await http.post(
                f"{client.base_url}chat/completions", json={"messages": [{"role": "user", "content": "?"}], **body}
            )
        else:
            response = await http.post(f"{client.base_url}chat/completions", content=body)
    assert response.status_code == status
    error = response.json()["error"]
    assert says in error["message"]
    assert error["type"] == "invalid_request_error"
    assert response.headers["x-should-retry"] == "false"
    assert engine.asked == []
    assert session.num_turns == 0


async def test_values_that_change_no_token_are_taken(recorder, serving):
    neutral = {"repetition_penalty": 1.0, "min_p": 0, "guided_json": None, "structured_outputs": None}
    async with serving(recorder("x" + END)) as (client, _):
        answer = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "?"}],
            parallel_tool_calls=False,
            presence_penalty=0,
            extra_body=neutral,
        )
    assert answer.choices[0].message.content == "x"


async def test_keys_and_routes(recorder, renderer, serving):
    engine = recorder("x" + END)
    question = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
    gateway = Gateway(engine, renderer, model="tiny")
    options = {"limits": Limits(), "sampling": Sampling()}
    async with httpx.AsyncClient() as http:
        async with gateway.session(**options) as (session, endpoint), gateway.session(**options) as (other, _):
            root = endpoint.base_url.removesuffix(f"/{endpoint.api_key}/v1")
            own = {"Authorization": f"Bearer {endpoint.api_key}"}
            assert (await http.post(f"{root}/v1/chat/completions", json=question, headers=own)).status_code == 200
            models = (await http.get(f"{endpoint.base_url}/models")).json()
            assert models["data"][0]["id"] == "tiny"
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                refused = await http.post(f"{root}/v1/chat/completions", json=question, headers=headers)
                assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
            lost = await http.post(f"{endpoint.base_url}/embeddings", json={})
            assert lost.status_code == 404
            assert "is not served here" in lost.json()["error"]["message"]
            assert (session.num_turns, other.num_turns) == (1, 0)
        with pytest.raises(httpx.ConnectError):  # nobody listens where there is no episode
            await http.get(f"{endpoint.base_url}/models")


async def test_a_client_that_disconnects_leaves_no_trace(renderer, serving, ask):
    asleep = asyncio.Event()

    class Slow(ScriptedEngine):
        cancelled = asyncio.Event()

        async def generate(self, prompt, params, *, trajectory_id, images=()):
            if asleep.is_set():
                return await super().generate(prompt, params, trajectory_id=trajectory_id)
            asleep.set()
            try:
                return await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise

    engine = Slow([[renderer.stop_token_ids[0]]])
    async with serving(engine) as (client, session):
        call = asyncio.create_task(ask(client, "?"))
        await asleep.wait()
        call.cancel()
        await engine.cancelled.wait()
        assert session.trajectories() == []
        assert session.num_turns == 0
        await ask(client, "?")
    assert len(session.trajectories()) == 1


async def test_a_client_that_disconnects_during_its_request_is_not_a_failure(renderer):
    events = iter([{"type": "http.request", "body": b'{"mess', "more_body": True}, {"type": "http.disconnect"}])
    sent = []

    async def receive():
        return next(events)

    async def send(event):
        sent.append(event)

    path = "/key/v1/chat/completions"
    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    await application({"key": None}, renderer, "policy")(scope, receive, send)
    assert sent[0]["status"] == 499


async def test_the_end_of_the_episode_cancels_running_calls(renderer, serving, ask):
    engine = Endless()
    async with serving(engine) as (client, session):
        call = asyncio.create_task(ask(client, "?"))
        await engine.running.wait()
        await session.close()
        with pytest.raises(openai.APIStatusError) as caught:
            await call
        assert (caught.value.status_code, caught.value.code) == (410, "episode_over")
        with pytest.raises(openai.APIStatusError) as caught:
            await ask(client, "?")
        assert caught.value.status_code == 410
    assert session.trajectories() == []


async def test_a_call_that_is_given_up_as_the_episode_ends_is_cancelled(renderer, serving):
    engine = Endless()
    async with serving(engine) as (_, session):
        request = Chat().read(b'{"messages": [{"role": "user", "content": "?"}]}')
        call = asyncio.create_task(session.complete(request))
        await engine.running.wait()
        call.cancel()
        await session.close()
        await asyncio.wait([call])
        assert call.cancelled()


async def test_a_failed_engine_is_not_a_limit_and_gets_no_retries(renderer, serving, ask):
    class Broken(ScriptedEngine):
        asked = 0

        async def generate(self, prompt, params, *, trajectory_id, images=()):
            self.asked += 1
            raise EngineError("out of memory")

    engine = Broken([[0]])
    async with serving(engine) as (client, session):
        with pytest.raises(openai.InternalServerError, match="out of memory"):
            await ask(client, "?")
    assert engine.asked == 1
    assert session.refused is StopReason.ENGINE_ERROR
    assert session.failures[FailureKind.ENGINE] == 1


async def test_an_engine_that_is_closed_aborts_the_episode(renderer, serving, ask, recorder):
    engine = recorder("x")

    async def aborted(prompt, params, *, trajectory_id, images=()):
        from array import array

        from agentloop.engines.base import Generation

        return Generation(array("i"), array("f"), array("i"), FinishReason.ABORT)

    engine.generate = aborted
    async with serving(engine) as (client, session):
        with pytest.raises(openai.APIStatusError):
            await ask(client, "?")
    assert session.refused is StopReason.ABORTED


async def test_headers_that_never_end_time_out(serving, recorder, monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "head_seconds", 0.3)
    async with serving(recorder("hello")) as (client, _):
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx: ")
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()
