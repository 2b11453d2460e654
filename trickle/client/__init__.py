"""HTTP for the publisher and the subscriber, with anyio, under asyncio and trio.

One request passes these modules, from the program to the socket and back:

    channel      creates, asks about and ends a channel: one request per method
    exchange     one request, and its response with trusted headers, or its loss; past httpx, if nothing needs it
    connection   HTTP/1.1: the request's body and the response are independent; connections are kept for the next one
    grammar      heads and bodies as bytes; no I/O
    sockets      TCP: reads and writes, and wakes the task that waits

Beside them: ``connecting`` makes a connection, ``bridge`` connects the clients with httpx, ``faults`` are the errors of
a request, ``arguments`` checks a program's arguments, ``retry`` decides when to ask again, ``nodes`` knows the nodes of
a cluster, ``tasks`` runs work in the background.
"""
