"""The base of all experiments, and studies: jobs, then figures and tables of their results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from qpsbgd_paper.framework.result_files import as_json, environment
from qpsbgd_paper.framework.runs import Result, Work, kept_results, run_jobs
from qpsbgd_paper.framework.workers import Workers

if TYPE_CHECKING:
    from typing import Self

Job = dict[str, Any]
Event = tuple[str, int, int]


class Experiment(ABC):
    """A table or figure of the paper, or of ours: a frozen dataclass of settings.

    `run` does the work and may be interrupted; `summary` is what a report shows, from finished work alone.
    `chosen_in_view` says which settings were picked in trials that showed the figures they are judged by, `undecided`
    why some claims cannot be told. `work` is one run, a function at a module's top level, of the settings of a job;
    `small` are the settings of the quick form; `needs` find or make data and tiles, and keep them.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    paper: ClassVar[str]
    chosen_in_view: ClassVar[str] = ""
    undecided: ClassVar[str] = ""
    work: ClassVar[Work]
    small: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    needs: ClassVar[Sequence[Callable[[], object]]] = ()
    seeds: int

    @abstractmethod
    def run(self, *, folder: Path, workers: Workers | None = None, fresh: bool = False) -> Iterator[Event]:
        """Do all that is not done yet, or all if `fresh`; yields (phase, jobs done, jobs in all) as it goes on."""

    @abstractmethod
    def summary(self, *, folder: Path) -> dict[str, Any]:
        """All that a report shows, from finished runs alone; raises FileNotFoundError where some are not done."""

    def prepare(self) -> None:
        """Find or make what the experiment needs before many processes do; raises errors that a user can fix."""
        for find in self.needs:
            find()

    def quick(self) -> Self:
        """The same experiment, small: for a look and for tests."""
        return replace(self, **self.small)  # type: ignore[type-var]

    def heading(self) -> dict[str, Any]:
        """The part of a summary that says what it is about."""
        return {
            "experiment": self.name,
            "title": self.title,
            "about": self.about,
            "chosen in view": self.chosen_in_view,
            "undecided": self.undecided,
            "command": f"qpsbgd run {self.name}",
            "seeds": self.seeds,
            "settings": {key: value for key, value in vars(self).items() if value is not None},
            "made with": environment(),
            "paper": self.paper,
        }


class Study(Experiment):
    """An experiment without rivals: independent jobs, and what their results show."""

    @abstractmethod
    def jobs(self) -> Sequence[Job]:
        """Arguments of `work`, of plain JSON types."""

    @abstractmethod
    def presentation(self, results: Sequence[Result]) -> dict[str, Any]:
        """The "figures", "tables" and "claims", each a list, that the results of `jobs` give, in their order.

        A figure is a mapping that `report.drawings` draws; a table has title, head and body; a claim has text, source
        ("paper" or "aim"), verdict ("yes", "no", "cannot tell" or "not run on hardware") and detail.
        """

    def run(self, *, folder: Path, workers: Workers | None = None, fresh: bool = False) -> Iterator[Event]:
        """Do all jobs that are not done yet."""
        jobs = self.jobs()
        yield "computing", 0, len(jobs)
        results = run_jobs(self.work, jobs, experiment=self.name, folder=folder, workers=workers, fresh=fresh)
        for done, _ in enumerate(results, 1):
            yield "computing", done, len(jobs)

    def final_runs(self, *, folder: Path) -> Iterator[tuple[Job, Result]]:
        """All jobs with their results."""
        jobs = self.jobs()
        yield from zip(jobs, kept_results(self.work, jobs, experiment=self.name, folder=folder), strict=True)

    def summary(self, *, folder: Path) -> dict[str, Any]:
        """The heading and what the results show."""
        results = [result for _, result in self.final_runs(folder=folder)]
        seconds = round(sum(result["seconds"] for result in results), 1)
        return as_json({**self.heading(), "seconds of training": seconds, **self.presentation(results)})
