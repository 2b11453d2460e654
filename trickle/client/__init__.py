"""Parts that the publisher and the subscriber share. Unlike the contracts above, they may use httpx and anyio."""
