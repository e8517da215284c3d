"""Whatever is used, released or removed: the bound holds, and nothing in use goes."""

import asyncio
import shutil
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import fsspec  # type: ignore[import-untyped]  # no types are published for it
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.trace_loads import files_in, load_of, open_cache

BOUND = 100
CONTENTS = [bytes([index]) * size for index, size in enumerate([0, 10, 20, 30, 40, 60, 99, 150])]
NAMES = [f"{load_of(content).sha256}.jsonl" for content in CONTENTS]
TRACES = st.sampled_from(range(len(CONTENTS)))
WORKERS = range(2)


class SharedFolder(RuleBasedStateMachine):
    """Two workers on one folder, and what must lie in it, the least recently used first."""

    def __init__(self) -> None:
        super().__init__()
        storage = fsspec.filesystem("memory")
        for name, content in zip(NAMES, CONTENTS, strict=True):
            storage.pipe_file(f"/lru/{name}", content)
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp())
        self.workers = [open_cache(self.folder, max_bytes=BOUND) for _ in WORKERS]
        self.uses: list[tuple[int, int, AsyncExitStack]] = []
        self.lying: list[int] = []

    @rule(trace=TRACES, worker=st.sampled_from(WORKERS))
    def use(self, trace: int, worker: int) -> None:
        load = load_of(CONTENTS[trace], sources=[f"memory://lru/{NAMES[trace]}"])
        stack = AsyncExitStack()
        path = self.runner.run(stack.enter_async_context(self.workers[worker].use(load)))
        assert path == self.folder / NAMES[trace]
        if trace not in self.lying:
            self.evict(BOUND - len(CONTENTS[trace]))
        if not self.uses_it(worker, trace):
            self.note_use(trace)
        self.uses.append((worker, trace, stack))

    @precondition(lambda self: self.uses)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.uses) - 1))
        worker, trace, stack = self.uses.pop(index)
        self.runner.run(stack.aclose())
        if not self.uses_it(worker, trace):
            self.note_use(trace)
            self.evict(BOUND)

    @rule(trace=TRACES)
    def remove_what_is_not_in_use(self, trace: int) -> None:
        if trace in self.lying and not self.is_in_use(trace):
            (self.folder / NAMES[trace]).unlink()
            self.lying.remove(trace)

    @invariant()
    def just_that_lies_there(self) -> None:
        assert files_in(self.folder) == {NAMES[trace]: CONTENTS[trace] for trace in self.lying}

    @invariant()
    def the_bound_is_exceeded_by_what_is_in_use_alone(self) -> None:
        total = sum(len(content) for content in files_in(self.folder).values())
        assert total <= BOUND or all(map(self.is_in_use, self.lying))

    def teardown(self) -> None:
        for _, _, stack in self.uses:
            self.runner.run(stack.aclose())
        self.runner.close()
        shutil.rmtree(self.folder)

    def note_use(self, trace: int) -> None:
        self.lying = [other for other in self.lying if other != trace] + [trace]

    def evict(self, allowed: int) -> None:
        for trace in list(self.lying):
            if sum(len(CONTENTS[kept]) for kept in self.lying) <= allowed:
                return
            if not self.is_in_use(trace):
                self.lying.remove(trace)

    def is_in_use(self, trace: int) -> bool:
        return any(used == trace for _, used, _ in self.uses)

    def uses_it(self, worker: int, trace: int) -> bool:
        return any((user, used) == (worker, trace) for user, used, _ in self.uses)


SharedFolder.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_any_sequence_on_a_shared_folder = SharedFolder.TestCase
