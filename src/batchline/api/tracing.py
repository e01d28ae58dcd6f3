"""Traces of submissions: a request that creates a batch is a span, in the trace of its caller if it has one.

Other requests are not traced: clients poll, and the access log has them.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchline.traces.submissions import BatchTracer, SubmissionSpan


class SubmissionTraces:
    def __init__(self, app: ASGIApp, tracer: BatchTracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        span = SubmissionSpan("POST")

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                span.attributes |= {"http.response.status_code": message["status"]}
                # Set by the router. Not the path itself: it may hold what a caller has put there.
                if (route := scope.get("route")) is not None:
                    span.name = f"POST {route.path}"
                    span.attributes |= {"http.request.method": "POST", "http.route": route.path}
                if message["status"] >= 500:
                    span.error = str(message["status"])
            await send(message)

        caller = next((value for name, value in scope["headers"] if name == b"traceparent"), b"")
        with self._tracer.submitting(span, "server", caller.decode("latin-1")):
            await self._app(scope, receive, noting)
