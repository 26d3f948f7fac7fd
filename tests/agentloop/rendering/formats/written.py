"""A well-formed call of the function `f` without arguments in each format that is not the whole turn."""

_KIMI = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
_DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
WRITTEN = {
    "hermes": '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
    "nemotron": '<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>',
    "phi": '<|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|>',
    "mistral": "[TOOL_CALLS]f[ARGS]{}",
    "kimi": f"<|tool_calls_section_begin|>{_KIMI}<|tool_calls_section_end|>",
    "deepseek_r1": _DEEPSEEK.format("function<｜tool▁sep｜>f\n```json\n{}\n```"),
    "deepseek_v3_1": _DEEPSEEK.format("f<｜tool▁sep｜>{}"),
    "deepseek_v3_2": '<｜DSML｜function_calls><｜DSML｜invoke name="f"></｜DSML｜invoke></｜DSML｜function_calls>',
    "gemma4": "<|tool_call>call:f{}<tool_call|>",
    "glm": "<tool_call>f</tool_call>",
    "lfm2": "<|tool_call_start|>[f()]<|tool_call_end|>",
    "lfm2_5": "<|tool_call_start|>[f()]<|tool_call_end|>",
    "minimax": '<minimax:tool_call><invoke name="f"></invoke></minimax:tool_call>',
    "qwen3_coder": "<tool_call><function=f></function></tool_call>",
    "seed": "<seed:tool_call><function=f></function></seed:tool_call>",
}
