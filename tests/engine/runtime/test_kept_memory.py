"""Memory that is freed and asked for again comes without the system's help."""

from __future__ import annotations

import resource

import pytest
import torch

from fedscout.engine.runtime.processes import keep_freed_memory

BLOCK_BYTES, BLOCKS, PAGE_BYTES = 20 * 2**20, 4, resource.getpagesize()


def page_faults_of_a_step() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.zeros(BLOCK_BYTES // 4) for _ in range(BLOCKS)]
    del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_freed_blocks_stay() -> None:
    if not keep_freed_memory():
        pytest.skip("another C library than glibc")
    page_faults_of_a_step()

    faults = [page_faults_of_a_step() for _ in range(5)]

    assert min(faults) < BLOCK_BYTES // PAGE_BYTES
