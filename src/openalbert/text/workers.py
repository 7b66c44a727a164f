"""Where the work of `prepare` runs: processes of this machine, or a Ray cluster. The result is the same."""

import contextlib
import multiprocessing
import os
import re
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import ModuleType

from openalbert.errors import UserError
from openalbert.progress import Work
from openalbert.text import shards
from openalbert.text.corpus import Counts
from openalbert.text.shards import PLAN
from openalbert.text.source_groups import Block, EncodedBlock, Group, Job, encode, make_pieces, mark_documents

READER_FEEDS = 4  # workers that one reading process keeps busy, even with compressed files
BLOCKS_A_WORKER = 4  # read ahead per worker; more would only take memory
SECONDS_BETWEEN_LOOKS = 1.0


class Watch:
    """Shows the progress of the groups: from this process, or from the pieces that others have written."""

    def __init__(self, job: Job, groups: Sequence[Group]) -> None:
        self._job = job
        self._read = {group.number: Counts() for group in groups}
        self._num_pieces = {group.number: 0 for group in groups}
        self._looked = -SECONDS_BETWEEN_LOOKS
        self._work: Work | None = None
        self.bytes_done = self._documents = self._characters = 0
        self.look()
        self._characters_before = self._characters
        self._started = time.monotonic()

    def show_on(self, work: Work) -> None:
        """Report progress there from now on."""
        self._work = work

    def at(self, group: int, counts: Counts) -> None:
        """Update the progress of a group."""
        before = self._read[group]
        if counts.documents < before.documents:
            return  # a resumed group is read from its beginning
        self._read[group] = counts
        self.bytes_done += counts.bytes_read - before.bytes_read
        self._documents += counts.documents - before.documents
        self._characters += counts.characters - before.characters
        if self._work is not None:
            rate = (self._characters - self._characters_before) / max(time.monotonic() - self._started, 1e-9) / 1e6
            note = f"{self._documents:,} documents, {rate:.1f} million characters/s"
            self._work.advance(float(counts.bytes_read - before.bytes_read), note)

    def look(self) -> None:
        """Update the progress from the pieces of other processes, at most once a second."""
        if time.monotonic() - self._looked < SECONDS_BETWEEN_LOOKS:
            return
        for group, number in self._num_pieces.items():
            while (piece := shards.read_piece(self._job.folder, shards.piece_name(group, number))) is not None:
                self.at(group, Counts(**piece.state["read"]))
                number += 1
            self._num_pieces[group] = number
        self._looked = time.monotonic()


def do_group(job: Job, group: Group) -> None:
    """All the work on a group, in this process alone."""
    for _ in make_pieces(job, group):
        pass


class Local:
    """Processes of this machine; with more than one worker, this process only reads and writes."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def mark(self, job: Job, groups: Sequence[Group], work: Work) -> None:
        """`mark_documents` for each group."""
        if self.workers == 1 or len(groups) == 1:
            for group in groups:
                mark_documents(job, group, lambda read: work.advance(float(read)))
            return
        with _pool(min(self.workers, len(groups))) as pool:
            futures = {pool.submit(mark_documents, job, group): group for group in groups}
            for future in as_completed(futures):
                future.result()
                work.advance(float(size_of(futures[future])))

    def prepare(self, job: Job, groups: Sequence[Group], watch: Watch) -> None:
        """`make_pieces` for each group.

        Blocks of a group go to all workers, so that a single big file keeps them busy. One process cannot read for very
        many workers: with more than READER_FEEDS, small groups are processed whole by one worker each.
        """
        if self.workers == 1:
            for group in groups:
                for block, _ in make_pieces(job, group):
                    watch.at(group.number, block.counts)
            return
        mean_size = sum(size_of(group) for group in groups) / self.workers
        whole = [group for group in groups if self.workers > READER_FEEDS and 0 < size_of(group) <= mean_size]
        with _pool(self.workers) as pool:
            left = {pool.submit(do_group, job, group) for group in whole}
            for group in groups:
                if group not in whole:
                    for block, _ in make_pieces(job, group, lambda blocks: self._encode_all(pool, job, blocks)):
                        watch.at(group.number, block.counts)
                        watch.look()
            while left:
                done, left = wait(left, timeout=SECONDS_BETWEEN_LOOKS, return_when="FIRST_COMPLETED")
                for future in done:
                    future.result()
                watch.look()

    def _encode_all(
        self, pool: ProcessPoolExecutor, job: Job, blocks: Iterator[Block]
    ) -> Iterator[tuple[Block, EncodedBlock]]:
        waiting: deque[tuple[Block, Future[EncodedBlock]]] = deque()
        for block in blocks:
            waiting.append((block, pool.submit(encode, block.texts, job)))
            if len(waiting) >= self.workers * BLOCKS_A_WORKER:
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()


def size_of(group: Group) -> int:
    """Bytes on disk, as far as known."""
    return sum(source.size_bytes or 0 for source in group.sources)


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    # spawn, because forking a process with threads (a progress bar has one) may hang.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_begin_worker)
    try:
        yield pool
    except BrokenProcessPool:
        raise UserError(
            "a worker process was killed, perhaps because memory ran out: run the same command again to resume, with "
            "fewer --workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    """Leave ctrl-C to the parent process, and exit when the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


class Ray:
    """An existing Ray cluster: each group goes to one of its processors.

    All machines must see the texts and the folder of shards under the same paths.
    """

    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray

    def mark(self, job: Job, groups: Sequence[Group], work: Work) -> None:
        """`mark_documents` for each group."""
        for group in self._run(_mark_on_node, job, groups, lambda: None):
            work.advance(float(size_of(group)))

    def prepare(self, job: Job, groups: Sequence[Group], watch: Watch) -> None:
        """`make_pieces` for each group."""
        for _ in self._run(_do_on_node, job, groups, watch.look):
            pass
        watch.look()

    def _run(
        self, task: Callable[[Job, Group], None], job: Job, groups: Sequence[Group], look: Callable[[], None]
    ) -> Iterator[Group]:
        ray = self._ray
        # Groups are long, independent tasks: spread them over all machines.
        remote = ray.remote(scheduling_strategy="SPREAD")(task)
        group_of = {remote.remote(job, group): group for group in groups}
        left = list(group_of)
        try:
            while left:
                done, left = ray.wait(left, timeout=SECONDS_BETWEEN_LOOKS)
                for reference in done:
                    ray.get(reference)
                    yield group_of[reference]
                look()
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise UserError(
                f"the Ray cluster failed ({str(error).splitlines()[0]}): repair it and run the same command again, "
                "which resumes with what is finished"
            ) from None


@contextlib.contextmanager
def ray_cluster(address: str | None) -> Iterator[Ray]:
    """The cluster at an address, or the one this process is connected to already."""
    with connected_ray(address) as ray:
        yield Ray(ray)


@contextlib.contextmanager
def connected_ray(address: str | None) -> Iterator[ModuleType]:
    """Ray's module, connected to the cluster at an address."""
    try:
        import ray
    except ImportError:
        raise UserError("--engine ray needs an extra: pip install 'openalbert[ray]'") from None
    if ray.is_initialized():
        yield ray
        return
    where = address or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        if found := re.fullmatch(r"(?:ray://)?(.+):(\d+)", where):
            # Ray itself retries for minutes where nothing listens.
            socket.create_connection((found[1], int(found[2])), timeout=10).close()
        ray.init(address=where, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise UserError(
            f"no Ray cluster can be reached at '{where}' ({str(error).splitlines()[0]}): start one with "
            "`ray start --head`, or name it with --ray-address or RAY_ADDRESS"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _do_on_node(job: Job, group: Group) -> None:
    _check_node(job, group)
    do_group(job, group)


def _mark_on_node(job: Job, group: Group) -> None:
    _check_node(job, group)
    mark_documents(job, group)


def _check_node(job: Job, group: Group) -> None:
    for path in [job.folder / PLAN, *(Path(s.name) for s in group.sources if s.size_bytes is not None)]:
        if not path.is_file():
            raise UserError(
                f"{path} cannot be seen from the machine {socket.gethostname()}: with --engine ray the text and --out "
                "must lie on storage that all machines of the cluster share, under the same paths"
            )


Engine = Local | Ray
