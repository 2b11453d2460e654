"""Random interleavings of everything that publishers, readers and time can do to a registry."""

from __future__ import annotations

from hypothesis.stateful import run_state_machine_as_test

from tests.properties.machine import CI, RegistryMachine
from tests.properties.model import World
from tricklecast.app.core.limits import Limits


def test_no_interleaving_contradicts_what_was_published() -> None:
    """No byte lost, doubled or reordered, no head that goes back, nobody left waiting: after each of many steps."""
    run_state_machine_as_test(RegistryMachine, settings=CI)


def test_a_walk_that_abandons_preconnects_by_the_thousand() -> None:
    """With the default limits each of them has its reader, which random limits rarely allow."""
    machine = RegistryMachine()
    machine.world = World(Limits(), autocreate=True)
    machine.world.create("a", "", force=True)
    preconnect_many = RegistryMachine.preconnect_many
    preconnect_many(machine, name="a", n=1500, waiting=True, abandon=True, jump=1)
    machine.world.check()
