"""A level's part of a network with exits, computed by the model that is served. It needs the extra `torch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from shoal.core.errors import InvalidJob, InvalidPayload, Refused
from shoal.core.exits.packed_bits import PackedFeatures
from shoal.learn.exits.exit_network import ExitNetwork
from shoal.learn.exits.level_answers import LevelOutput, at_devices, at_level
from shoal.learn.user_errors import user_code
from shoal.serving.served_model import ServedModel, ServedVersion
from shoal.wire.cascade_codec import EXAMPLES_MAX


def exit_network(learner: Any) -> ExitNetwork:
    """Return the network of a learner. Raises `InvalidJob` if it has no exits."""
    network = getattr(learner, "module", None)
    if not isinstance(network, ExitNetwork):
        text = f"the model of this {type(learner).__name__} has no exits"
        raise InvalidJob(text, code="learner.model", hint="use shoal.learn.exits.exit_learner")
    return network


class LevelPart(NamedTuple):
    """The output of a level's part, and the model that computed it."""

    output: LevelOutput
    digest: str
    """SHA-256 of the model."""
    version: ServedVersion


class ServedLevel:
    """The part of level `name` of a served network. Several threads may use it: they take turns.

    Raises `InvalidJob` for a model without exits, and for a level that it does not have.
    """

    def __init__(self, served: ServedModel, name: str) -> None:
        with served.turn() as learner:
            self.levels = exit_network(learner).levels
        if name not in self.levels:
            text = f"the network has no level {name!r}"
            raise InvalidJob(text, code="exits.level", hint=f"it has {', '.join(self.levels)}")
        self.served, self.name, self.number = served, name, self.levels.index(name)

    def compute(self, inputs: Any, model: str = "") -> LevelPart:
        """Return scores and features, and the model that computed them.

        `inputs`: the features of the level below, or an array for all devices, or several for one each. `model`: the
        SHA-256 of the model that computed these features. Raises `Refused` if this level has another model,
        `InvalidPayload` and `LearnerFailed` for inputs that do not fit.
        """
        served = self.served
        with served.turn() as learner, user_code(f"computing the part of the {self.name}"):
            assert served.version is not None
            network, device = exit_network(learner), learner.place()  # type: ignore[attr-defined]
            if isinstance(inputs, PackedFeatures):
                if model != served.digest:
                    text = f"the {self.name} has model {served.digest[:12]}, and the level below {model[:12]}"
                    hint = "let all levels serve the same version; after a roll-out they do within seconds"
                    raise Refused(text, code="exits.version", hint=hint)
                return LevelPart(at_level(network, self.number, inputs), served.digest, served.version)
            views = [torch.as_tensor(view, device=device) for view in _views_of(inputs)]
            if not 0 < len(views[0]) <= EXAMPLES_MAX:
                text, hint = f"{len(views[0])} examples; at most {EXAMPLES_MAX}", "send fewer examples at a time"
                raise InvalidPayload(text, code="predict.inputs", hint=hint)
            return LevelPart(at_devices(network, views), served.digest, served.version)


def _views_of(inputs: Any) -> Sequence[Any]:
    if isinstance(inputs, Mapping):
        return list(inputs.values())
    return inputs if isinstance(inputs, list | tuple) else [inputs]
