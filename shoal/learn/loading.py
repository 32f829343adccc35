"""Loading of learners by name: "file.py:name" or "package.module:name".

The name is a `Learner`, or a function or class that makes one from options (`--option part=0`), which are converted to
the types that it declares. A file is loaded by its path under a name of its own (`learner_files`), so it may be called
like one of shoal's packages or of the standard library; its folder comes last on the search path, so its neighbors can
be imported but hide nothing.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.algorithm.learner import Learner
from shoal.core.errors import InvalidJob, LearnerFailed, ShoalError
from shoal.core.model.tree import Layout, Slots, Tree
from shoal.extras import extra_of, not_installed
from shoal.learn.learner_files import module_name
from shoal.learn.options import fitted, named_parameters, takes_any
from shoal.learn.user_errors import error_location, one_line, user_code

METHODS = ("init", "load", "model", "train", "gradient", "evaluate")
DEFAULT_NAME = "learner"
DEVICE_OPTIONS = ("device", "precision")


def load_learner(
    target: str, options: Mapping[str, Any] | None = None, *, device: str = "", precision: str = ""
) -> Learner:
    """Return the learner that `target` names. Options are texts, or values of the declared types.

    `device` and `precision` are chosen by the person who runs the node ("auto" and "": no choice); options of these
    names mean the same. A function with a parameter of that name gets it; else `with_device` applies it. Raises
    `InvalidJob` where there is no such file, module, name, option or device, or no way to apply a choice,
    `LearnerFailed` where the learner's code raises, `ShoalError` with the code usage.extra where it needs torch, which
    is not installed.
    """
    where, name = _split(target)
    found = _found(where, name)
    is_ready = is_learner(found)
    given, device_options = _split_options(
        None if is_ready else found, {**_device_options(device, precision), **(options or {})}
    )
    if is_ready and given:
        raise InvalidJob(f"{target} is a learner already and takes no options", code="learner.options")
    return with_device(found if is_ready else _made(found, f"{where}:{name}", given), **device_options)


@runtime_checkable
class KnowsStages(Protocol):
    """A learner with a network for each stage of its job, which tells the stage of a model."""

    def stage_of(self, layout: Layout) -> int:
        """Return the stage of a model with this layout. Raises `InvalidPayload` if none has it."""
        ...

    def enter_stage(self, stage: int) -> None:
        """Use the network of that stage from now on."""
        ...


def load_trained(learner: Learner, model: Tree) -> None:
    """Load a job's model, of whichever stage. Raises `InvalidPayload` if it does not fit; the weights stay then."""
    if isinstance(learner, KnowsStages):
        learner.enter_stage(learner.stage_of(model.layout))
    learner.load(model)


def replace_base(learner: Learner, slots: Slots) -> None:
    """Replace the learner's base model by the slot "model".

    Raises `InvalidPayload` if it does not fit, `InvalidJob` for a learner that is not of a torch module.
    """
    module: Any = learner
    if not hasattr(getattr(learner, "weights", None), "rebased"):
        text = f"{type(learner).__name__} cannot take another base model than its own"
        raise InvalidJob(text, code="learner.base", hint="start the node with the job's base model")
    with user_code("loading the base model"):
        from shoal.learn.training.module_learner import load_base

        load_base(module, tree_slot(slots, "model"))


def accepted(target: str, names: Iterable[str]) -> frozenset[str]:
    """Return those of the options that `target` accepts; none for an object that is already a learner.

    Raises as `load_learner` does where there is no such file, module or name.
    """
    make = _found(*_split(target))
    if is_learner(make) or not callable(make):
        return frozenset()
    return frozenset(name for name in names if takes_any(make) or name in named_parameters(make))


def _found(where: str, name: str) -> Any:
    """Return the attribute of a file or module."""
    module = _from_file(Path(where)) if _is_file(where) else _imported(where)
    if not hasattr(module, name):
        public = [key for key, value in vars(module).items() if not key.startswith("_") and callable(value)]
        raise InvalidJob(
            f"{where} has no {name!r}",
            code="learner.missing",
            hint=f"it has {', '.join(public) or 'nothing that could be a learner'}",
        )
    return getattr(module, name)


def _split_options(make: Any, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return (arguments for `make`, settings for the learner afterwards): device and precision, unless `make` takes
    them."""
    taken = named_parameters(make) if callable(make) else {}
    device_options = {name: str(options[name]) for name in DEVICE_OPTIONS if name in options and name not in taken}
    return {name: value for name, value in options.items() if name not in device_options}, device_options


def with_device(learner: Learner, *, device: str = "", precision: str = "") -> Learner:
    """Return the learner after setting device and precision through its method `use`, if it has one.

    Raises `InvalidJob` where it has none, or cannot do that.
    """
    chosen = _device_options(device, precision)
    use: Any = getattr(learner, "use", None)
    if chosen and not callable(use):
        raise InvalidJob(
            f"{type(learner).__name__} cannot be told its {' and '.join(chosen)}: it chooses by itself",
            code="learner.options",
            hint=f"leave --{' and --'.join(chosen)} out, or give the function that makes it a parameter of that name, "
            "or the learner a method use(device=…, precision=…)",
        )
    if chosen:
        use(**chosen)
    return learner


def _device_options(device: str, precision: str) -> dict[str, str]:
    chosen = {"device": device, "precision": precision}
    return {name: value for name, value in chosen.items() if value not in ("", "auto")}


def is_learner(thing: Any) -> bool:
    """Return whether an object, not a class, has all methods of a `Learner`."""
    return not inspect.isclass(thing) and all(callable(getattr(thing, method, None)) for method in METHODS)


def required_learner(thing: Any, what: str) -> Learner:
    """Return the object if it is a learner. Raises `InvalidJob`, which names `what`."""
    if is_learner(thing):
        learner: Learner = thing
        return learner
    kind, hint = type(thing).__name__, "give a shoal.learn.TorchLearner, or an object with these methods"
    if isinstance(thing, str):
        hint = f"load it first: shoal.learn.load_learner({thing!r})"
    elif inspect.isclass(thing) or inspect.isroutine(thing):
        kind = f"{'the class' if inspect.isclass(thing) else 'the function'} {thing.__name__}"
        hint = f"call it: {thing.__name__}(…)"
    lacking = ", ".join(method for method in METHODS if not callable(getattr(thing, method, None)))
    text = f"{what} is {kind}, which is not a learner"
    raise InvalidJob(f"{text}: it lacks {lacking}" if lacking else text, code="learner.missing", hint=hint)


def _made(make: Any, target: str, options: Mapping[str, Any]) -> Learner:
    if not callable(make):
        raise InvalidJob(
            f"{target} is {type(make).__name__}, neither a learner nor a function that makes one",
            code="learner.missing",
        )
    arguments = fitted(make, options, target)
    with user_code(f"{target}"):
        learner = make(**arguments)
    if not is_learner(learner):
        lacking = [method for method in METHODS if not callable(getattr(learner, method, None))]
        raise InvalidJob(
            f"{target} made {type(learner).__name__}, which is not a learner: it lacks {', '.join(lacking)}",
            code="learner.missing",
            hint="return a shoal.learn.TorchLearner",
        )
    made: Learner = learner
    return made


def _split(target: str) -> tuple[str, str]:
    """Return ("file or module", "name"); the colon of a drive letter is not a separator."""
    where, colon, name = target.rpartition(":")
    if not colon or (len(where) == 1 and not name.isidentifier()):
        where, name = target, DEFAULT_NAME
    if not where or not name.isidentifier():
        raise InvalidJob(
            f"{target!r} names no learner", code="learner.missing", hint="write file.py:name or package.module:name"
        )
    return where, name


def _is_file(where: str) -> bool:
    return where.endswith(".py") or "/" in where or "\\" in where


def _from_file(path: Path) -> ModuleType:
    """Return the module of a file, executed once per process."""
    file = path.expanduser().resolve()
    if not file.is_file():
        raise InvalidJob(
            f"there is no file {path}", code="learner.missing", hint="check the path; relative to the current folder"
        )
    if file.suffix != ".py":
        raise InvalidJob(f"{path} is not a Python file", code="learner.missing", hint="its name must end in .py")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    try:
        return importlib.import_module(module_name(file))
    except (Exception, SystemExit) as error:
        raise _failed(str(path), error) from error


def _imported(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # last, as a file's folder
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise InvalidJob(
                f"there is no module {error.name}",
                code="learner.missing",
                hint="install it, write the path of a file (./name.py:learner), or run from its folder",
            ) from error
        raise _failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _failed(what: str, error: BaseException) -> ShoalError:
    if isinstance(error, ShoalError):
        return error
    if isinstance(error, ModuleNotFoundError) and extra_of(error):
        return not_installed(error, what=what)
    where = error_location(error)
    hint = (
        f"install {error.name} in the environment that shoal runs in"
        if isinstance(error, ModuleNotFoundError)
        else "run the file with python to see more"
    )
    return LearnerFailed(
        f"cannot load {what}{f': {where}' if where else ''}: {one_line(error)}", code="learner.import", hint=hint
    )
