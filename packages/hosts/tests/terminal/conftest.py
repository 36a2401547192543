"""Desks that are put away again."""

from collections.abc import Iterator

import pytest
from terminal.desk import Desk


@pytest.fixture
def piped() -> Iterator[Desk]:
    desk = Desk(terminal=False)
    yield desk
    desk.close()


@pytest.fixture
def terminal() -> Iterator[Desk]:
    desk = Desk(terminal=True)
    yield desk
    desk.close()
