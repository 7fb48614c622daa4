"""The endpoints as tools of an MCP server over HTTP."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from page_server import served

import lrcore
from workbench.app.app import build_app

mcp = pytest.importorskip("mcp", reason="the MCP server needs gradio[mcp]")
from mcp.client.streamable_http import streamablehttp_client  # noqa: E402 (after the skip)

from lrcore.methods import METHODS  # noqa: E402
from lrcore.models.load import built_in_models  # noqa: E402

TOOLS = {
    "models": set(),
    "methods": set(),
    "runs": set(),
    "analyze": {"recipe", "threshold"},
    "allocate": {"recipe"},
    "compress": {"recipe", "name"},
    "evaluate": {"run", "data", "samples", "seq_len"},
    "compare": {"runs", "prompt", "max_new_tokens", "temperature", "seed"},
}
SMALL = {"model": "demo-llama", "samples": 2, "seq_len": 32}
# tool, arguments and part of the error message
ATTACKS = [
    ("allocate", {"recipe": {"model": "/etc"}}, "not a model folder"),
    ("allocate", {"recipe": {"model": "x" * 100_000}}, "is not a valid name of a model"),
    ("allocate", {"recipe": SMALL | {"data": "/etc/shadow"}}, "Known: .txt"),
    (
        "allocate",
        {"recipe": SMALL | {"data": "a\u202eb\x00c"}},
        "is not a valid name of a data set",
    ),
    ("allocate", {"recipe": SMALL | {"ratio": 1e308}}, "between 0 and 1"),
    ("allocate", {"recipe": SMALL | {"ratio": "NaN"}}, "not of type 'number'"),
    ("allocate", {"recipe": SMALL | {"samples": 10**18}}, "the maximum is"),
    (
        "allocate",
        {"recipe": SMALL | {"rank_overrides": {"0.qk": -1}}},
        "is not a valid rank override",
    ),
    ("allocate", {"recipe": SMALL | {"__class__": 1}}, "Unknown recipe field '__class__'"),
    ("allocate", {}, "'recipe' is a required property"),
    ("analyze", {"recipe": SMALL, "threshold": -5}, "must lie in (0, 1]"),
    ("compress", {"recipe": SMALL | {"method": "a4"}, "name": "<script>"}, "'a4' is not one of"),
    ("evaluate", {"run": "'; drop table runs; --"}, "under Runs & export."),
    ("evaluate", {"run": "../../x"}, "No run has the id '../../x'"),
    ("compare", {"runs": {"a": 1}, "prompt": "a"}, "not of type 'array'"),
    ("compare", {"runs": [], "prompt": "a", "max_new_tokens": 10**9}, "up to 4 096"),
    ("nothing", {}, "Unknown tool"),
]
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
        with served(app) as url:
            yield f"{url}/gradio_api/mcp/"


def run_in_session(address, conversation):
    async def talk():
        async with (
            streamablehttp_client(address) as (read, write, _),
            mcp.ClientSession(read, write) as session,
        ):
            await session.initialize()
            return await conversation(session)

    with ThreadPoolExecutor(
        1
    ) as pool:  # a separate event loop, since browser tests leave a running one in the main thread
        return pool.submit(lambda: asyncio.run(talk())).result()


def test_tools_are_listed_with_types_and_descriptions(address):
    tools = {
        tool.name.rpartition("_")[2]: tool
        for tool in run_in_session(address, lambda session: session.list_tools()).tools
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
    assert recipe["properties"]["method"]["enum"] == list(METHODS)
    assert recipe["properties"]["ratio"] == {"type": "number"}
    assert recipe["properties"]["rank_overrides"]["additionalProperties"] == {"type": "integer"}


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

    answer = run_in_session(address, allocate)
    assert not answer.isError
    got_result = json.loads(answer.content[0].text)
    assert got_result["summary"]["achieved"] == pytest.approx(0.3, abs=0.02)
    assert {"layer", "component", "rank"} <= got_result["ranks"][0].keys()


def test_invalid_calls_get_an_error_message_of_one_line_and_save_nothing(address):
    async def attack(session):
        tools = (await session.list_tools()).tools
        names = {tool.name.rpartition("_")[2]: tool.name for tool in tools}
        answers = [
            await session.call_tool(names.get(tool, tool), values) for tool, values, _ in ATTACKS
        ]
        return answers, await session.call_tool(names["runs"], {})

    answers, runs = run_in_session(address, attack)
    for answer, (tool, _, words) in zip(answers, ATTACKS, strict=True):
        message = answer.content[0].text
        assert answer.isError, tool
        assert words in message
        assert len(message.splitlines()) == 1
        assert len(message) < 700
        assert "Traceback" not in message
        assert "site-packages" not in message
    assert json.loads(runs.content[0].text) == []


@pytest.mark.parametrize(
    "header", [{"Origin": "https://evil.example"}, {"Host": "evil.example"}], ids=str
)
def test_foreign_hosts_and_origins_reach_no_tool(address, header):
    accept = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert httpx.post(address, json=request, headers=accept).status_code < 400
    assert httpx.post(address, json=request, headers=accept | header).status_code == 403


def test_endpoints_that_list_objects_return_json(address):
    async def lists(session):
        names = {
            tool.name.rpartition("_")[2]: tool.name for tool in (await session.list_tools()).tools
        }
        answers = {
            kind: await session.call_tool(names[kind], {}) for kind in ("models", "methods", "runs")
        }
        return {kind: json.loads(answer.content[0].text) for kind, answer in answers.items()}

    listed = run_in_session(address, lists)
    assert listed["models"]["models"] == list(built_in_models())
    assert [row["name"] for row in listed["methods"]["methods"]] == list(METHODS)
    assert listed["runs"] == []
