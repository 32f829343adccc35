"""Adapters come from PEFT folders and go to such: the same tensors, hence the same logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import BertForSequenceClassification

import shoal as package
from shoal.core.errors import InvalidJob, InvalidPayload
from shoal.core.model.tree import digest
from shoal.jobs.spec import parse_job
from shoal.learn import digits
from shoal.learn.hf import load_adapter, save_adapter
from shoal.model_file import load_model
from shoal.wire.payload import payload_pieces
from tests.cli.command_cases import export_answers, run_answers
from tests.cli.conftest import Shoal
from tests.learn.tiny_bert import adapted, base, examples, learner
from tests.support.fake_coordinator import FakeCoordinator, at, raw

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.filterwarnings("ignore::FutureWarning")]

MINE = """
from tests.learn import tiny_bert

def learner(part: int = 0):
    return tiny_bert.learner()
"""


def given_folder(place: Path, **more: Any) -> Path:
    """A PEFT folder of adapters that do something, made by PEFT alone."""
    module = adapted(**more)
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(len(name)))
    module.save_pretrained(str(place / "given"))
    return place / "given"


def logits(module: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = module.eval()(input_ids=torch.stack([one["input_ids"] for one in examples(6)])).logits
    return found


def test_a_folder_goes_to_a_job_and_comes_back(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    run_answers(fake, place)
    (place / "mine.py").write_text(MINE)
    fake.answers["PUT /blobs/*"] = {"bytes": 1}
    folder = given_folder(place)
    begun = shoal("run", "job.toml", "--model", folder, env=at(fake))
    assert (begun.exit_code, "add --learner" in begun.stderr) == (2, True)
    begun = shoal("run", "job.toml", "--model", folder, "--learner", "mine.py", env=at(fake))
    assert begun.exit_code == 0, begun.output
    sent = fake.asked[0].body

    export_answers(fake, place)
    fake.answers["GET /jobs/digits/models/2"] = raw(sent)
    assert shoal("export", "digits", "--peft", "taken", env=at(fake)).exit_code == 2
    done = shoal("export", "digits", "--peft", "taken", "--learner", "mine.py", env=at(fake))
    assert (done.exit_code, done.stdout) == (0, "taken: version 2\n"), done.output
    expected = logits(PeftModel.from_pretrained(base(), str(folder)))
    assert torch.equal(logits(PeftModel.from_pretrained(base(), "taken")), expected)
    assert not torch.equal(logits(adapted()), expected)

    again = ("export", "digits", "--peft", "taken", "--learner", "mine.py")
    assert shoal(*again, env=at(fake)).exit_code == 2, "it is there already"
    assert shoal(*again, "--merged", "--force", env=at(fake)).exit_code == 2, "it would be loaded as both"
    again = ("export", "digits", "--peft", "whole", "--learner", "mine.py")
    assert shoal(*again, "--merged", "-o", "m.safetensors", env=at(fake)).exit_code == 0
    assert shoal(*again, "--force", env=at(fake)).exit_code == 2
    whole = BertForSequenceClassification.from_pretrained("whole")
    torch.testing.assert_close(logits(whole), expected)
    assert (place / "m.safetensors").read_bytes() == sent


def test_the_model_function_may_begin_with_a_folder(place: Path) -> None:
    folder = given_folder(place)
    begun = [learner(lambda: PeftModel.from_pretrained(base(), str(folder), is_trainable=True)) for _ in range(2)]
    assert digest(begun[0].init(0)) == digest(load_adapter(learner(), folder))
    made = package.simulate(parse_job({"name": "adapters", "rounds": 2}), begun)
    begun[0].load(made.model)
    save_adapter(begun[0], place / "trained")
    assert torch.equal(logits(PeftModel.from_pretrained(base(), str(place / "trained"))), logits(begun[0].module))
    assert digest(made.model) != digest(begun[0].init(0))


def test_an_export_completes_a_module_of_peft(place: Path) -> None:
    """Without a learner: PEFT writes the folder of a module that has the weights."""
    one = learner()
    start = load_adapter(one, given_folder(place))
    (place / "m.safetensors").write_bytes(b"".join(bytes(piece) for piece in payload_pieces({"model": start})))
    module = load_model(place / "m.safetensors", into=adapted())
    assert torch.equal(logits(module), logits(one.module))


def test_adapters_of_another_form_are_refused_by_name(place: Path) -> None:
    folder = given_folder(place, rank=8)
    with pytest.raises(InvalidPayload, match=r"ranks of adapters must be equal .*query.lora_A.weight is \[8, 32\]"):
        load_adapter(learner(), folder)
    config = json.loads((given_folder(place) / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 99}))
    with pytest.raises(InvalidPayload, match="lora_alpha is 99, not 8"):
        load_adapter(learner(), folder)
    with pytest.raises(InvalidPayload, match=r"no file adapter_config.json in none"):
        load_adapter(learner(), "none")
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(InvalidPayload, match=r"no file adapter_model.safetensors"):
        load_adapter(learner(), folder)
    with pytest.raises(InvalidJob, match="Sequential has no adapters of PEFT"):
        save_adapter(digits.learner(0, 4), place / "out")
