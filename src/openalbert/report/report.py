"""`openalbert report`: one HTML page of a run, or of several side by side, that opens without a server or a network."""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from openalbert import durable
from openalbert.errors import UserError
from openalbert.progress import Work
from openalbert.report.page import now, page
from openalbert.train.run_folder import METRICS, read_runs


@dataclass(frozen=True)
class Report:
    """Curves, settings, data, hardware and throughput of one run, or a comparison of several, as one HTML page."""

    runs: Positional[tuple[Path, ...]]
    """Folders of runs, as `openalbert pretrain` writes them."""
    out: Path | None = None
    """The page. Not given: report.html in the run's folder, or here where there are several runs."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise UserError("no run is named: give the folder of a run, or of several to compare")
        if self.out is not None and self.out.suffix.lower() not in (".html", ".htm"):
            raise UserError(f"--out is {self.out}, but the page is HTML: give a name that ends in .html")

    @property
    def target(self) -> Path:
        """Where the page is written."""
        if self.out is not None:
            return self.out
        return self.runs[0] / "report.html" if len(self.runs) == 1 else Path("report.html")


def report(settings: Report) -> None:
    """Write the page and print where it is."""
    total = sum(float(path.stat().st_size) for run in settings.runs if (path := run / METRICS).is_file())
    with Work("reading metrics", total=total or None, unit="MB", scale=1e6) as work:
        runs = read_runs(settings.runs, work.advance)
    settings.target.parent.mkdir(parents=True, exist_ok=True)
    durable.write_text(settings.target, page(runs, now()))
    print(settings.target)
