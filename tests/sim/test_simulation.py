"""`shoal.simulate`: the three-line API."""

from collections import Counter

import numpy as np
import pytest

import shoal
from shoal.core.algorithm.learner import Trained
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.model.tree import digest
from shoal.core.protocol.message import NodeInfo, Poll
from shoal.progress import WorkRate
from shoal.sim.hosts.node import SimulatedNode
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.tasks.simulation_record import CHAINED, HeldOutMetrics, SimulationProgress, SimulationRecorder
from shoal.wire import codec
from tests.algorithms.softmax import Softmax, digits, tree_of, unbalanced

SPEC = shoal.JobSpec(name="digits", rounds=4, seed=3, algorithm={"name": "fedavg", "lr": 0.5})


def job(**fields) -> shoal.JobSpec:
    return SPEC.model_copy(update=fields)


@pytest.fixture(scope="module")
def result() -> shoal.Result:
    return shoal.simulate(SPEC, unbalanced(tested=True))


def test_it_says_what_came_of_it(result: shoal.Result) -> None:
    assert (result.name, result.state) == ("digits", "done")
    assert result.accuracy == result.metrics["eval/accuracy"] > 0.85
    assert result.metrics["eval/examples"] == 3 * 360
    assert [version.number for version in result.versions] == [0, 1, 2, 3, 4]
    assert [version.why for version in result.versions] == ["initial model of node-0", *["3 of 3 reports"] * 4]
    assert result.versions[-1].metrics == result.metrics
    losses = [version.metrics["eval/loss"] for version in result.versions]
    assert losses == sorted(losses, reverse=True)
    opened = [version.opened_s for version in result.versions]
    assert opened == sorted(opened)
    assert all(version.closed_s - version.opened_s == pytest.approx(1.0, abs=0.1) for version in result.versions[1:])
    assert result.events[-1].text == "done: 4 versions, measured by 3 nodes"


def test_bytes_are_those_of_the_wire(result: shoal.Result) -> None:
    layout = result.model.layout
    body = len(layout.header) + layout.nbytes
    poll = len(codec.encode_head("digits", Poll("node-0")))  # its length is in front of it
    assert set(result.up_bytes) == set(result.down_bytes) == {"node-0", "node-1", "node-2"}
    for node, made in (("node-0", 1), ("node-1", 0)):
        heads = result.up_bytes[node] - (4 + made) * body  # four updates, and perhaps the initial model
        assert 10 * poll < heads < 100 * poll
        assert 10 * poll < result.down_bytes[node] - 5 * body < 100 * poll  # four rounds and the evaluation
    assert sum(version.up_bytes for version in result.versions) <= sum(result.up_bytes.values())
    for version in result.versions[1:]:
        assert 3 * body < version.up_bytes < 4 * body
        assert 3 * body < version.down_bytes < 4 * body


def test_a_message_counts_as_its_frame() -> None:
    shown, measured, poll = SimulationProgress(None, 1), HeldOutMetrics(None), Poll("node-0")
    recorder = SimulationRecorder("digits", progress=shown, held_out=measured)
    recorder.message_sent("node-0", "up", poll)
    assert recorder._traffic.total("up") == {"node-0": len(codec.encode(codec.Frame("digits", poll)))}


def test_memory_does_not_grow_with_the_number_of_learners(monkeypatch) -> None:
    """Bodies that are held at a time, with forty learners and three rounds."""
    held = []
    put = MemoryBlobs.put

    def counted(self, slots):
        held.append(len(self))
        return put(self, slots)

    monkeypatch.setattr(MemoryBlobs, "put", counted)
    x, y = digits()
    result = shoal.simulate(job(rounds=3), [Softmax(x[i::40], y[i::40]) for i in range(40)], fidelity="wire")
    assert [version.reports for version in result.versions] == [0, 40, 40, 40]
    assert max(held) <= 5


def test_work_per_learner_does_not_grow_with_their_number(monkeypatch) -> None:
    """Each sweep of the blobs looks at every node, so sweeps must be rarer with more of them."""
    looks = Counter()
    blob_refs = SimulatedNode.blob_refs

    def counted(self):
        looks[nodes] += 1
        return blob_refs(self)

    monkeypatch.setattr(SimulatedNode, "blob_refs", counted)
    x, y = digits()
    for nodes in (40, 160):
        shoal.simulate(job(rounds=3), [Softmax(x[i::nodes], y[i::nodes]) for i in range(nodes)], fidelity="wire")
    assert looks[160] / 160 < 1.5 * looks[40] / 40


def test_learners_may_have_names() -> None:
    one, two, _ = unbalanced()
    result = shoal.simulate(job(rounds=1), {"clinic-a": one, "clinic-b": two})
    assert set(result.up_bytes) == {"clinic-a", "clinic-b"}
    assert result.metrics == {}
    with pytest.raises(KeyError):
        assert result.accuracy


def test_the_same_job_gives_the_same_bits() -> None:
    models = {digest(shoal.simulate(SPEC, unbalanced()).model) for _ in range(2)}
    assert len(models) == 1


@pytest.mark.parametrize("seed", range(8))
def test_faults_do_not_change_the_model(result: shoal.Result, seed: int) -> None:
    """Every round waits for all three; loss, duplicates and kills must not change the model."""
    schedule = {"name": "rounds", "min_nodes": 3, "quorum": 3}
    faults = shoal.Faults(
        until_s=30, delay_s=0.2, message_loss=0.2, message_duplicates=0.2, coordinator_crashes=6, node_crashes=3
    )
    bad = shoal.simulate(
        job(aggregation_precision="fixed", schedule=schedule), unbalanced(), faults=faults, fault_seed=seed
    )
    good = shoal.simulate(job(aggregation_precision="fixed", schedule=schedule), unbalanced())
    assert digest(bad.model) == digest(good.model)
    assert [version.reports for version in bad.versions] == [0, 3, 3, 3, 3]
    assert bad.versions[-1].closed_s > good.versions[-1].closed_s
    for name in good.model:
        assert np.allclose(good.model[name], result.model[name], atol=1e-6)


def test_faults_have_no_end_unless_one_is_given(result: shoal.Result) -> None:
    lossy = shoal.simulate(SPEC, unbalanced(), faults=shoal.Faults(message_loss=0.2))
    assert lossy.versions[-1].closed_s > 2 * result.versions[-1].closed_s
    with pytest.raises(InvalidJob, match="does not go on"):
        shoal.simulate(SPEC, unbalanced(), faults=shoal.Faults(message_loss=1.0))


@pytest.mark.parametrize(
    "wrong",
    [{"message_loss": 1.5}, {"message_duplicates": -0.1}, {"disk_survival": float("nan")}, {"coordinator_crashes": -1}],
)
def test_faults_that_make_no_sense(wrong) -> None:
    with pytest.raises(InvalidJob, match="faults: "):
        shoal.Faults(**wrong)


def test_who_is_slow_takes_longer() -> None:
    result = shoal.simulate(SPEC, unbalanced(), slow={"node-1": 10.0})
    assert all(10 < version.closed_s - version.opened_s < 11 for version in result.versions[1:])
    with pytest.raises(InvalidJob, match="no such learner") as caught:
        shoal.simulate(SPEC, unbalanced(), slow={"node1": 10.0})
    assert "node-1" in (caught.value.hint or "")
    with pytest.raises(InvalidJob, match="must be above 0"):
        shoal.simulate(SPEC, unbalanced(), slow={"node-1": 0.0})


def test_progress_grows_to_one() -> None:
    told: list[tuple[float, str]] = []
    shoal.simulate(job(rounds=2), unbalanced(), progress=lambda *said: told.append(said))
    fractions = [fraction for fraction, _ in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert 0.5 + 1 / 3 / 2 in fractions
    assert told[-1][1].startswith("done: 2 versions")


def test_too_few_learners() -> None:
    with pytest.raises(InvalidJob, match="at least one learner"):
        shoal.simulate(SPEC, [])
    with pytest.raises(InvalidJob, match="does not go on") as caught:
        shoal.simulate(job(schedule={"name": "rounds", "min_nodes": 4}), unbalanced())
    assert "min_nodes" in caught.value.hint


def test_nobody_is_of_those_whom_the_job_wants() -> None:
    """Not even the initial model is asked for; why, is said at once."""
    with pytest.raises(InvalidJob, match="not asked: node-0, node-1, node-2: without the tag phone"):
        shoal.simulate(job(selection={"name": "uniform", "tags": ["phone"]}), unbalanced())


class Silent(Softmax):
    """A learner that is cheap to train, and whose model never moves."""

    trained = 0

    def train(self, budget, **how):
        self.trained += 1
        return Trained(1.0, {})


ENDLESS = [
    {"preset": "dynamic", "algorithm": {"lr": 0.1}},
    {"algorithm": {"name": "fda"}, "schedule": {"name": "variance", "theta": 1.0}},
    {"algorithm": {"name": "periodic"}, "schedule": {"name": "periodic", "fraction": 0.0}},
]


@pytest.mark.parametrize("keys", ENDLESS, ids=["dynamic", "fda", "periodic"])
def test_a_job_that_only_an_operator_ends_is_refused(keys) -> None:
    with pytest.raises(InvalidJob, match="train until it is stopped, and no operator") as caught:
        shoal.simulate({"name": "digits", **keys}, unbalanced())
    assert "local_steps" in caught.value.hint


@pytest.mark.parametrize("fidelity", ["lean", "wire"])
@pytest.mark.parametrize("keys", [*ENDLESS, ENDLESS[0] | {"schedule": {"name": "divergence", "delta": 1.0}}])
def test_a_job_whose_models_never_drift_apart_ends(keys, fidelity) -> None:
    """With 4 versions to make, and nodes that train until these are made."""
    learners = [Silent(one.x, one.y) for one in unbalanced()]
    with pytest.raises(InvalidJob, match="train without end, and no version has been made for 1,000 checks") as caught:
        shoal.simulate({"name": "digits", "rounds": 4, **keys}, learners, fidelity=fidelity)
    assert "local_steps or epochs" in caught.value.hint
    assert 1000 < learners[0].trained < 2100


def test_nodes_are_waited_for_until_their_hours() -> None:
    node_info = {f"node-{i}": NodeInfo(hours=("20:00-21:00",)) for i in range(3)}
    result = shoal.simulate(job(rounds=1), unbalanced(), node_info=node_info)
    assert result.versions[-1].closed_s > 20 * 3600
    given, apart = job(schedule={"name": "rounds", "min_nodes": 2}), NodeInfo(hours=("22:00-23:00",))
    with pytest.raises(InvalidJob, match="not asked: node-0: only 20:00-21:00 UTC") as caught:
        shoal.simulate(given, unbalanced()[:2], node_info={"node-0": node_info["node-0"], "node-1": apart})
    assert "hours" in caught.value.hint


class Broken(Softmax):
    """A learner with a mistake in it."""

    def train(self, budget, **how):
        raise ZeroDivisionError("no examples left")


class Diverging(Softmax):
    """A learner whose update is not finite."""

    def train(self, budget, **how):
        trained = super().train(budget, **how)
        self.weights = tree_of(**{name: value * np.float32(np.inf) for name, value in self.weights.items()})
        return trained


def test_a_learner_that_fails_is_done_without() -> None:
    one, two, three = unbalanced()
    bad = Broken(three.x, three.y)
    result = shoal.simulate(job(rounds=2), [one, two, bad])
    assert [version.reports for version in result.versions] == [0, 2, 2]
    assert any("node-2 failed" in event.text and "no examples left" in event.text for event in result.events)


class Numpys(Softmax):
    """A learner whose numbers are numpy's, as one comes by them."""

    def train(self, budget, **how):
        trained = super().train(budget, **how)
        return Trained(np.float64(trained.weight), {**trained.metrics, "train/loss": np.float32(0.5)})


def test_numbers_may_be_those_of_numpy() -> None:
    learners = unbalanced()
    numpys = [Numpys(one.x, one.y) for one in learners]
    result = shoal.simulate(job(rounds=2), numpys)
    assert result.versions[0].metrics["train/loss"] == 0.5
    assert digest(result.model) == digest(shoal.simulate(job(rounds=2), learners).model)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_update_that_is_not_finite_is_refused_by_name() -> None:
    one, two, three = unbalanced()
    result = shoal.simulate(job(rounds=1), [one, two, Diverging(three.x, three.y)])
    assert result.versions[1].reports == 2
    assert any("node-2 failed: report refused: b[0] is not finite" in event.text for event in result.events)
    assert all(np.isfinite(result.model[name]).all() for name in result.model)


def test_learners_that_all_fail_end_the_job() -> None:
    with pytest.raises(LearnerFailed, match=r"^node-0: the learner's train failed in ") as caught:
        shoal.simulate(SPEC, [Broken(one.x, one.y) for one in unbalanced()[:1]])
    assert "node-0 failed 10 times in a row" in caught.value.message
    assert "test_simulation.py, line" in caught.value.message
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "ZeroDivisionError: no examples left (" in caught.value.message
    assert caught.value.hint == CHAINED


def test_a_job_below_its_quorum_because_of_a_failure_ends() -> None:
    one, two, _ = unbalanced()
    with pytest.raises(LearnerFailed, match=r"^node-1: .* no examples left .*below the quorum: 1 of 2") as caught:
        shoal.simulate(job(schedule={"name": "rounds", "min_nodes": 2}), [one, Broken(two.x, two.y)])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("learners", "says", "hint"),
    [
        ("mine.py:learner", "learners is str", "[learner(part) for part"),
        (3, "learners is int", "[learner(part) for part"),
        ([3], "the learner of node-0 is int, which is not a learner: it lacks init", "TorchLearner"),
        ([Softmax], "the learner of node-0 is the class Softmax", "call it: Softmax(…)"),
        ([unbalanced], "the learner of node-0 is the function unbalanced", "call it: unbalanced(…)"),
        ({"a": "mine.py"}, "the learner of a is str", "load_learner('mine.py')"),
    ],
)
def test_what_is_no_learner_is_named_at_once(learners, says: str, hint: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        shoal.simulate(SPEC, learners)
    assert says in caught.value.message
    assert hint in caught.value.hint


def test_a_job_may_be_a_mapping_or_a_file(tmp_path) -> None:
    given = {"name": "digits", "rounds": 1}
    (tmp_path / "job.toml").write_text('name = "digits"\nrounds = 1\n')
    one, two = shoal.simulate(given, unbalanced()), shoal.simulate(str(tmp_path / "job.toml"), unbalanced())
    assert digest(one.model) == digest(two.model) == digest(shoal.simulate(shoal.load_job(given), unbalanced()).model)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: shoal.JobSpec(name="A B", rounds=-1), "2 mistakes"),
        (shoal.JobSpec, "name: Field required"),
        (lambda: shoal.JobSpec(name="a", algorithm={"name": "fedprox", "muu": 1}), "did you mean 'mu'?"),
        (lambda: shoal.JobSpec(name="a", algorithm="fda", schedule="rounds"), "schedule rounds asks nodes"),
        (lambda: shoal.JobSpec(name="a", filters=[{"name": "top_k"}, {"name": "top_k"}]), "top_k"),
        (
            lambda: shoal.JobSpec.model_validate({"name": "a", "aggregation_precision": "exact"}),
            "aggregation_precision: ",
        ),
        (lambda: shoal.JobSpec.model_validate([3]), "a job is a table of keys, not list"),
        (lambda: shoal.JobSpec.model_validate_json('{"name": "a", "round": 3}'), "did you mean 'rounds'?"),
        (lambda: shoal.load_job({"name": "a", "schedule": {"name": "no"}}), "no schedule is called 'no'"),
        (lambda: shoal.load_job(3), "a job is the path of a TOML file"),
        (lambda: shoal.load_job("gone.toml"), "no file gone.toml"),
    ],
)
def test_a_job_that_is_wrong_is_refused_where_it_is_made(made, says: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        made()
    assert says in str(caught.value)


def test_the_public_face() -> None:
    names = ["Faults", "JobSpec", "Result", "SplitJob", "VerticalJob", "__version__", "connect", "join", "load_job"]
    assert shoal.__all__ == [*names, "load_model", "simulate", "simulate_split", "simulate_vertical", "simulated"]
    assert set(shoal.__all__) <= set(dir(shoal))
    for name in shoal.__all__:
        assert getattr(shoal, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        assert shoal.simulat


def test_learners_are_made_when_they_are_asked_for() -> None:
    x, y = digits()
    alive, most, made = 0, 0, Counter()

    class Counted(Softmax):
        def __init__(self, number: int) -> None:
            nonlocal alive, most
            super().__init__(x[number::30], y[number::30])
            alive, made[number] = alive + 1, made[number] + 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    lazy = shoal.simulate(job(rounds=2), Counted, nodes=30)
    assert most <= 3
    assert set(made) == set(range(30))
    given = shoal.simulate(job(rounds=2), [Softmax(x[i::30], y[i::30]) for i in range(30)])
    assert digest(lazy.model) == digest(given.model)
    assert lazy.versions == given.versions


def test_what_a_function_of_learners_needs_is_said() -> None:
    with pytest.raises(InvalidJob, match="number of nodes"):
        shoal.simulate(SPEC, lambda number: unbalanced()[number])
    with pytest.raises(InvalidJob, match="these are made"):
        shoal.simulate(SPEC, unbalanced(), nodes=3)
    with pytest.raises(InvalidJob, match="the learner of node-0 is int"):
        shoal.simulate(SPEC, lambda number: number, nodes=3)
    with pytest.raises(LearnerFailed, match="making the learner of node-0"):
        shoal.simulate(SPEC, lambda number: [][number], nodes=3)
    with pytest.raises(TypeError, match="slwo"):
        shoal.simulate(SPEC, unbalanced(), slwo={})


class Interrupted(Softmax):
    """A learner whose training is interrupted by Ctrl-C, the given task on."""

    def __init__(self, x: np.ndarray, y: np.ndarray, task: int) -> None:
        super().__init__(x, y)
        self.left = task

    def train(self, budget, **how):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return super().train(budget, **how)


@pytest.mark.parametrize("fidelity", ["lean", "wire"])
def test_an_interrupt_keeps_the_versions_made(fidelity) -> None:
    one, two, three = unbalanced()
    result = shoal.simulate(SPEC, [one, two, Interrupted(three.x, three.y, 3)], fidelity=fidelity)
    assert result.state == "interrupted"
    assert [version.reports for version in result.versions] == [0, 3, 3]
    assert digest(result.model) == digest(shoal.simulate(job(rounds=2), unbalanced()).model)


def test_an_interrupt_before_the_first_version_is_raised(monkeypatch) -> None:
    def interrupted(self, seed):
        raise KeyboardInterrupt

    monkeypatch.setattr(Softmax, "init", interrupted)
    x, y = digits()
    with pytest.raises(KeyboardInterrupt):
        shoal.simulate(SPEC, lambda number: Made(x, y), nodes=1)


class Made(Softmax):
    """A learner that makes no model before it is asked to."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y, self.test, self.classes = x, y, None, 10


@pytest.mark.parametrize(("every", "numbers"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5]), (9, [0, 5])])
def test_versions_are_evaluated_every_so_often_and_at_the_end(every: int, numbers: list[int]) -> None:
    x, y = digits()
    held_out = Softmax(x, y, test=(x, y))
    result = shoal.simulate(job(rounds=5), unbalanced(), held_out=held_out, evaluate_every=every)
    assert [v.number for v in result.versions if "held_out/accuracy" in v.metrics] == numbers
    held_out.load(result.model)
    assert result.metrics["held_out/accuracy"] == held_out.evaluate()["eval/accuracy"]


def test_a_held_out_learner_without_test_data_is_refused() -> None:
    with pytest.raises(InvalidJob, match="held_out measures nothing: it has no test data"):
        shoal.simulate(job(rounds=5), unbalanced(), held_out=unbalanced()[0])


def test_evaluate_every_is_positive() -> None:
    with pytest.raises(InvalidJob, match="evaluate_every is 0"):
        shoal.simulate(SPEC, unbalanced(), evaluate_every=0)


def test_progress_tells_rate_and_time_left(monkeypatch) -> None:
    now, told = [0.0], []
    train = Softmax.train

    def slow(self, budget, **how):
        now[0] += 2.0
        return train(self, budget, **how)

    monkeypatch.setattr(Softmax, "train", slow)
    monkeypatch.setattr("shoal.sim.tasks.simulation_record.WorkRate", lambda: WorkRate(lambda: now[0]))
    shoal.simulate(job(rounds=2), unbalanced(), progress=lambda share, text: told.append((share, text)))
    halfway = next(text for share, text in told if share == 0.5)
    assert halfway.startswith("0.67 tasks/s, 6 s left; ")
    assert told[-1][1].startswith("0.83 tasks/s; done: 2 versions")
