"""`ModelGrammars`: the grammars of one model, whose tokenizer is loaded at first use."""

from __future__ import annotations

import threading
from pathlib import Path

from agentloop.errors import UserError
from agentloop.grammars.compiler import GrammarCompiler, GrammarState
from agentloop.grammars.schemas import check_schemas
from agentloop.types.grammar import Grammar


class ModelGrammars:
    """Compiles grammars for a model, given as a folder or a name. Any thread may use it."""

    def __init__(self, model: object) -> None:
        self._model = model
        self._compiler: GrammarCompiler | None = None
        self._lock = threading.Lock()

    @property
    def compiler(self) -> GrammarCompiler:
        """The compiler. Raises `UserError` if the model has no tokenizer, or xgrammar is not installed."""
        with self._lock:
            if self._compiler is None:
                self._compiler = _compiler_of(self._model)
        return self._compiler

    def begin(self, grammar: Grammar) -> GrammarState:
        """Return the state before the first token of a turn, as `GrammarCompiler.begin` does."""
        return self.compiler.begin(grammar)

    def check(self, grammar: Grammar) -> None:
        """Compile a grammar. Raises `UserError` if it cannot be used, or would ignore a part of its schemas."""
        self.compiler.begin(grammar)
        check_schemas(grammar.text)


def _compiler_of(model: object) -> GrammarCompiler:
    if not isinstance(model, str | Path):
        raise UserError("A constrained turn needs the model's tokenizer. Give the engine a folder or a name.")
    from transformers import AutoConfig, AutoTokenizer

    if Path(model).is_dir() and not (Path(model) / "tokenizer.json").is_file():
        raise UserError(
            f"A constrained turn needs the model's tokenizer, but {model} has no tokenizer.json. Save it there."
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
        vocabulary = int(AutoConfig.from_pretrained(model).get_text_config().vocab_size)
    except (OSError, ValueError) as error:
        raise UserError(
            f"A constrained turn needs tokenizer and config of {model}, which cannot be read: {error}. Save both there."
        ) from error
    return GrammarCompiler(tokenizer, vocabulary)
