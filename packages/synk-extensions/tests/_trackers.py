"""Stand-ins for tensorboard, wandb and mlflow: what is called, and a memory of what was logged.

Each has `logged()`: for each name of a metric its values by step, as the library would show them.
"""

from __future__ import annotations

import types


class Message:
    """A protocol buffer."""

    START = 1

    def __init__(self, **fields):
        self.__dict__.update(fields)


class FakeTensorBoard:
    """Its modules, and the events of all its files, in their order."""

    def __init__(self):
        self.events, self.open, self.flushed = [], 0, 0
        fake = self

        class EventFileWriter:
            def __init__(self, logdir):
                fake.open += 1

            def add_event(self, event):
                fake.events.append(event)

            def flush(self):
                fake.flushed += 1

            def close(self):
                fake.open -= 1

        def hparams_pb(hparams, trial_id):
            return Message(value=[], hparams=hparams)

        summary = type("Summary", (Message,), {"Value": Message})
        self.modules = {
            "tensorboard.compat.proto.event_pb2": {"Event": Message, "SessionLog": Message},
            "tensorboard.compat.proto.summary_pb2": {"Summary": summary},
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
                shown.setdefault(value.tag, {})[event.step] = value.simple_value
        return {tag: values for tag, values in shown.items() if values}

    def config(self):
        return next(event.summary.hparams for event in self.events if hasattr(event, "summary"))


class WandBConfig(dict):
    def update(self, d, allow_val_change=False):
        super().update(d)


class WandBRun:
    def __init__(self, wandb, run_id, names):
        self.id, self.names, self.config = run_id, names, WandBConfig()
        self._wandb, self._rows, self._metrics, self.ends = wandb, [], {}, []

    def define_metric(self, name, step_metric=None, step_sync=None):
        self._metrics[name] = step_metric

    def log(self, data):
        self._rows.append(dict(data))

    def finish(self, exit_code=None):
        self.ends.append("failed" if exit_code else "finished")
        self._wandb.run = None


class FakeWandB:
    def __init__(self):
        self.run, self.runs, self.modules = None, [], {"wandb": self}

    def init(self, project=None, name=None, config=None, id=None, resume=None):  # noqa: A002 - wandb's
        again = [run for run in self.runs if run.id == id]
        assert bool(again) == (resume == "allow")
        if not again:
            self.runs.append(WandBRun(self, f"id-{len(self.runs)}", (project, name)))
        self.run = again[0] if again else self.runs[-1]
        self.run.config.update(config or {})
        return self.run

    def logged(self):
        run, shown = self.runs[-1], {}
        assert run._metrics == {"step": None, "*": "step"}
        for row in run._rows:
            for name in row.keys() - {"step"}:
                shown.setdefault(name, {})[row["step"]] = row[name]
        return shown

    def config(self):
        return self.runs[-1].config

    @property
    def open(self):
        return int(self.run is not None)


class FakeMLflow:
    def __init__(self):
        self.runs, self.experiments, self._active = [], {}, None
        self.modules = {"mlflow": self}

    def active_run(self):
        return self._active

    def start_run(self, run_id=None, experiment_id=None, run_name=None):
        assert self._active is None
        if run_id is None:
            info = types.SimpleNamespace(run_id=f"id-{len(self.runs)}")
            run = types.SimpleNamespace(info=info, names=(experiment_id, run_name), ends=[])
            run.data = types.SimpleNamespace(params={}, metrics={})
            self.runs.append(run)
            run_id = info.run_id
        self._active = self.get_run(run_id)
        return self._active

    def end_run(self, status="FINISHED"):
        self._active.ends.append(status.lower())
        self._active = None

    def log_metrics(self, metrics, step):
        for name, value in metrics.items():
            self._active.data.metrics.setdefault(name, {})[step] = value

    def log_params(self, params):
        assert not params.keys() & self._active.data.params, "params cannot be changed"
        self._active.data.params.update({name: str(value) for name, value in params.items()})

    def get_run(self, run_id):
        (run,) = (run for run in self.runs if run.info.run_id == run_id)
        return run

    def get_experiment_by_name(self, name):
        return self.experiments.get(name)

    def create_experiment(self, name):
        self.experiments[name] = types.SimpleNamespace(experiment_id=f"of {name}")
        return self.experiments[name].experiment_id

    def logged(self):
        return self.runs[-1].data.metrics

    def config(self):
        return self.runs[-1].data.params

    @property
    def open(self):
        return int(self._active is not None)


def ends(fake):
    return [end for run in fake.runs for end in run.ends]
