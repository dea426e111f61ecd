"""The official Python client in both protocol eras; prints what it saw as JSON."""

import asyncio
import json
import os

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

TOKEN = os.environ.get("TOKEN")
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Host": "strait.internal"} if TOKEN else {}


async def attempt(call):
    try:
        result = await call
        return [bool(result.is_error), result.content[0].text]
    except Exception as error:
        return ["failed", str(error)]


async def era(mode):
    saw = {}
    progress = []

    async def told(step, total, message):
        progress.append([step, total])

    async with httpx2.AsyncClient(headers=HEADERS, timeout=20) as http:
        async with Client(streamable_http_client(os.environ["URL"], http_client=http), mode=mode) as client:
            saw["version"] = client.protocol_version
            saw["tools"] = sorted(tool.name for tool in (await client.list_tools()).tools)
            for amount in [100, 101, "100"]:
                saw[f"pay {amount!r}"] = await attempt(client.call_tool("pay", {"amount": amount}))
            saw["missing"] = await attempt(client.call_tool("pay", {}))
            saw["read"] = await attempt(client.call_tool("read", {"account": "ä"}))
            saw["hidden"] = await attempt(client.call_tool("hidden", {}))
            saw["slow"] = await attempt(client.call_tool("slow", {}, progress_callback=told))
    saw["progress"] = progress
    return saw


async def main():
    print(json.dumps({mode: await era(mode) for mode in ["legacy", "auto"]}))


asyncio.run(main())
