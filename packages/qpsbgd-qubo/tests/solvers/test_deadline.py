import signal
import threading
from contextvars import copy_context

import pytest

from qpsbgd_qubo.solvers.deadline import best_on_interrupt, deadline, ended_by_exceptions


def test_ctrl_c_sets_the_flags_of_the_searches_that_still_run():
    with best_on_interrupt() as interruption, deadline(None) as outer:
        with deadline(None) as inner:
            assert list(interruption.flags) == [id(outer), id(inner)]
        assert list(interruption.flags) == [id(outer)]
        signal.raise_signal(signal.SIGINT)
        assert interruption.came and outer[0] == 1 and not inner[0]
        with deadline(None) as late:
            assert late[0]
    assert not interruption.flags


def test_an_exception_ends_what_was_begun_inside_and_nothing_else():
    with deadline(None) as outside, pytest.raises(KeyError), ended_by_exceptions(), deadline(None) as first:
        raise KeyError
    assert first[0] == 0 and not outside[0]  # the first had ended before
    with best_on_interrupt() as interruption:
        with pytest.raises(KeyError), ended_by_exceptions():
            context, flags = copy_context(), []
            search = deadline(None)
            flags.append(context.run(search.__enter__))
            raise KeyError
        assert flags[0][0] and not interruption.came
        context.run(search.__exit__, None, None, None)


def test_on_another_thread_ctrl_c_is_left_alone():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with best_on_interrupt(), deadline(None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before] == [signal.getsignal(signal.SIGINT)]
