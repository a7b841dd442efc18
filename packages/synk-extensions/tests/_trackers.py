"""Stand-ins for tensorboard, wandb and mlflow: their signatures, and a memory of what was logged.

Each has `logged()`: for each name of a metric its values by step, as the library would show them.
"""

from __future__ import annotations

import types


class Message:
    """A protocol buffer."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


class SessionLog(Message):
    START = 1


class Summary(Message):
    class Value(Message):
        pass


class FakeTensorBoard:
    """Its modules, and the events of all its files, in their order."""

    def __init__(self):
        self.events, self.open, self.flushed = [], 0, 0
        fake = self

        class EventFileWriter:
            def __init__(self, logdir, max_queue_size=10, flush_secs=120, filename_suffix=""):
                self.logdir = logdir
                fake.open += 1

            def add_event(self, event):
                fake.events.append(event)

            def flush(self):
                fake.flushed += 1

            def close(self):
                fake.open -= 1

        def hparams_pb(hparams, trial_id=None, start_time_secs=None):
            assert all(isinstance(v, (bool, int, float, str)) for v in hparams.values())
            return Summary(value=[], hparams=hparams)

        self.modules = {
            "tensorboard.compat.proto.event_pb2": {"Event": Message, "SessionLog": SessionLog},
            "tensorboard.compat.proto.summary_pb2": {"Summary": Summary},
            "tensorboard.summary.writer.event_file_writer": {"EventFileWriter": EventFileWriter},
            "tensorboard.plugins.hparams.summary_v2": {"hparams_pb": hparams_pb},
        }

    def logged(self):
        shown = {}
        for event in self.events:
            if hasattr(event, "session_log"):
                shown = {
                    tag: {step: value for step, value in values.items() if step < event.step}
                    for tag, values in shown.items()
                }
            for value in event.summary.value if hasattr(event, "summary") else []:
                values = shown.setdefault(value.tag, {})
                assert event.step not in values, "shown twice"
                values[event.step] = value.simple_value
        return {tag: values for tag, values in shown.items() if values}

    def config(self):
        return next(event.summary.hparams for event in self.events if hasattr(event, "summary"))


class FakeWandB:
    def __init__(self):
        self.run, self.runs = None, []
        self.modules = {"wandb": self}

    def init(
        self,
        entity=None,
        project=None,
        dir=None,  # noqa: A002 - wandb's
        id=None,  # noqa: A002 - wandb's
        name=None,
        notes=None,
        tags=None,
        config=None,
        resume=None,
        **more,
    ):
        again = [run for run in self.runs if run.id == id]
        assert bool(again) == (resume == "allow")
        self.run = again[0] if again else WandBRun(self, f"id-{len(self.runs)}", project, name)
        self.run.config.update(config or {})
        if not again:
            self.runs.append(self.run)
        return self.run

    def logged(self):
        return self.runs[-1].logged()

    def config(self):
        return self.runs[-1].config

    @property
    def open(self):
        return int(self.run is not None)

    def ends(self):
        return [("failed" if code else "finished") for run in self.runs for code in run.ends]


class WandBConfig(dict):
    def update(self, d, allow_val_change=None):
        super().update(d)


class WandBRun:
    def __init__(self, wandb, run_id, project, name):
        self.id, self.project, self.name, self.config = run_id, project, name, WandBConfig()
        self._wandb, self._rows, self._metrics, self.ends = wandb, [], {}, []

    def define_metric(self, name, step_metric=None, step_sync=None, hidden=None):
        self._metrics[name] = step_metric

    def log(self, data, step=None, commit=None):
        # Rows whose number is not above the last one's are dropped, so the caller gives none.
        assert step is None
        self._rows.append(dict(data))

    def finish(self, exit_code=None):
        self.ends.append(exit_code)
        self._wandb.run = None

    def logged(self):
        assert self._metrics == {"step": None, "*": "step"}
        shown = {}
        for row in self._rows:
            for name in row.keys() - {"step"}:
                shown.setdefault(name, {})[row["step"]] = row[name]
        return shown


class FakeMLflow:
    def __init__(self):
        self.runs, self.experiments, self._active = [], {}, None
        self.modules = {"mlflow": self}

    def active_run(self):
        return self._active

    def start_run(self, run_id=None, experiment_id=None, run_name=None, nested=False):
        assert self._active is None
        if run_id is None:
            self.runs.append(MLflowRun(f"id-{len(self.runs)}", experiment_id, run_name))
            run_id = self.runs[-1].info.run_id
        self._active = self.get_run(run_id)
        return self._active

    def end_run(self, status="FINISHED"):
        self._active.ends.append(status.lower())
        self._active = None

    def log_metrics(self, metrics, step=None, synchronous=None):
        for name, value in metrics.items():
            metric = types.SimpleNamespace(step=step, value=value)
            self._active.data.metrics.setdefault(name, []).append(metric)

    def log_params(self, params, synchronous=None):
        assert not params.keys() & self._active.data.params, "params cannot be changed"
        self._active.data.params.update({name: str(value) for name, value in params.items()})

    def get_run(self, run_id):
        (run,) = (run for run in self.runs if run.info.run_id == run_id)
        return run

    def get_experiment_by_name(self, name):
        return self.experiments.get(name)

    def create_experiment(self, name, artifact_location=None, tags=None):
        self.experiments[name] = types.SimpleNamespace(experiment_id=f"of {name}")
        return self.experiments[name].experiment_id

    def logged(self):
        shown = {}
        for name, metrics in self.runs[-1].data.metrics.items():
            shown[name] = {metric.step: metric.value for metric in metrics}
        return shown

    def config(self):
        return self.runs[-1].data.params

    @property
    def open(self):
        return int(self._active is not None)

    def ends(self):
        return [status for run in self.runs for status in run.ends]


class MLflowRun:
    def __init__(self, run_id, experiment_id, name):
        self.info = types.SimpleNamespace(run_id=run_id, experiment_id=experiment_id)
        self.data = types.SimpleNamespace(params={}, metrics={})
        self.name, self.ends = name, []
