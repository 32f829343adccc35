"""A learner's module as an ONNX file, for runtimes without torch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core.algorithm.learner import Learner
from shoal.core.errors import InvalidJob, ShoalError
from shoal.extras import not_installed
from shoal.learn.data.batches import split
from shoal.learn.growth.growing_learner import GrowingLearner
from shoal.learn.training.torch_learner import TorchLearner
from shoal.learn.user_errors import user_code


def save_onnx(learner: Learner, path: str | Path) -> Path:
    """Write a learner's module with its present weights, in evaluation mode, and return the path.

    Inputs are named `input_0`, `input_1` and so on, outputs `output_0` and so on. Their first dimension, that of the
    examples, is open; the others are those of the learner's training data. Weights that do not fit into one file
    (2 GiB) are in `NAME.data` beside it. A `GrowingLearner` gives the module of its present stage. Needs the extra
    `onnx`. Raises `InvalidJob` for another learner than a `TorchLearner`, and `LearnerFailed` for a module that torch
    cannot export.
    """
    if isinstance(learner, GrowingLearner):
        learner = learner.learner
    if not isinstance(learner, TorchLearner):
        text = f"{type(learner).__name__} has no ONNX file"
        raise InvalidJob(text, code="learner.onnx", hint="give a TorchLearner")
    try:
        import_module("onnxscript")
    except ModuleNotFoundError as error:
        raise not_installed(error, "onnx", what="an ONNX file") from error
    learner.use(device="cpu")
    learner.place()
    program, path = _exported(learner), Path(path)
    try:
        with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            program.save(str(Path(folder) / path.name))
            # The weights go first, so that a file of the model is never without them.
            for file in sorted(Path(folder).iterdir(), key=lambda file: file.name == path.name):
                file.replace(path.parent / file.name)
    except OSError as error:
        text = f"{path}: {error.strerror}"
        raise ShoalError(text, code="export.failed", hint="check folder and free space") from None
    return path


def _exported(learner: TorchLearner) -> Any:
    """Return torch's `ONNXProgram`, without the places in source files that torch notes in it."""
    module, inputs = learner.module.eval(), _example_inputs(learner)
    with user_code("exporting the module"), torch.inference_mode():
        outputs = module(*inputs)
        results = [f"output_{number}" for number in range(1 if isinstance(outputs, Tensor) else len(outputs))]
        program: Any = _traced(module, inputs, results)
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()
    return program


def _traced(module: nn.Module, inputs: tuple[Any, ...], outputs: list[str]) -> Any:
    try:
        with _only_errors("torch.onnx"):
            return torch.onnx.export(
                module,
                inputs,
                dynamo=True,
                dynamic_shapes=tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs),
                input_names=[f"input_{number}" for number in range(len(inputs))],
                output_names=outputs,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise (error.__cause__ or error) from None  # torch's own text is a list of web pages


def _example_inputs(learner: TorchLearner) -> tuple[Any, ...]:
    """Return the arguments of the module for two examples: some versions of torch take a dimension of 1 as fixed."""
    for batch in learner.train_data.epoch(1, None):
        return tuple(torch.cat([one, one]) for one in split(batch.data)[0])
    raise InvalidJob("the learner has no examples", code="learner.data", hint="one is needed for the inputs' shapes")


@contextmanager
def _only_errors(name: str) -> Iterator[None]:
    """Leave out warnings in the block: torch has them of its own code, and of each optional package that it lacks."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
