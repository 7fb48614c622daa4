"""Gradio's Blocks, which does for every page and every event only what differs between them.

All of it runs in the one thread that answers every page. With Gradio's own, a page that opens holds
that thread for 30 to 60 ms to describe some 370 components that are the same for all, an output
that stays as it is has its component made anew, and each value goes through a thread of its own.
"""

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import gradio as gr
from gradio.blocks import Block, BlockFunction, BlocksConfig
from gradio.renderable import Renderable
from gradio.state_holder import SessionState

from .components import as_sent
from .outside_values import check_event, check_held, refusal
from .waiting import Beside

STAYS: dict[str, Any] = gr.skip()
# What components with these make of a value is the value.
READ = {gr.HTML.preprocess, gr.JSON.preprocess, gr.Checkbox.preprocess, as_sent}
WRITTEN = {gr.HTML.postprocess}


class Config(BlocksConfig):
    """What is told of a component that is as it was built is worked out once for all pages."""

    def __init__(self, root_block: gr.Blocks) -> None:
        super().__init__(root_block)
        self._told: dict[int, dict[str, Any]] = {}

    def __copy__(self) -> "Config":
        """For one page, with its own components."""
        page = Config(self.root_block)
        vars(page).update(vars(super().__copy__()), _told=self._told)
        return page

    def config_for_block(
        self,
        _id: int,
        rendered_ids: list[int],
        block: Block,
        renderable: Renderable | None = None,
    ) -> dict[str, Any]:
        if renderable or rendered_ids or self.root_block.blocks.get(_id) is not block:
            return super().config_for_block(_id, rendered_ids, block, renderable)
        if _id not in self._told:
            self._told[_id] = super().config_for_block(_id, rendered_ids, block)
        told = self._told[_id]
        return told | {"props": {**told["props"]}}  # a page notes its own values there


class Blocks(gr.Blocks):
    """Made and used as gr.Blocks is."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        first = self.default_config
        self.default_config = Config(self)
        vars(self.default_config).update(vars(first))
        self.beside = Beside()

    async def process_api(
        self, block_fn: BlockFunction | int, inputs: list[Any], *given: Any, **named: Any
    ) -> dict[str, Any]:
        """The answer to an event, whose values can be sent back."""
        check_event(block_fn, inputs, getattr(named.get("event_data"), "_data", None))
        queued = named.get("event_id") is not None
        with nullcontext() if queued else self.beside.place(named.get("session_hash")):
            return await super().process_api(block_fn, inputs, *given, **named)

    async def preprocess_data(
        self,
        block_fn: BlockFunction,
        inputs: list[Any],
        state: SessionState | None,
        explicit_call: bool = False,
    ) -> list[Any]:
        """What the listener is given. Raises gr.Error with a sentence where a component cannot hold
        what was sent for it.
        """
        for block, value in zip(block_fn.inputs, inputs, strict=False):
            check_held(block, value, state)
        try:
            return await self._preprocessed(block_fn, inputs, state, explicit_call)
        except Exception as error:
            raise refusal(error) from None

    async def _preprocessed(
        self,
        block_fn: BlockFunction,
        inputs: list[Any],
        state: SessionState | None,
        explicit_call: bool,
    ) -> list[Any]:
        """A value that is taken as it comes needs no thread."""
        whole = super().preprocess_data
        if block_fn.component_prop_inputs:
            return await whole(block_fn, inputs, state, explicit_call)
        self.validate_inputs(block_fn, inputs)
        state = state or SessionState(self)
        places = range(len(block_fn.inputs))
        plain = [i for i in places if getattr(type(block_fn.inputs[i]), "preprocess", None) in READ]
        given: dict[int, Any] = {}
        for some in (plain, [i for i in places if i not in plain]):
            part = copy.copy(block_fn)
            part.inputs = _at(block_fn.inputs, some)
            part.preprocess = block_fn.preprocess and some is not plain
            read = await whole(part, _at(inputs, some), state, explicit_call)
            given.update(zip(some, read, strict=True))
        return _at(given, places)

    async def postprocess_data(
        self, block_fn: BlockFunction, predictions: Any, state: SessionState | None
    ) -> list[Any]:
        """What the page is sent; a text for an HTML component needs no thread, and an output that
        stays nothing at all.
        """
        whole, outputs = super().postprocess_data, block_fn.outputs
        told = predictions if len(outputs) > 1 else [predictions]
        if not (isinstance(told, list | tuple) and len(told) == len(outputs)):
            return await whole(block_fn, predictions, state)
        state = state or SessionState(self)
        places = range(len(outputs))
        stays = [i for i in places if isinstance(told[i], dict) and told[i] == STAYS]
        plain = [i for i in places if _is_plain(outputs[i], told[i])]
        sent: dict[int, Any] = {i: None if outputs[i].stateful else gr.skip() for i in stays}
        for some in (plain, [i for i in places if i not in stays and i not in plain]):
            if some:
                part, values = copy.copy(block_fn), _at(told, some)
                part.outputs = _at(outputs, some)
                part.postprocess = block_fn.postprocess and some is not plain
                shown = await whole(part, values if len(some) > 1 else values[0], state)
                sent.update(zip(some, shown, strict=True))
        return _at(sent, places)


def _is_plain(output: Block, value: Any) -> bool:
    """Whether the page is sent this value of a listener as it is."""
    kind = getattr(type(output), "postprocess", None)  # a layout has none
    return kind in WRITTEN and isinstance(value, str | None)


def _at(values: Any, places: Sequence[int]) -> list[Any]:
    return [values[i] for i in places]
