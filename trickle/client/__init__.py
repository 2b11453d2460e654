"""HTTP for the publisher and the subscriber, with anyio, under asyncio and trio.

One request passes these modules, from the program to the socket and back:

    channel      creates, asks about and ends a channel: one request per method
    answers      exchange(): one request, and its response with trusted headers, or its loss
    sender       past httpx, if nothing of the request needs it
    transport    HTTP/1.1: connections are pooled, the request's body and the response are independent
    connection   one connection: writes the request, reads the response
    heads        the grammar of heads          } no I/O
    decoder      the grammar of response bodies }
    sockets      TCP: connect, read, write

Beside them: ``bridge`` connects the clients with httpx, ``faults`` are the errors of a request, ``arguments`` checks a
program's arguments, ``retry`` decides when to ask again, ``tasks`` runs work in the background.
"""
