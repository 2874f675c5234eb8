"""Mistakes are found, named, and fail the context. What only looks wrong is accepted."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cases
from client import CudaError, Driver, Memory

ARENA = 0x7E8000000000
INT, FLOAT, LONG = ctypes.c_int, ctypes.c_float, ctypes.c_uint64


def fails(driver: Driver, work: Callable[[], Any], code: str, *words: str) -> None:
    """Checks that the work, or the wait for it, fails with a code and a report that has these
    words, and that later calls fail, too, until the context is released."""
    with pytest.raises(CudaError) as error:
        work()
        driver.wait()
    assert error.value.name == code, error.value
    for word in words:
        assert word in error.value.reports, error.value
    with pytest.raises(CudaError) as again:
        driver.allocate(4)
    assert again.value.name == code
    driver.recover()
    driver.free(driver.allocate(4))


def run(driver: Driver, name: str, grid: int, block: int, *arguments: Any) -> Callable[[], None]:
    return lambda: driver.launch(cases.ptx("faults"), name, grid, block, *arguments)


def ones(driver: Driver, n: int) -> Memory:
    return driver.put(np.ones(n, np.float32))


def scale(driver: Driver, x: Any, y: Any, n: int) -> Callable[[], None]:
    text = cases.ptx("pointwise")
    return lambda: driver.launch(text, "scale", -(-n // 256), 256, x, y, FLOAT(1), INT(n))


class TestMemory:
    def test_out_of_bounds(self, driver: Driver) -> None:
        y = ones(driver, 64)
        work = run(driver, "store_past", 1, 64, y, INT(1))
        fails(driver, work, "ILLEGAL_ADDRESS", "thread (63,0,0)", "0 bytes past the end of memory")
        work = run(driver, "store_past", 1, 64, y, INT(-64))
        fails(driver, work, "ILLEGAL_ADDRESS", "out of bounds")

    def test_far_out_of_bounds(self, driver: Driver) -> None:
        work = run(driver, "store_past", 1, 1, ones(driver, 64), INT(1 << 30))
        fails(driver, work, "ILLEGAL_ADDRESS", "out of bounds")

    def test_neighbours(self, driver: Driver) -> None:
        """An access past an end, by less than the block's size, reaches no other block."""
        many = [ones(driver, 1 << k) for k in range(2, 18)]
        for memory in many:
            for elements in (memory.size // 4, memory.size * 3 // 8):
                work = run(driver, "store_past", 1, 1, memory, INT(elements))
                fails(driver, work, "ILLEGAL_ADDRESS")

    def test_host_pointer(self, driver: Driver) -> None:
        host = np.ones(64, np.float32)
        work = scale(driver, LONG(host.ctypes.data), ones(driver, 64), 64)
        fails(driver, work, "ILLEGAL_ADDRESS", "is no device address")

    def test_use_after_free(self, driver: Driver) -> None:
        x, y = ones(driver, 64), ones(driver, 64)
        driver.free(x)
        fails(driver, scale(driver, x, y, 64), "ILLEGAL_ADDRESS", "use after free", "freed")

    def test_freed_addresses_come_back_late(self, driver: Driver) -> None:
        seen = set()
        for _ in range(300):
            memory = driver.allocate(1 << 20)
            assert memory.address not in seen
            seen.add(memory.address)
            driver.free(memory)

    def test_addresses_do_come_back(self, driver: Driver) -> None:
        """Allocates more in total than there are addresses; live memory is unaffected."""
        driver.set(addresses=driver.allocate(4).address - ARENA + (8 << 20))
        kept = ones(driver, 64)
        for _ in range(100):
            driver.free(ones(driver, 1 << 18))
        assert (driver.get(kept, np.float32, 64) == 1).all()
        fresh = driver.allocate(1 << 20)
        fails(driver, scale(driver, fresh, kept, 64), "LAUNCH_FAILED", "unwritten")

    def test_unwritten(self, driver: Driver) -> None:
        x, y = driver.allocate(256), driver.allocate(256)
        fails(
            driver, scale(driver, x, y, 64), "LAUNCH_FAILED", "read of unwritten memory", "byte 0"
        )
        driver.set(unwritten=0)
        scale(driver, x, y, 64)()
        assert np.isnan(driver.get(y, np.float32, 64)).all()

    def test_copies_are_checked(self, driver: Driver) -> None:
        x = driver.allocate(256)
        fails(driver, lambda: driver.get(x, np.float32, 64), "LAUNCH_FAILED", "unwritten", "copy")
        x = ones(driver, 64)
        fails(driver, lambda: driver.get(x, np.float32, 65), "ILLEGAL_ADDRESS", "out of bounds")

    def test_misaligned(self, driver: Driver) -> None:
        x, y = ones(driver, 64), ones(driver, 64)
        fails(driver, run(driver, "load_vector", 1, 1, x, y), "MISALIGNED_ADDRESS", "misaligned")

    def test_constants(self, driver: Driver) -> None:
        y = driver.allocate(16)
        run(driver, "read_constant", 1, 4, y)()
        assert driver.get(y, np.float32, 4).tolist() == [1, 2, 3, 4]
        table, size = ctypes.c_uint64(), ctypes.c_size_t()
        module = driver.load(cases.ptx("faults"))
        place = (ctypes.byref(table), ctypes.byref(size), module, b"table")
        driver.call("cuLibraryGetGlobal", *place)
        assert size.value == 16
        fails(driver, run(driver, "write_constant", 1, 1, table), "ILLEGAL_ADDRESS", "constant")

    def test_double_free(self, driver: Driver) -> None:
        x = ones(driver, 4)
        driver.free(x)
        for wrong in (x, x + 4, Memory(12345, 1)):
            with pytest.raises(CudaError, match="INVALID_VALUE"):
                driver.free(wrong)

    def test_out_of_memory(self, driver: Driver) -> None:
        with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
            driver.allocate(9 << 30)
        driver.free(driver.allocate(1 << 20))


class TestTogether:
    def test_divergent_barrier(self, driver: Driver) -> None:
        work = run(driver, "divergent_barrier", 1, 64, driver.allocate(256))
        fails(driver, work, "LAUNCH_FAILED", "divergence", "PTX lines")

    def test_barrier_that_others_never_reach(self, driver: Driver) -> None:
        work = run(driver, "barrier_of_some", 1, 64, driver.allocate(256))
        fails(driver, work, "LAUNCH_FAILED", "divergence", "32 threads", "wait at a barrier")

    def test_shuffles(self, driver: Driver) -> None:
        y = ones(driver, 32)
        work = run(driver, "divergent_shuffle", 1, 32, y)
        fails(driver, work, "LAUNCH_FAILED", "a lane that takes no part")
        work = run(driver, "different_shuffles", 1, 32, y)
        fails(driver, work, "LAUNCH_FAILED", "different warp operations")
        work = run(driver, "not_in_mask", 1, 32, y)
        fails(driver, work, "LAUNCH_FAILED", "not in its own mask")

    def test_endless(self, driver: Driver) -> None:
        driver.set(fuel=100000)
        flag = driver.put(np.zeros(1, np.int32))
        fails(driver, run(driver, "spin", 1, 1, flag), "LAUNCH_TIMEOUT", "no end after")

    def test_trap(self, driver: Driver) -> None:
        x = driver.put(np.array([4], np.int32))
        fails(driver, run(driver, "trap_unless", 1, 1, x), "LAUNCH_FAILED", "trap")
        run(driver, "trap_unless", 1, 1, driver.put(np.array([3], np.int32)))()
        driver.wait()


class TestRaces:
    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize(
        ("name", "grid", "block", "word"),
        [
            ("blocks_write", 2, 64, "another block"),
            ("blocks_read", 2, 32, "another block"),
            ("threads_write", 1, 64, "no barrier between"),
            ("atomic_and_plain", 1, 64, "race"),
        ],
    )
    def test_found(
        self, driver: Driver, seed: int, name: str, grid: int, block: int, word: str
    ) -> None:
        y = ones(driver, 128)
        driver.seed(seed)
        run(driver, name, grid, block, y)()  # nobody reads the reports
        driver.wait()
        driver.set(races=1)
        fails(driver, run(driver, name, grid, block, y), "LAUNCH_FAILED", word)

    @pytest.mark.parametrize("seed", range(5))
    def test_not_found_where_there_are_none(self, driver: Driver, seed: int) -> None:
        y = ones(driver, 128)
        with driver.watching(seed):
            run(driver, "halves_write", 1, 64, y)()
            run(driver, "warp_exchange", 1, 32, ones(driver, 32))()
            run(driver, "producer_consumer", 1, 64, ones(driver, 64))()
            driver.wait()
            assert driver.reports() == ""

    @pytest.mark.parametrize("seed", range(5))
    def test_fences(self, driver: Driver, seed: int) -> None:
        x, parts = driver.put(cases.normal(64)), driver.allocate(4 * 64 * 8)
        count, out = driver.put(np.zeros(8, np.uint32)), driver.allocate(4 * 64)
        with driver.watching(seed):
            run(driver, "all_fence", 8, 64, x, parts, count, out)()
            total = np.zeros(64, np.float32)
            for _ in range(8):
                total += cases.normal(64)
            assert (driver.get(out, np.float32, 64) == total).all()
            work = run(driver, "wrong_counter", 8, 64, x, parts, count, out)
            fails(driver, work, "LAUNCH_FAILED", "another block")
