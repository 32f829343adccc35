"""A learner by the name that a person typed: from files however they are called, with options, and clear failures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal.core.errors import InvalidJob, LearnerFailed, NotAllowed
from shoal.learn import TorchLearner, load_learner
from shoal.learn.loading import is_learner
from tests.conventions.sources import ROOT

FAKE = """
class Fake:
    def __init__(self, **options): self.options = options
    def init(self, seed): ...
    def load(self, model): ...
    def model(self): ...
    def train(self, config, **more): ...
    def gradient(self, config, **more): ...
    def evaluate(self): ...
"""
FACTORY = (
    FAKE + "def learner(part: int = 0, parts: int = 4, name='x'): return Fake(part=part, parts=parts, name=name)\n"
)


@pytest.fixture(autouse=True)
def search_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the search path after each test."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def written(folder: Path, source: str, name: str = "mine.py") -> str:
    (folder / name).write_text(source)
    return str(folder / name)


def test_a_factory_is_called_with_its_options(tmp_path: Path) -> None:
    path = written(tmp_path, FACTORY)
    made = load_learner(f"{path}:learner", {"part": "3", "name": "7"})
    assert made.options == {"part": 3, "parts": 4, "name": "7"}
    assert load_learner(path).options["part"] == 0, "the name is learner unless another is given"
    assert load_learner(f"{path}:learner", {"part": 2}).options["part"] == 2, "values need no conversion"


def test_a_class_is_a_factory_and_an_instance_a_learner(tmp_path: Path) -> None:
    path = written(tmp_path, FACTORY + "ready = Fake(part=9)\n")
    assert load_learner(f"{path}:Fake", {"any": "thing"}).options == {"any": "thing"}
    ready = load_learner(f"{path}:ready")
    assert ready.options == {"part": 9}
    assert ready is load_learner(f"{path}:ready"), "a file runs once per process"
    with pytest.raises(InvalidJob, match="takes no options"):
        load_learner(f"{path}:ready", {"part": "1"})


@pytest.mark.parametrize("name", ["shoal.py", "peer.py", "coordinator.py", "edge_client.py", "json.py", "torch.py"])
def test_a_file_named_like_a_package_loads_and_hides_nothing(tmp_path: Path, name: str) -> None:
    source = f"import json, shoal.core.errors, sys\n{FACTORY}"
    path = written(tmp_path, source, name)
    code = (
        f"from shoal.learn import load_learner; load_learner({path!r}, {{'part': '1'}})\n"
        "import json, shoal, sys\n"
        "print(json.dumps([shoal.__file__, json.__file__, sys.path]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    shoal_file, json_file, path_list = json.loads(done.stdout)
    assert shoal_file == shoal.__file__
    assert json_file == json.__file__
    assert path_list[-1] == str(tmp_path)


def test_neighbors_can_be_imported(tmp_path: Path) -> None:
    written(tmp_path, "ANSWER = 42\n", "neighbor_of_mine.py")
    path = written(tmp_path, f"from neighbor_of_mine import ANSWER\n{FAKE}def learner(): return Fake(n=ANSWER)\n")
    assert load_learner(path).options == {"n": 42}


def test_a_module_is_imported_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in {"", "."}])
    written(tmp_path, FACTORY, "a_module_of_mine.py")
    assert load_learner("a_module_of_mine:learner", {"parts": "9"}).options["parts"] == 9
    assert isinstance(load_learner("shoal.learn.digits:learner", {"part": "3", "split": "iid"}), TorchLearner)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, FACTORY)
    with pytest.raises(InvalidJob, match="there is no file"):
        load_learner(f"{tmp_path}/nothing.py:learner")
    with pytest.raises(InvalidJob, match="has no 'leaner'") as told:
        load_learner(f"{path}:leaner")
    assert told.value.hint == "it has Fake, learner"
    with pytest.raises(InvalidJob, match="there is no module no_such_module") as told:
        load_learner("no_such_module.part:learner")
    assert "./name.py:learner" in told.value.hint
    for target in ("", ":learner", "a.py:", "a.py:1x"):
        with pytest.raises(InvalidJob, match="names no learner"):
            load_learner(target)


def test_options_that_do_not_fit_are_told_with_what_does(tmp_path: Path) -> None:
    path = written(tmp_path, FAKE + "def learner(site, part: int = 0): return Fake()\n")
    with pytest.raises(InvalidJob, match=r"mine\.py:learner has no option prat and needs site") as told:
        load_learner(path, {"prat": "1"})
    assert told.value.hint == "it takes site, part (0)"
    with pytest.raises(InvalidJob, match="option part is 'one', not a whole number"):
        load_learner(path, {"site": "a", "part": "one"})


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nothing_of_that_name\n", r"mine\.py, line 1: ModuleNotFoundError: No module named"),
        ("x = 1\ny = (\n", r"mine\.py, line 2: SyntaxError"),
        ("def f():\n    return 1 / 0\n\nf()\n", r"mine\.py, line 2: ZeroDivisionError"),
        ("import json\njson.loads('{')\n", r"mine\.py, line 2: JSONDecodeError"),
        ("import sys\nsys.exit('usage: mine.py')\n", r"mine\.py, line 2: SystemExit: usage"),
    ],
)
def test_a_file_that_fails_is_told_with_its_line(tmp_path: Path, source: str, said: str) -> None:
    path = written(tmp_path, source)
    before = set(sys.modules)
    with pytest.raises(LearnerFailed, match=rf"cannot load .*mine\.py: .*{said}") as told:
        load_learner(path)
    assert told.value.code == "learner.import"
    assert told.value.__cause__ is not None
    assert not [name for name in set(sys.modules) - before if name.startswith("shoal.learn.learner_files.")]
    written(tmp_path, FACTORY)
    assert is_learner(load_learner(path)), "mended, it loads"


def test_a_module_that_fails_is_told_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "\n\nimport nothing_of_that_name\n", "failing_module.py")
    with pytest.raises(LearnerFailed, match=r"failing_module\.py, line 3: ModuleNotFoundError") as told:
        load_learner("failing_module:learner")
    assert "install nothing_of_that_name" in told.value.hint


def test_a_factory_that_fails_is_told_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "def learner():\n    raise OSError('no such disk')\n")
    with pytest.raises(LearnerFailed, match=r"mine\.py:learner failed in .*mine\.py, line 2: OSError: no such disk"):
        load_learner(path)
    path = written(
        tmp_path, "from shoal.core.errors import InvalidJob\ndef learner(): raise InvalidJob('no')\n", "own.py"
    )
    with pytest.raises(InvalidJob, match="no"):
        load_learner(path)


def test_an_error_that_explains_itself_passes_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path, "from shoal.core.errors import NotAllowed\nraise NotAllowed('ask for a token')\n")
    with pytest.raises(NotAllowed, match=r"^ask for a token$"):
        load_learner(path)


def test_the_operators_wishes_reach_the_learner(tmp_path: Path) -> None:
    learner = load_learner("shoal.learn.digits:learner", {"part": 1}, device="cpu", precision="bf16")
    assert (learner.device.type, learner.config.precision) == ("cpu", "bf16")
    with pytest.raises(InvalidJob, match="'quantum' is not a device"):
        load_learner("shoal.learn.digits:learner", device="quantum")
    assert load_learner("shoal.learn.digits:learner", {"precision": "bf16"}).config.precision == "bf16"
    path = written(tmp_path, FACTORY + "ready = Fake()\n")
    for name, more in (("learner", {"part": 1}), ("ready", {})):
        with pytest.raises(InvalidJob, match="Fake cannot be told its device and precision") as caught:
            load_learner(f"{path}:{name}", more, device="cpu", precision="bf16")
        assert "leave --device and --precision out" in caught.value.hint
        assert is_learner(load_learner(f"{path}:{name}", more, device="auto"))


def test_a_factory_that_takes_the_device_is_given_it(tmp_path: Path) -> None:
    source = FAKE.replace("def init(", "def use(self, **told): self.told = told\n    def init(")
    source += "def device(device='auto', part=0): return Fake(device=device, part=part)\n"
    source += "def both(device='auto', precision='float32'): return Fake(device=device, precision=precision)\n"
    source += "def neither(part=0): return Fake(part=part)\nready = Fake()\n"
    path = written(tmp_path, source)

    def made(name: str, **more: str) -> tuple[dict[str, object], dict[str, str] | None]:
        found = load_learner(f"{path}:{name}", more, device="cuda:1", precision="bf16")
        return found.options, getattr(found, "told", None)

    assert made("both") == ({"device": "cuda:1", "precision": "bf16"}, None)
    assert made("both", device="cpu") == ({"device": "cpu", "precision": "bf16"}, None), "the option says it closer"
    assert made("device", part="2") == ({"device": "cuda:1", "part": 2}, {"precision": "bf16"})
    assert made("neither") == ({"part": 0}, {"device": "cuda:1", "precision": "bf16"})
    assert made("neither", device="cpu") == ({"part": 0}, {"device": "cpu", "precision": "bf16"})
    assert made("ready", device="cpu") == ({}, {"device": "cpu", "precision": "bf16"})


def test_things_that_are_no_learners_are_refused(tmp_path: Path) -> None:
    path = written(
        tmp_path, "learner = 3\ndef half():\n    class Half:\n        def train(self): ...\n    return Half()\n"
    )
    with pytest.raises(InvalidJob, match="is int, neither a learner nor a function"):
        load_learner(path)
    with pytest.raises(
        InvalidJob, match="made Half, which is not a learner: it lacks init, load, model, gradient, evaluate"
    ):
        load_learner(f"{path}:half")
