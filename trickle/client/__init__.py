"""Parts that the publisher and the subscriber share. Unlike the contracts above, they may use httpx, h11 and anyio."""
