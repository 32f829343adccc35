"""Models that do not fit a job: which of their tensors differ, as far as nodes have named theirs."""

from __future__ import annotations

from shoal.core.errors import InvalidJob
from shoal.core.hub import Hub
from shoal.core.selection import Candidate, listed
from shoal.core.tree import Layout, ModelForm, Tree, differences
from shoal.core.words import counted
from shoal.spec import JobSpec
from shoal_coordinator.presence import Presence


def named(hub: Hub, node: str, presence: Presence) -> str:
    """Why that node takes no part in a job: what the hub says, and the tensors that differ where they are known."""
    why, form, model = hub.foreign.get(node, ""), presence.about(node).model, hub.slots.get("model")
    theirs = presence.layout(form) if form is not None else None
    if not why or theirs is None or not isinstance(model, Tree):
        return why
    found = differences(theirs, model.layout.shown)
    return f"{why} ({listed(found)})" if found else why


def check_start(spec: JobSpec, layout: Layout, presence: Presence) -> None:
    """Raise `InvalidJob` for an initial model that is none of any node's that is there and that the job would ask.

    Where none is there, or one does not say what its model looks like, that cannot be known yet.
    """
    selection, forms = spec.build_selection(), dict[ModelForm, str]()
    for node in sorted(presence.info):
        about, silent = presence.about(node), presence.silent_s(node)
        there = silent is not None and silent <= presence.lease_s
        if not there or selection.excludes(Candidate(node, about.tags, about.hours)):
            continue
        if about.model is None or about.model == layout.form:
            return
        forms.setdefault(about.model, node)
    if not forms:
        return
    form, node = next(iter(forms.items()))
    theirs = presence.layout(form)
    found = differences(layout.shown, theirs) if theirs is not None else []
    text = listed(found) if found else layout.form.beside(form)
    raise InvalidJob(
        f"start_model is no model of the nodes that are there: {counted(layout.form.tensors, 'tensor')} of "
        f"{layout.form.elements:,} parameters; beside node {node}'s: {text}",
        code="job.start-model",
        hint="give a model of the nodes' learner, or none; or start the nodes first whose learner has this one, "
        "and name them by selection.tags",
    )
