"""The endpoints as tools of an MCP server, over HTTP."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

import lrcore
from workbench.app import LAUNCH, build_app

mcp = pytest.importorskip("mcp", reason="the MCP server needs gradio[mcp]")
from mcp.client.streamable_http import streamablehttp_client  # noqa: E402 (after the skip)

TOOLS = {
    "models": set(),
    "methods": set(),
    "runs": set(),
    "analyse": {"recipe", "threshold"},
    "allocate": {"recipe"},
    "compress": {"recipe", "name"},
    "evaluate": {"run", "data", "samples", "seq_len"},
    "compare": {"runs", "prompt", "max_new_tokens", "temperature", "seed"},
}
TYPES = {
    "recipe": "object",
    "threshold": "number",
    "samples": "integer",
    "run": "string",
    "runs": "array",
    "temperature": "number",
}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mcp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LRCORE_RUNS", str(folder / "runs"))
        patch.setenv("LRCORE_CACHE", str(folder / "cache"))
        app = build_app()
        _, url, _ = app.launch(prevent_thread_lock=True, quiet=True, **LAUNCH)
        yield f"{url}gradio_api/mcp/"
        app.close()


def ask(address, what):
    async def talk():
        async with (
            streamablehttp_client(address) as (read, write, _),
            mcp.ClientSession(read, write) as session,
        ):
            await session.initialize()
            return await what(session)

    with ThreadPoolExecutor(
        1
    ) as pool:  # a loop of its own: the browser tests leave one running in the main thread
        return pool.submit(lambda: asyncio.run(talk())).result()


def test_the_tools_are_listed_with_their_types_and_words(address):
    tools = {
        tool.name.rpartition("_")[2]: tool
        for tool in ask(address, lambda session: session.list_tools()).tools
    }
    assert tools.keys() == TOOLS.keys()
    for name, tool in tools.items():
        fields = tool.inputSchema["properties"]
        assert fields.keys() == TOOLS[name]
        assert all(
            fields[field]["type"] == kind for field, kind in TYPES.items() if field in fields
        )
        assert tool.description
        assert all(field.get("description", "").endswith(".") for field in fields.values())
    recipe = tools["allocate"].inputSchema["properties"]["recipe"]
    assert recipe["properties"].keys() == lrcore.Recipe().to_dict().keys()
    assert recipe["properties"]["method"]["enum"] == list(lrcore.METHODS)
    assert recipe["properties"]["ratio"] == {"type": "number"}
    assert recipe["properties"]["overrides"]["additionalProperties"] == {"type": "integer"}


def test_a_tool_can_be_called(address):
    async def allocate(session):
        name = next(
            tool.name
            for tool in (await session.list_tools()).tools
            if tool.name.endswith("allocate")
        )
        return await session.call_tool(
            name, {"recipe": {"model": "demo-llama", "samples": 2, "seq_len": 32, "ratio": 0.3}}
        )

    answer = ask(address, allocate)
    assert not answer.isError
    got_result = json.loads(answer.content[0].text)
    assert got_result["summary"]["achieved"] == pytest.approx(0.3, abs=0.02)
    assert {"layer", "component", "rank"} <= got_result["ranks"][0].keys()


def test_lists_are_json_too(address):
    async def lists(session):
        names = {
            tool.name.rpartition("_")[2]: tool.name for tool in (await session.list_tools()).tools
        }
        answers = {
            kind: await session.call_tool(names[kind], {}) for kind in ("models", "methods", "runs")
        }
        return {kind: json.loads(answer.content[0].text) for kind, answer in answers.items()}

    listed = ask(address, lists)
    assert listed["models"]["models"] == list(lrcore.built_in_models())
    assert [row["name"] for row in listed["methods"]["methods"]] == list(lrcore.METHODS)
    assert listed["runs"] == []
