"""Models that do not fit a job: which of their tensors differ, as far as nodes have named theirs."""

from __future__ import annotations

from shoal.core.errors import InvalidJob
from shoal.core.errors.phrases import counted
from shoal.core.model.model_form import ModelForm, base_name, differences
from shoal.core.model.tree import Layout, Tree
from shoal.core.scheduling.selection import Candidate, join_names
from shoal.core.server.hub import Hub
from shoal.jobs.spec import JobSpec
from shoal_coordinator.nodes.presence import Presence


def mismatch_reason(hub: Hub, node: str, presence: Presence) -> str:
    """Return why that node takes no part in a job: the hub's reason, and the differing tensors if they are known."""
    why, form, model = (
        hub.eligibility.foreign_models.get(node, ""),
        presence.node_info(node).model,
        hub.store.slots.get("model"),
    )
    theirs = presence.layout(form) if form is not None else None
    if not why or theirs is None or not isinstance(model, Tree):
        return why
    found = differences(theirs, model.layout.shown)
    return f"{why} ({join_names(found)})" if found else why


def check_start(spec: JobSpec, layout: Layout, presence: Presence) -> None:
    """Raise `InvalidJob` if no present node that the job would ask has a model of the initial model's form.

    Nodes that do not say what their model looks like, or that may fetch the job's base model, are passed over; where no
    other is there, it is not known yet.
    """
    if spec.base_model and layout.base_model != spec.base_model:
        text = f"start_model belongs to {base_name(layout.base_model)}, the job to {base_name(spec.base_model)}"
        raise InvalidJob(text, code="job.start-model", hint="give a model that was trained on the job's base model")
    selection, forms = spec.build_selection(), dict[ModelForm, str]()
    for node in sorted(presence.info):
        info, silent = presence.node_info(node), presence.silent_s(node)
        there = silent is not None and silent <= presence.lease_s
        if not there or selection.describe_exclusion(Candidate(node, info.tags, info.hours)):
            continue
        if info.model == layout.form:
            return
        if info.model is not None and not (spec.base_model and info.model.base_model != spec.base_model):
            forms.setdefault(info.model, node)
    if not forms:
        return
    form, node = next(iter(forms.items()))
    theirs = presence.layout(form)
    found = differences(layout.shown, theirs) if theirs is not None else []
    text = join_names(found) if found else layout.form.beside(form)
    raise InvalidJob(
        f"start_model is not a model of the nodes that are there: {counted(layout.form.tensors, 'tensor')} of "
        f"{layout.form.elements:,} parameters; beside node {node}'s: {text}",
        code="job.start-model",
        hint="give a model of the nodes' learner, or none; or start the nodes first whose learner has this one, "
        "and name them by selection.tags",
    )
