"""A language model that is a function: it proposes something valid, by the whole of the request."""

from __future__ import annotations

import json

import numpy as np

from fedscout.search.language_model import ChatReply, ChatRequest
from fedscout.search.recommenders.prompt import answer_document
from fedscout.strategies import SearchSpace

DRAWS = 200


class PlayedChat:
    """Draws an answer from a space by the request's digest; equal requests get equal answers.

    Attributes:
        num_asked: Requests so far.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self.num_asked = 0

    def complete(self, request: ChatRequest) -> ChatReply:
        """Return a valid answer, a new one if there is any; equivalents of earlier ones are not seen through."""
        self.num_asked += 1
        shown = json.loads(request.messages[1].content)
        known = [
            *(trial["strategy"] for trial in shown.get("trials", ())),
            *shown.get("running", ()),
            {"kind": "fedavg"},
        ]
        generator = np.random.default_rng(list(bytes.fromhex(request.digest())))
        for _ in range(DRAWS):
            answer = answer_document(self._space.random(generator), "drawn")
            if answer["strategy"] not in known:
                break
        return ChatReply(text=json.dumps(answer))
