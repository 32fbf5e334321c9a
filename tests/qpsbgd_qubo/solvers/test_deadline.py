from qpsbgd_qubo.solvers.deadline import deadline


def test_a_deadline_passes_at_once_later_or_never():
    with deadline(None) as passed:
        assert not passed[0]
    with deadline(0) as passed:
        assert passed[0]
    with deadline(0.01) as passed:
        while not passed[0]:
            pass


def test_no_time_is_over_before_any_timer_runs(monkeypatch):
    monkeypatch.setattr("threading.Timer.start", lambda timer: None)
    with deadline(0) as passed:
        assert passed[0]
    with deadline(1) as passed:
        assert not passed[0]
