import gc
import weakref

from playhead.plan.living import Living


class Thing:
    pass


def test_those_are_named_that_are_still_there():
    kept, living = [Thing() for _ in range(5)], Living()
    for thing in [*kept, kept[0]]:
        living.add(thing)
    living.add(Thing())
    assert set(living) == set(kept)
    living.discard(kept[1])
    living.discard(Thing())
    assert set(living) == {kept[0], *kept[2:]}
    for thing in living:  # which may be changed meanwhile
        living.discard(thing)
    assert not list(living)


def test_nothing_is_kept_alive_and_nothing_of_the_dead_is_kept():
    living, thing = Living(), Thing()
    living.add(thing)
    gone = weakref.ref(thing)
    del thing
    gc.collect()
    assert gone() is None and not list(living) and not living._references


def test_a_set_that_is_gone_hears_of_nothing():
    living, thing = Living(), Thing()
    living.add(thing)
    gone = weakref.ref(living)
    del living
    assert gone() is None
    del thing
