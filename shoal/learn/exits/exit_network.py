"""One network over devices, an edge server and the cloud, with an exit at each.

Teerapittayanon, McDanel, Kung: "Distributed Deep Neural Networks over the Cloud, the Edge and End Devices", ICDCS 2017.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from shoal.core.errors import InvalidJob
from shoal.core.exits.byte_costs import present_devices
from shoal.learn.exits.device_fusion import binarize, fuse, schemes_of


class ExitLevel(NamedTuple):
    """The part of a network at a level below the cloud: `body` makes features, and `exit` makes scores of these."""

    body: nn.Module
    exit: nn.Module


class ExitNetwork(nn.Module):
    """A module that returns the scores of all exits, [batch, exits, classes], before the softmax.

    devices     the part of each device; the same object several times: they share weights
    edge        the part of the edge server; None: there is none
    cloud       the last part, whose output is the last exit's scores
    classes     the number of classes
    scheme      how the devices' scores, and their features, are fused: MP, AP or CC each
    absence     the probability with which a device is left out of a training example

    It is called with a tensor for each device, or with one tensor whose second dimension counts the devices. Features
    are sent upwards as +1 and -1; an exit sees those of its own level before that. With the scheme CC a linear layer
    makes the first exit's scores of all devices' scores.
    """

    def __init__(
        self,
        devices: Sequence[ExitLevel],
        edge: ExitLevel | None,
        cloud: nn.Module,
        *,
        classes: int,
        scheme: str = "AP-CC",
        absence: float = 0.0,
    ) -> None:
        super().__init__()
        if not devices:
            raise InvalidJob("the network has no device", code="exits.network", hint="give at least one ExitLevel")
        if not 0 <= absence < 1:
            raise InvalidJob(f"absence is {absence}, but must be in [0, 1)", code="exits.network")
        self.scheme, self.absence = schemes_of(scheme), absence
        self.bodies = nn.ModuleList(level.body for level in devices)
        self.exits = nn.ModuleList(level.exit for level in devices)
        fused = self.scheme[0] == "CC" and len(devices) > 1
        self.fusion = nn.Linear(len(devices) * classes, classes) if fused else nn.Identity()
        self.edge_body: nn.Module | None = edge.body if edge else None
        self.edge_exit: nn.Module | None = edge.exit if edge else None
        self.cloud = cloud
        self.present = present_devices(len(devices))

    @property
    def levels(self) -> tuple[str, ...]:
        """The names of the levels, from the devices up."""
        return ("device", "cloud") if self.edge_body is None else ("device", "edge", "cloud")

    def leave_out(self, devices: Iterable[int] = ()) -> None:
        """Leave devices out from now on, in training too. Raises `InvalidJob` if none remains."""
        self.present = present_devices(len(self.bodies), devices)

    def views_of(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the input of each device. Raises `InvalidJob` if their number is another than that of the devices."""
        devices = len(self.bodies)
        views = list(inputs[0].unbind(1)) if len(inputs) == 1 < devices and inputs[0].dim() > 1 else list(inputs)
        if len(views) != devices:
            hint = "give a tensor for each device, or one whose second dimension counts the devices"
            raise InvalidJob(f"{len(views)} views for {devices} devices", code="exits.views", hint=hint)
        return views

    def at_device(self, number: int, view: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of +1 and -1, and the scores, of one device."""
        features = self.bodies[number](view)
        return binarize(features), self.exits[number](features)

    def at_first_exit(self, scores: Tensor, present: Tensor) -> Tensor:
        """Return the first exit's scores from those of the devices, [devices, batch, classes]."""
        fused: Tensor = self.fusion(fuse(self.scheme[0], scores, present))
        return fused

    def above(self, level: int, below: Tensor, present: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return the features and scores of a level above the devices; the cloud has no features.

        `below` stacks the features of the machines of the level below: all devices, or the edge server alone.
        """
        given = fuse(self.scheme[1], below, present) if level == 1 else below[0]
        if self.edge_body is None or self.edge_exit is None or level == 2:
            return None, self.cloud(given)
        features = self.edge_body(given)
        return binarize(features), self.edge_exit(features)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the scores of all exits."""
        views = self.views_of(inputs)
        present = self._present(views[0])
        parts = [self.at_device(number, view) for number, view in enumerate(views)]
        below = torch.stack([features for features, _ in parts])
        scores = [self.at_first_exit(torch.stack([one for _, one in parts]), present)]
        for level in range(1, len(self.levels)):
            features, found = self.above(level, below, present)
            scores.append(found)
            below = below if features is None else features[None]
        return torch.stack(scores, 1)

    def _present(self, view: Tensor) -> Tensor:
        """Return which devices take part in which example, [devices, batch]."""
        here = torch.tensor(self.present, device=view.device)[:, None].expand(-1, len(view))
        if not (self.training and self.absence):
            return here
        drawn = here & (torch.rand(here.shape, device=view.device) >= self.absence)
        return torch.where(drawn.any(0), drawn, here)
