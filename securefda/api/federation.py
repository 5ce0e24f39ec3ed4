"""A federation in Python: its settings, and the runs of it on this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import tomli_w
from typing_extensions import TypedDict, Unpack

from securefda import __version__
from securefda.api.run import Run
from securefda.api.shown import explained, html_table, same_threads, speaking
from securefda.disk import read_file
from securefda.errors import ConfigError
from securefda.samples import sample
from securefda.settings import kebab_case, read_toml
from securefda.site.config import FederationConfig, as_toml
from securefda.site.config.load import settings_of

if TYPE_CHECKING:
    from securefda.tasks import Task

Table = Mapping[str, Any]


class Tables(TypedDict, total=False):
    """The tables of a federation's file beside ``[federation]`` and ``[task]``, each as a dict.

    Keys are those of the file, with ``_`` in place of ``-`` if you like: ``training={"target": {"learning_rate":
    0.005}}``. The reference page *Configuration* has all of them.
    """

    strategy: Table
    training: Table
    privacy: Table
    session: Table
    model: Table
    transport: Table
    logging: Table
    metrics: Table


class Federation:
    """A target, its sources, what they train, and the settings of their runs: what a federation's file says.

    Args:
        task: a class that derives from :class:`Task`; what :func:`task_from` returns; or ``"package.module:Class"``.
        target: site id of the target.
        sources: site ids of the sources; for what `task_from` returns, by default all other sites of its data.
        rule: of the strategy, such as ``"fedda_auto"``; empty for the default.
        name: of the federation; run folders begin with it.
        options: the task's own options.
        data_dir: folder of the task's data files.
        metric: name of the metric by which runs are judged; empty for the task's own.
        **tables: further settings, see :class:`Tables`.

    Raises:
        ConfigError: a setting is wrong; as from the command line, the error names it, and for an unknown one the
            nearest.
    """

    def __init__(
        self,
        task: type[Task] | str,
        target: str = "target",
        sources: Sequence[str] = (),
        rule: str = "",
        *,
        name: str = "federation",
        options: Mapping[str, Any] | None = None,
        data_dir: str | Path = "",
        metric: str = "",
        **tables: Unpack[Tables],
    ) -> None:
        given = {} if isinstance(task, str) else getattr(task, "rows", None) or {}
        sites = list(sources) or [site for site in given if site != target]
        table = {"options": dict(options or {}), "data-dir": data_dir, "metric": metric}
        with explained():
            data = {
                "federation": {"name": name, "target": target, "sources": sites},
                "task": {"factory": _named(task)} | {key: value for key, value in table.items() if value},
            }
            self._take(data, Path("Federation()"), tables, rule, None if isinstance(task, str) else task)
            if missing := [site for site in (target, *sites) if given and site not in given]:
                raise ConfigError(missing[0], "has no rows in the data", hint=f"sites of the data: {', '.join(given)}")
            if given and data_dir:
                hint = "leave data_dir out: run() writes the rows into the run's folder"
                raise ConfigError("data_dir", "means nothing to a task whose rows are in memory", hint=hint)

    @classmethod
    def from_file(cls, file: str | Path, rule: str = "", **tables: Unpack[Tables]) -> Self:
        """Read a federation's file, such as ``federation.toml``; settings that you give come before those of the file.

        Variables of the environment, which set keys for the command line, have no effect.

        Raises:
            ConfigError: the file, a key or a value is wrong.
        """
        made, path = cls.__new__(cls), Path(file)
        with explained():
            made._take(read_toml(path), path, tables, rule, None)
        return made

    def to_file(self, file: str | Path) -> None:
        """Write a federation's file with the settings that were given, for ``securefda run`` and ``federation init``.

        An existing file is replaced.

        Raises:
            ConfigError: the task's class is one that only this process has.
            SecureFdaError: the file cannot be written.
        """
        from securefda.operations.run_folder import replace_file

        data = deepcopy(self._data)
        for table, key, value in (
            ("task", "data-dir", self._config.task.data_dir),
            ("transport", "proxy-credentials", self._config.transport.proxy_credentials),
        ):
            if value is not None:  # which was relative to another folder, perhaps
                data[table][key] = str(value.absolute())
        with explained():
            if self._lives_here:
                hint = "put its class into a module, such as my_task.py; run() writes it into the run's folder"
                raise ConfigError("task", "lives in this process, and a file can only name a module", hint=hint)
            replace_file(Path(file), tomli_w.dumps(data).encode())

    @property
    def name(self) -> str:
        """Its name."""
        return self._config.federation.name

    @property
    def target(self) -> str:
        """Site id of the target."""
        return self._config.federation.target

    @property
    def sources(self) -> tuple[str, ...]:
        """Site ids of the sources."""
        return self._config.federation.sources

    @property
    def rule(self) -> str:
        """The strategy's rule."""
        return self._config.strategy.rule

    @property
    def settings(self) -> dict[str, Any]:
        """All settings with their values, also those that were not given, as a dict of tables."""
        return deepcopy(self._config.model_dump(by_alias=True))

    def simulate(
        self,
        rounds: int | None = None,
        *,
        seed: int = 0,
        out: str | Path | None = None,
        fresh: bool = False,
        quiet: bool = False,
    ) -> Run:
        """Run all sites in this process, and return the run: for experiments. It trains the model that `run` does.

        Args:
            rounds: number of rounds; None for what the settings say. Warm-up that does not fit is shortened, and that
                is said.
            seed: of data splits, models and training.
            out: the run's folder; None for one in ``runs`` whose name follows from all that was asked for.
            fresh: delete the run in the folder and train again. Otherwise a finished run that was asked for with the
                same settings, code and rows is returned, and that is said.
            quiet: show no progress.

        Raises:
            ConfigError: a setting is wrong, or ``out`` holds another run.
            SecureFdaError: whatever ends the run; its folder holds the rounds until then.
        """
        return self._start(rounds, seed, out, fresh=fresh, quiet=quiet, simulated=True)

    def run(
        self,
        rounds: int | None = None,
        *,
        seed: int = 0,
        out: str | Path | None = None,
        fresh: bool = False,
        quiet: bool = False,
    ) -> Run:
        """Run the federation with a process for each site, mutual TLS and real ports, and return the run.

        It is ``securefda run``. An interrupted run goes on in its folder. A class that a notebook or a script defined,
        and rows that are in memory, are written into the folder ``task`` there, as source and as safetensors files;
        one line says so.

        Arguments and errors as of `simulate`.
        """
        return self._start(rounds, seed, out, fresh=fresh, quiet=quiet, simulated=False)

    def __repr__(self) -> str:
        sources = f"{len(self.sources)} source{'s' if len(self.sources) != 1 else ''}"
        return f"<Federation {self.name}: target {self.target}, {sources}, {self.rule}, {self._task_name}>"

    def _repr_html_(self) -> str:
        rows = {
            "federation": self.name,
            "target": self.target,
            "sources": ", ".join(self.sources),
            "task": self._task_name,
            "rule": f"{self.rule}, {self._config.strategy.rounds} rounds",
            "visibility": self._config.privacy.visibility,
        }
        return html_table(rows)

    @property
    def _task_name(self) -> str:
        return self._config.task.factory.rpartition(":")[2]

    @property
    def _lives_here(self) -> bool:
        if self._task is None:
            return False
        from securefda.api.user_task import lives_here

        return lives_here(self._task)

    def _take(self, data: dict[str, Any], file: Path, tables: Tables, rule: str, task: type[Task] | None) -> None:
        """Check and keep what a file or the constructor says, with ``tables`` and ``rule`` over it."""
        given = _kebab(cast(Table, tables))
        self._data = _over(_plain(data), _plain(_over(given, {"strategy": {"rule": rule}} if rule else {})))
        self._file, self._task = file, task
        self._config, _ = self._loaded(None)

    def _loaded(self, rounds: int | None) -> tuple[FederationConfig, tuple[str, ...]]:
        """Return all settings, and what was changed to fit the number of rounds."""
        overrides = [] if rounds is None else [f"strategy.rounds={rounds}"]
        loaded = settings_of(FederationConfig, deepcopy(self._data), self._file, overrides)
        return loaded.settings, loaded.notes

    def _start(
        self, rounds: int | None, seed: int, out: str | Path | None, *, fresh: bool, quiet: bool, simulated: bool
    ) -> Run:
        from securefda.api.user_task import digest_of, factory_of, folders_of, write_task
        from securefda.cli.options import default_out, is_finished
        from securefda.cli.output import say
        from securefda.cli.training import make_ready, train
        from securefda.operations.run_folder import ASKED_FILE, TASK_FOLDER, RunFolder

        with explained(), speaking(quiet=quiet):
            config, notes = self._loaded(rounds)
            for note in notes:
                say(note)
            if self._task is not None:
                factory_of(self._task)  # an older class of this name may have been in its place
            asked = _digest(config, seed, digest_of(config.task.factory, self._task), simulated=simulated)
            folder = (
                Path(out) if out else Path("runs") / f"{self.name}-{asked[:10]}" if asked else default_out(self.name)
            )
            same = bool(asked) and _asked_in(folder) == asked
            if same and not fresh and is_finished(folder):
                say(f"the same run is there: {folder}")
                return Run.open(folder, task=self._task or config.task.factory)
            make_ready(folder, fresh=fresh or (same and simulated), simulated=simulated)
            if asked:
                RunFolder(folder).write(ASKED_FILE, asked.encode())
            modules = folders_of({config.task.factory.partition(":")[0]})
            if self._task is not None and self._lives_here and not simulated:
                factory, modules, said = write_task(self._task, folder / TASK_FOLDER, self.target, self.sources)
                say(said)
                place = folder / TASK_FOLDER if config.task.data_dir is None else config.task.data_dir
                task = config.task.model_copy(update={"factory": factory, "data_dir": place})
                config = config.model_copy(update={"task": task})
            with same_threads():
                train(config, folder, seed, None, simulated=simulated, modules=modules, again="run() with out={folder}")
            return Run.open(folder, task=self._task or config.task.factory)


def load(sample_name: str, rule: str = "", **tables: Unpack[Tables]) -> Federation:
    """Return a federation that comes with securefda, by its name, such as ``"digits"`` or ``"three_hospitals"``.

    Settings that you give come before its own: ``load("digits", strategy={"rounds": 6})``.

    Raises:
        ConfigError: there is none of that name, and which there are; or a setting is wrong.
    """
    with explained():
        return Federation.from_file(sample(sample_name), rule, **tables)


def _named(task: type[Task] | str) -> str:
    if isinstance(task, str):
        return task
    from securefda.api.user_task import factory_of

    return factory_of(task)


def _kebab(table: Table) -> dict[str, Any]:
    """Return a table with the keys of a file."""
    return {kebab_case(key): _kebab(value) if isinstance(value, Mapping) else value for key, value in table.items()}


def _plain(value: Any) -> Any:
    """Return a value of the kinds that a file has."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Path | str):
        return str(value)
    return value.item() if hasattr(value, "item") else value  # of a number of NumPy


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables, recursively."""
    both = dict(below)
    for key, value in above.items():
        before = below.get(key)
        both[key] = _over(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return both


def _digest(config: FederationConfig, seed: int, task: str, *, simulated: bool) -> str:
    """Return a digest of all that a run follows from; empty where the task's code cannot be known."""
    if not task:
        return ""
    folder = config.task.data_dir
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder is not None else []
    said = {
        "settings": as_toml(config),
        "seed": seed,
        "task": task,
        "files": [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files],
        "processes": not simulated,
        "version": __version__,
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _asked_in(folder: Path) -> str:
    """Return the digest of what the run in a folder was asked for; empty where that is not known."""
    from securefda.operations.run_folder import ASKED_FILE

    file = folder / ASKED_FILE
    return read_file(file).data.decode("ascii", "replace") if file.is_file() else ""
