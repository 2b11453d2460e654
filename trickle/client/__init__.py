"""HTTP for the publisher and the subscriber, with httpx and anyio, under asyncio and trio.

One request passes these modules, from the program to the socket and back:

    channel      creates, asks about and ends a channel: one request per method
    answers      exchange(): one request, and its response with trusted headers, or its loss
    transport    HTTP/1.1 for httpx: connections are pooled, the request's body and the response are independent
    connection   one connection: writes the request, reads the response
    heads        the grammar of heads          } no I/O
    decoder      the grammar of response bodies }
    sockets      TCP: connect, read, write

Beside them: ``arguments`` checks a program's arguments, ``retry`` decides when to ask again, ``tasks`` runs work in the
background.
"""
