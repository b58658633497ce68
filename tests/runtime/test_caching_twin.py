"""The caching allocator against its twin: addresses, segments, device memory and every statistic after each call."""

import pytest

from tests.runtime import cache_programs


@pytest.fixture(scope="module")
def start():
    return cache_programs.fresh_card()


@pytest.mark.parametrize("block", range(4))
def test_random_programs_under_random_options_equal_the_twin(start, block):
    for seed in range(6 * block, 6 * block + 6):
        assert cache_programs.run(seed, *start) == (cache_programs.LENGTH, None)
