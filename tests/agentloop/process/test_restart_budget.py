from agentloop.process.restart_budget import RestartBudget


def test_each_kind_has_its_own_limit_and_all_failures_are_counted():
    budget = RestartBudget(2, {"hung": 1})
    assert [budget.spend("died") for _ in range(3)] == [True, True, False]
    assert [budget.spend("hung") for _ in range(2)] == [True, False]
    assert str(budget) == "died 3, hung 2"


def test_what_happened_long_ago_does_not_count():
    now = 0.0
    budget = RestartBudget(1, seconds=10, clock=lambda: now)
    assert budget.spend("died")
    now = 5.0
    assert not budget.spend("died")
    now = 15.5
    assert budget.spend("died")
    assert budget.counts["died"] == 3
