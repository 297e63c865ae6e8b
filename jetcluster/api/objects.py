"""Requests to `$OBJ.<bucket>`: the stream's leader answers.

A get is answered by the leader itself, in front of the chunks and on the same way: the client sees them in that order.
"""

from __future__ import annotations

from jetcluster.api.context import ApiContext
from jetcluster.api.request import Request
from jetcluster.api.streams import on_leader
from jetcluster.errors import OBJECT_DELIVER_SUBJECT, by_code
from jetcluster.objects import request as object_request
from jetcluster.objects.layout import STREAM_PREFIX


async def serve(context: ApiContext, request: Request) -> bytes:
    """Raises ApiError: 404/10059 when there is no such bucket."""
    asked = object_request.decode(request.payload, request.headers)
    if asked.deliver and asked.action == "get" and not request.may_deliver_to(asked.deliver):
        raise by_code(OBJECT_DELIVER_SUBJECT)
    request.args = (STREAM_PREFIX + request.args[0],)
    body = {
        "action": asked.action,
        "name": asked.name,
        "deliver": asked.deliver,
        "offset": asked.offset,
        "limit": asked.limit,
        "reply": request.reply.decode("latin-1"),
    }
    _, found = await on_leader(context, request, "object", body)
    if asked.action == "get":
        request.reply = b""
    answer: str = found["answer"]
    return answer.encode()
