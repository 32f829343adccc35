"""The HTTP server of a level of a network with exits.

POST /predict   at the devices: inputs as those of `shoal serve`; the answer is
                {"classes": [3], "answered_by": ["cloud"], "degraded": [false], "job": …, "version": …}
POST /features  at the levels above: features of the level below, as `shoal.wire.cascade_codec` describes them
GET  /model     the job, the version, the level, and its counts
GET  /health    200 while a model is loaded
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shoal.core.errors import Refused
from shoal.runtime.threads import in_thread
from shoal.serving.cascade_pump import CascadePump
from shoal.serving.prediction_app import OPEN_MAX, application, inputs_of
from shoal.serving.served_model import arrays_of
from shoal.wire.cascade_codec import answer_values, decode_features


def create_level_app(pump: CascadePump) -> Starlette:
    """Return the application of a level without its limits."""
    turns, level = asyncio.Semaphore(OPEN_MAX), pump.level

    async def predict(request: Request) -> Response:
        """Answer a user's inputs, here or at a level above."""
        async with turns:
            arrays = await in_thread(partial(arrays_of, *inputs_of(await request.body())))
        answer, version = await pump.ask(arrays)
        found = answer_values(answer)
        answered_by = [level.levels[number] for number in found.pop("exits")]
        return JSONResponse({**found, "answered_by": answered_by, **asdict(version)})

    async def features(request: Request) -> Response:
        """Answer features of the level below."""
        async with turns:
            head, packed = decode_features(await request.body())
        if head.level != level.number:
            text = f"this server is the {level.name}, number {level.number}, and was asked as number {head.level}"
            raise Refused(text, code="exits.level", hint="let --up name the server of the next level")
        answer, _ = await pump.ask(packed, head.model)
        return JSONResponse(answer_values(answer))

    async def model(_: Request) -> Response:
        """Return which version answers at which level, and how often."""
        assert level.served.version is not None
        return JSONResponse({**asdict(level.served.version), "level": level.name, **asdict(pump.machine.counts)})

    asked = (
        Route("/features", features, methods=["POST"]) if level.number else Route("/predict", predict, methods=["POST"])
    )
    return application([asked, Route("/model", model)])
