"""Record the experts of the tokens in each slot, for engines that return them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentloop.errors import UserError
from agentloop.experts import routing
from agentloop.types.routed_experts import RoutedExperts


class SlotRouting:
    """Experts of the tokens in each slot. Tokens that are recomputed keep the experts that they were sampled with."""

    def __init__(self, model: Any) -> None:
        """Observe the routers of a model. Raises `UserError` if none can be observed."""
        self._blocks = routing.prepare(model)
        if not self._blocks:
            raise UserError(
                f"The hf engine cannot return routed experts of {type(model).__name__}: none of its layers has a "
                "router that can be observed. Remove learner.router_replay (or routed_experts of the engine)."
            )
        self._layers = int(model.config.get_text_config().num_hidden_layers)
        self._of_slot: dict[int, NDArray[np.int16]] = {}
        """Slot -> [tokens, layers, k]."""
        self._known: dict[int, int] = {}
        """Slot -> number of leading tokens whose experts are known."""

    def begin(self, slot: int, reused: int) -> None:
        """Forget all but the first `reused` tokens of a slot, which a new turn reuses."""
        self._known[slot] = min(reused, self._known.get(slot, 0))

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the experts of the first `length` tokens from slot `source` to `target`."""
        self._known[target] = min(length, self._known.get(source, 0))
        if source in self._of_slot:
            self._of_slot[target] = self._of_slot[source].copy()

    def note(self, rows: NDArray[np.int64], token_positions: NDArray[np.int64]) -> None:
        """Record the choices of the routers in the last step; the arguments [tokens] are fields of `SlotStep`."""
        chosen = {layer: routing.take_choice(block).used.cpu().numpy() for layer, block in self._blocks.items()}
        for slot in np.unique(rows).tolist():
            here = np.flatnonzero(rows == slot)
            positions = token_positions[here]
            known = self._known.get(slot, 0)
            here, positions = here[positions >= known], positions[positions >= known]
            if not len(here):
                continue
            end = int(positions[-1]) + 1
            experts = self._room(slot, end, next(iter(chosen.values())).shape[1])
            for layer, used in chosen.items():
                experts[positions, layer] = used[here]
            self._known[slot] = end

    def of(self, slot: int, start: int, end: int) -> RoutedExperts | None:
        """Return the experts of the tokens `start:end` of a slot, as far as they are known."""
        end = min(end, self._known.get(slot, 0))
        return RoutedExperts(start, self._of_slot[slot][start:end].copy()) if start < end else None

    def _room(self, slot: int, length: int, k: int) -> NDArray[np.int16]:
        found = self._of_slot.get(slot)
        if found is None or len(found) < length:
            wider = np.zeros((length * 3 // 2, self._layers, k), np.int16)
            if found is not None:
                wider[: len(found)] = found
            found = self._of_slot[slot] = wider
        return found
