"""What the tests of the rules share."""

import pytest

from tests.support.rule_harness import Story


@pytest.fixture
def story() -> Story:
    return Story()
