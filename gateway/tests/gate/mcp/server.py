"""A FastMCP server whose `pay` moves no money."""

import os

from fastmcp import Context, FastMCP

server = FastMCP("bank")


@server.tool
def pay(amount: int, to: str = "nobody") -> str:
    """Pays."""
    return f"paid {amount} to {to}"


@server.tool
def read(account: str) -> str:
    """Reads."""
    return f"balance of {account}"


@server.tool
def hidden() -> str:
    """Is not shown."""
    return "seen"


@server.tool
async def slow(ctx: Context) -> str:
    """Tells how far it is."""
    for step in range(1, 4):
        await ctx.report_progress(step, 3)
    return "done"


server.run(transport="http", host="127.0.0.1", port=int(os.environ["PORT"]), path="/mcp", show_banner=False)
