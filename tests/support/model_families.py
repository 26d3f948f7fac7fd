"""Model families: published chat templates (those that TRL ships) where there are some, else small ones of ours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentloop.rendering import renderer_for
from agentloop.rendering.builtin import PREFIX, read_template

OURS = Path(__file__).parents[1] / "agentloop" / "rendering" / "templates"
CHATML = "<|im_start|> <|im_end|> <tool_call> </tool_call> <tool_response> </tool_response> <think> </think>"
GLM = "[gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|> <think> </think> <tool_call> </tool_call>"
LLAMA = "<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|> <|python_tag|>"
HARMONY = "<|start|> <|end|> <|message|> <|channel|> <|constrain|> <|call|> <|return|>"
DEEPSEEK = (
    "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜> <think> </think> <｜tool▁calls▁begin｜> "
    "<｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> <｜tool▁outputs▁begin｜> "
    "<｜tool▁outputs▁end｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜>"
)
GEMMA = (
    "<bos> <|turn> <turn|> <|tool> <tool|> <|tool_call> <tool_call|> <|tool_response> <tool_response|> <|channel> "
    '<channel|> <|think|> <|"|> <|image|>'
)
LFM = "<|im_start|> <|im_end|> <|tool_list_start|> <|tool_list_end|> <|tool_call_start|> <|tool_call_end|>"
KIMI = (
    "<|im_system|> <|im_user|> <|im_assistant|> <|im_middle|> <|im_end|> <|tool_calls_section_begin|> "
    "<|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_argument_begin|> <|tool_call_end|>"
)


@dataclass(frozen=True)
class Family:
    """A family of models and its peculiarities."""

    format: str
    added: str
    """Tokens of the tokenizer."""
    stops: tuple[str, ...] = ("<|im_end|>",)
    thinks: bool = False
    """The generation prompt opens thinking."""
    past_end: str = ""
    """Token that replaces the first of `stops` once another message follows."""
    ends_answers: str | None = None
    """Token that a model samples after its answer, if it is not the first of `stops`."""
    call_id: str = "call_0"


FAMILIES = {
    "builtin:hermes": Family("hermes", CHATML),
    "builtin:llama3": Family("llama3", LLAMA, ("<|eot_id|>", "<|eom_id|>")),
    "builtin:qwen3": Family("hermes", CHATML),
    "qwen2_5": Family("hermes", CHATML),
    "qwen3": Family("hermes", CHATML),
    "qwen3_instruct_2507": Family("hermes", CHATML),
    "qwen3_5_think": Family("qwen3_coder", CHATML, thinks=True),
    "qwen3_8": Family("qwen3_coder", CHATML, thinks=True),
    "nemotron_3_nano": Family("qwen3_coder", CHATML, thinks=True),
    "glm4moe": Family("glm", GLM, ("<|user|>", "<|observation|>", "<eos>")),
    "gptoss": Family("harmony", HARMONY, ("<|return|>", "<|call|>"), past_end="<|end|>"),
    "llama3_1": Family("llama3", LLAMA, ("<|eot_id|>", "<|eom_id|>")),
    "llama3_2": Family("llama3", LLAMA, ("<|eot_id|>", "<|eom_id|>")),
    "deepseekv3": Family("deepseek_r1", DEEPSEEK, ("<｜end▁of▁sentence｜>",), thinks=True),
    "gemma4_v5": Family("gemma4", GEMMA, ("<turn|>", "<|tool_response>")),
    "lfm2_v2": Family("lfm2", LFM),
    "lfm2_2_5": Family("lfm2_5", LFM),
    "lfm2_2_5_v2": Family("lfm2_5", LFM),
    "kimi": Family("kimi", KIMI, call_id="functions.get_weather:0"),
    "deepseek_v3_1": Family("deepseek_v3_1", DEEPSEEK, ("<｜end▁of▁sentence｜>",)),
    "minimax": Family("minimax", "]~!b[ ]~b] [e~[ <think> </think>", ("[e~[",), thinks=True),
    "seed": Family("seed", "<seed:bos> <seed:eos> <seed:tool_call> </seed:tool_call> <seed:think>", ("<seed:eos>",)),
    "mistral": Family("mistral", "[INST] [/INST] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS]", ("<eos>",)),
}
PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "exact": {"type": "boolean"},
    "units": {"type": "array", "items": {"type": "string"}},
    "options": {"type": "object"},
}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Weather of a city.", "parameters": PARAMETERS}
TOOLS = ({"type": "function", "function": WEATHER},)
QUESTION = {"role": "user", "content": "Rain?"}


def template_of(name):
    if name.startswith(PREFIX):
        return read_template(name, name, FAMILIES[name].added.split())
    if (OURS / f"{name}.jinja").exists():
        return (OURS / f"{name}.jinja").read_text()
    spec = find_spec("trl")
    assert spec is not None, "trl is among the development dependencies"
    assert spec.submodule_search_locations
    return (Path(spec.submodule_search_locations[0]) / "chat_templates" / f"{name}.jinja").read_text()


@cache
def renderer_of(name):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    added = [*FAMILIES[name].added.split(), "<eos>"]
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in added])
    eos = "<eos>" if name not in ("deepseekv3", "deepseek_v3_1") else "<｜end▁of▁sentence｜>"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos, bos_token="")
    tokenizer.chat_template = template_of(name)
    return renderer_for(tokenizer)


def call_of(family, arguments):
    call_id = "z00000000" if family.format == "mistral" else family.call_id
    return {"id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
