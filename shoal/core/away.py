"""What a hub decides while its job is carried on by peers, and when they hand it back; the schedule rests.

    mode         every member's standing order                          next
    server       what the schedule asks                                 away: an operator says so, or nodes that come
                                                                        back say that they have carried on (returning)
    away         "gossip", from the version at which the job went away  returning: an operator says so
    returning    the same, recalled: report what you have               server, with a version made of what came in,
                                                                        when all have answered or its time is over

A report on a "gossip" order is the peer's model, as a displacement from the version in the order, with the weight that
it had in the exchanges. So the new version is sum n_k x_k / sum n_k over those that returned: the one number that
conserving exchanges have left where it was.
"""

from __future__ import annotations

from typing import Literal

from shoal.core.schedule import Ask, Close, Decision, Recall, View, Wait
from shoal.core.words import counted

Mode = Literal["server", "away", "returning"]


def decide(mode: Mode, view: View, return_s: float) -> list[Decision]:
    """What to do now, in mode away or returning. `return_s`: how long those who have not answered are waited for."""
    asking = [node for node in view.idle if node not in view.reports and node not in view.failed]
    if asking:
        return [Ask(tuple(asking), "gossip", f"{counted(len(asking), 'node')} carry on without the server")]
    if mode == "away":
        return [Wait("the peers carry on")]
    return _bring_back(view, return_s)


def _bring_back(view: View, return_s: float) -> list[Decision]:
    out = tuple(node for node, kind in view.busy.items() if kind == "gossip" and node not in view.recalled)
    if out:
        return [Recall(out, f"{counted(len(out), 'node')} are asked for what they have")]
    waited = [node for node in view.busy if node in view.recalled]
    due = (view.recalled_at if view.recalled_at is not None else view.now) + return_s
    if waited and view.now < due:
        return [Wait(f"{len(view.reports)} have handed back, {len(waited)} not yet", due)]
    return [Close(f"back at the server: the models of {counted(len(view.reports), 'node')} merged")]
