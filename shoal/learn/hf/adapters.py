"""Adapters of a learner's model as a PEFT folder: `adapter_model.safetensors` and `adapter_config.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peft import PeftConfig, PeftModel, get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME

from shoal.core.algorithm.learner import Learner, present_weights
from shoal.core.errors import InvalidJob, InvalidPayload, ShoalError
from shoal.core.model.model_form import differences
from shoal.core.model.tree import Tree
from shoal.core.scheduling.selection import join_names
from shoal.learn.training.module_learner import ModuleLearner
from shoal.learn.user_errors import user_code

MEANING = ("peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "bias")
"""Fields of an adapter's configuration on which it depends what its tensors do."""


def save_adapter(learner: Learner, folder: str | Path, *, merged: bool = False) -> Path:
    """Write the adapters of a learner's present weights, for `PeftModel.from_pretrained`, and return the folder.

    `merged`: write the whole model instead, with the adapters folded into its base, for `from_pretrained`; the learner
    has no adapters afterwards. Raises `InvalidJob` for a learner without adapters of PEFT, and `ShoalError` for a
    folder of the other kind, which would then be loaded as both.
    """
    module: Any = _adapted(learner)
    other = Path(folder) / (CONFIG_NAME if merged else "config.json")
    if other.exists():
        raise ShoalError(f"{other} exists", code="usage.exists", hint="choose another folder")
    with user_code(f"writing {folder}"):
        (module.merge_and_unload() if merged else module).save_pretrained(str(folder))
    return Path(folder)


def load_adapter(learner: Learner, folder: str | Path) -> Tree:
    """Load the adapters of a PEFT folder into a learner and return its weights.

    Raises `InvalidJob` for a learner without adapters of PEFT, and `InvalidPayload` for a folder without the two files,
    and for adapters of other tensors, ranks or scales.
    """
    module = _adapted(learner)
    for file in (CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME):
        if not (Path(folder) / file).is_file():  # PEFT would look for it on the internet
            raise InvalidPayload(f"there is no file {file} in {folder}", code="payload.unreadable")
    with user_code(f"reading {folder}"):
        config, tensors = PeftConfig.from_pretrained(str(folder)), load_peft_weights(str(folder), device="cpu")
    ours: Any = module.active_peft_config
    texts = [{name: str(_plain(getattr(one, name, None))) for name in MEANING} for one in (config, ours)]
    shapes = [
        {name: str(list(one.shape)) for name, one in given.items()}
        for given in (tensors, get_peft_model_state_dict(module))
    ]
    if found := differences(*shapes) or differences(*texts):
        text = f"{folder} has not the adapters of the learner's model: {join_names(found)}"
        raise InvalidPayload(text, code="payload.layout", hint="give the model function the LoraConfig of the folder")
    set_peft_model_state_dict(module, tensors)
    return present_weights(learner)


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


def _adapted(learner: Learner) -> PeftModel:
    module = learner.module if isinstance(learner, ModuleLearner) else None
    if not isinstance(module, PeftModel):
        kind = type(learner if module is None else module).__name__
        hint = "make the model by peft.get_peft_model, and give it to HFLearner or TorchLearner"
        raise InvalidJob(f"{kind} has no adapters of PEFT", code="learner.model", hint=hint)
    return module
