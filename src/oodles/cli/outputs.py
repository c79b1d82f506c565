"""Where the results of ``oodles score`` go: to a file that can be resumed, a file of scores, or standard output."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oodles.cli.common import notice
from oodles.cli.inputs import Batch
from oodles.cli.verdicts import print_csv, print_json, print_text
from oodles.deploy.results.rows import FORMATS
from oodles.errors import ArgumentError

if TYPE_CHECKING:
    from oodles.deploy.results.jobs import Job
    from oodles.deploy.results.rows import Row

SUFFIXES = (*FORMATS, ".npy")


@dataclass(frozen=True)
class Output:
    """Where results go: to a file, or to standard output as text, CSV or JSON."""

    out: Path | None
    as_csv: bool
    as_json: bool
    resume: bool
    force: bool

    def __post_init__(self) -> None:
        out = self.out
        if self.as_csv and self.as_json:
            raise ArgumentError("--csv and --json exclude each other; give one of them")
        if self.resume and self.force:
            raise ArgumentError("--resume continues an output and --force replaces it; give one of them")
        if out is None and (self.resume or self.force):
            raise ArgumentError("--resume and --force are about a file; give its name with --out")
        if out is not None and (self.as_csv or self.as_json):
            raise ArgumentError("--out writes a file and prints no results; leave out --csv and --json")

    def check_file(self) -> None:
        """Raise unless the file can be written, before anything is loaded."""
        if self.out is None:
            return
        suffix = self.out.suffix.lower()
        if suffix not in SUFFIXES:
            raise ArgumentError(f"--out {self.out} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
        if self.out.is_dir():
            raise ArgumentError(f"--out {self.out} is a folder; give the name of a file")
        if suffix == ".npy":
            if self.resume:
                raise ArgumentError(f"--out {self.out} cannot be resumed; .jsonl, .csv and .parquet can")
            if self.out.exists() and not self.force:
                raise ArgumentError(f"{self.out} exists already; --force replaces it")
            return
        from oodles.deploy.results.writing import check_results

        check_results(self.out, resume=self.resume, force=self.force)

    @property
    def shows_progress(self) -> bool:
        """Whether a progress bar is of use; lines on a terminal show the progress themselves."""
        return self.out is not None or not sys.stdout.isatty()

    def deliver(
        self,
        job: "Job",
        batches: Iterator[Batch],
        score: Callable[[Iterator[Batch]], Iterator[list["Row"]]],
        seen: Callable[[Sequence["Row"]], None],
    ) -> None:
        """Write or print what ``score`` makes of the batches; ``seen`` is given rows that a file has already."""
        if self.out is None:
            self._print(job, score(batches))
        elif self.out.suffix.lower() == ".npy":
            from oodles.deploy.results.scores import write_scores

            write_scores(self.out, score(batches))
        else:
            self._append(self.out, job, batches, score, seen)

    def _append(
        self,
        out: Path,
        job: "Job",
        batches: Iterator[Batch],
        score: Callable[[Iterator[Batch]], Iterator[list["Row"]]],
        seen: Callable[[Sequence["Row"]], None],
    ) -> None:
        from oodles.deploy.results.writing import open_results

        with open_results(out, job, resume=self.resume, force=self.force) as results:
            try:
                for rows in score(results.remaining(batches, seen)):
                    results.append(rows)
            except KeyboardInterrupt:
                notice(f"{results.rows} results are in {out}; run the same command with --resume to continue")
                raise
            results.finish()

    def _print(self, job: "Job", rows: Iterable[list["Row"]]) -> None:
        if self.as_csv:
            print_csv(rows)
        elif self.as_json:
            about: dict[str, Any] = {"detector": job.detector, "threshold": job.threshold}
            print_json(([row._asdict() for row in batch] for batch in rows), about, "verdicts")
        else:
            print_text(rows)
