"""A web app that publishes messages to a channel and shows those of everybody: uvicorn fastapi_app:app"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request

from tricklecast import Publisher, TrickleError
from tricklecast.subscriber import json_messages

URL = os.environ.get("CHANNEL_URL", "http://127.0.0.1:2939/trickle/chat")


async def listen(messages: deque[Any]) -> None:
    try:
        async for message in json_messages(URL, start="earliest", wait_for_channel_s=60, on_error="skip"):
            messages.append(message.value)
    except TrickleError as error:
        logging.error("no more messages: %s", error)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    messages: deque[Any] = deque(maxlen=100)
    async with Publisher(URL, content_type="application/json", idle_rotation_s=60) as publisher:
        listening = asyncio.create_task(listen(messages))
        yield {"publisher": publisher, "messages": messages}
        listening.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/messages")
async def say(message: dict[str, Any], request: Request) -> int:
    publisher: Publisher = request.state.publisher
    return (await publisher.publish_json(message)).seq


@app.get("/messages")
async def heard(request: Request) -> list[Any]:
    return list(request.state.messages)
