"""Stand-ins for tensorboard, wandb and mlflow: what is called, and a memory of what was logged."""

from __future__ import annotations

from types import SimpleNamespace


class Config(dict):
    def update(self, d, allow_val_change=False):
        super().update(d)


class Run:
    """A run of a log: `values` by metric and step, as the library shows them, and its `ends`."""

    def __init__(self, fake, number, *names):
        self.fake, self.id, self.names = fake, f"id-{number}", names
        self.values, self.config, self.ends, self.metrics = {}, Config(), [], {}
        self.info, self.data = SimpleNamespace(run_id=self.id), SimpleNamespace(params=self.config)

    def write(self, values, step):
        for name, value in values.items():
            self.values.setdefault(name, {})[step] = value

    def define_metric(self, name, step_metric=None, step_sync=None):
        self.metrics[name] = step_metric

    def log(self, data):
        assert self.metrics == {"step": None, "*": "step"}
        self.write({name: data[name] for name in data.keys() - {"step"}}, data["step"])

    def finish(self, exit_code=None):
        self.fake.end("failed" if exit_code else "finished")


class Fake:
    """Attributes: `runs`; and `run`, which is under way, or None."""

    def __init__(self):
        self.runs, self.run = [], None

    def begin(self, run_id, *names):
        again = [run for run in self.runs if run.id == run_id]
        assert self.run is None
        assert bool(again) == (run_id is not None)
        if not again:
            self.runs.append(Run(self, len(self.runs), *names))
        self.run = (again or self.runs)[-1]
        return self.run

    def end(self, how):
        self.run.ends.append(how)
        self.run = None

    def logged(self):
        return {name: values for name, values in self.runs[-1].values.items() if values}


class Message(SimpleNamespace):
    START = 1


class FakeTensorBoard(Fake):
    """One run is all files of a folder."""

    def __init__(self):
        super().__init__()
        self.flushed, fake = 0, self
        summary = type("Summary", (Message,), {"Value": Message})

        class EventFileWriter:
            def __init__(self, logdir):
                fake.begin("id-0" if fake.runs else None)

            def add_event(self, event):
                values = fake.run.values
                if hasattr(event, "session_log"):  # it hides what is not before it
                    for name, known in values.items():
                        values[name] = {step: v for step, v in known.items() if step < event.step}
                for value in event.summary.value if hasattr(event, "summary") else []:
                    fake.run.write({value.tag: value.simple_value}, event.step)

            def flush(self):
                fake.flushed += 1

            def close(self):
                fake.end("closed")

        def hparams_pb(hparams, trial_id):
            fake.run.config = hparams
            return Message(value=[])

        self.modules = {
            "tensorboard.compat.proto.event_pb2": {"Event": Message, "SessionLog": Message},
            "tensorboard.compat.proto.summary_pb2": {"Summary": summary},
            "tensorboard.summary.writer.event_file_writer": {"EventFileWriter": EventFileWriter},
            "tensorboard.plugins.hparams.summary_v2": {"hparams_pb": hparams_pb},
        }


class FakeWandB(Fake):
    def __init__(self):
        super().__init__()
        self.modules = {"wandb": self}

    def init(self, project=None, name=None, config=None, id=None, resume=None):  # noqa: A002 - wandb's
        assert (id is None) == (resume is None) == (resume != "allow")
        self.begin(id, project, name).config.update(config or {})
        return self.run


class FakeMLflow(Fake):
    def __init__(self):
        super().__init__()
        self.experiments, self.modules = {}, {"mlflow": self}
        self.get_experiment_by_name = self.experiments.get

    def create_experiment(self, name):
        self.experiments[name] = SimpleNamespace(experiment_id=f"of {name}")
        return self.experiments[name].experiment_id

    def active_run(self):
        return self.run

    def start_run(self, run_id=None, experiment_id=None, run_name=None):
        return self.begin(run_id, experiment_id, run_name)

    def end_run(self, status="FINISHED"):
        self.end(status.lower())

    def log_metrics(self, metrics, step):
        self.run.write(metrics, step)

    def log_params(self, params):
        assert not params.keys() & self.run.config, "params cannot be changed"
        self.run.config.update({name: str(value) for name, value in params.items()})

    def get_run(self, run_id):
        (run,) = (run for run in self.runs if run.id == run_id)
        return run
