"""A web app that streams a channel's messages: uvicorn --timeout-graceful-shutdown 5 fastapi_stream:app"""

import json
import os
from collections.abc import AsyncIterator

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from tricklecast.subscriber import json_messages

URL = os.environ.get("CHANNEL_URL", "http://127.0.0.1:2939/trickle/chat")

app = FastAPI()


@app.get("/stream")
async def stream() -> StreamingResponse:
    async def lines() -> AsyncIterator[str]:
        async with json_messages(URL, start="earliest", on_error="skip") as messages:
            async for message in messages:
                yield json.dumps({"missed": message.gap, "value": message.value}) + "\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")
