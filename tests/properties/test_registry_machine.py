"""Random interleavings of everything that publishers, readers and time can do to a registry."""

from __future__ import annotations

from hypothesis.stateful import run_state_machine_as_test

from tests.properties.machine import CI, RegistryMachine


def test_no_interleaving_contradicts_what_was_published() -> None:
    """No byte lost, doubled or reordered, no head that goes back, nobody left waiting: after each of many steps."""
    run_state_machine_as_test(RegistryMachine, settings=CI)
