from agentloop.trainer.workers.worker_count import WorkerCount


def test_a_resumed_run_takes_the_number_from_before_its_start(tmp_path):
    file = tmp_path / "workers"
    WorkerCount.request(file, 3, 2)
    wanted = WorkerCount(file, 2)
    assert (wanted.take(), wanted.take()) == (3, None)
    WorkerCount.request(file, 4, 2)
    assert (wanted.take(), wanted.take()) == (4, None)
    wanted.forget()
    assert wanted.take() is None


def test_a_new_number_in_the_config_replaces_it(tmp_path):
    file = tmp_path / "workers"
    WorkerCount.request(file, 3, 2)
    assert WorkerCount(file, 5).take() is None
    assert WorkerCount(file, 2).take() is None, "not when the config has the first number again either"


def test_the_number_of_an_earlier_version_is_ignored(tmp_path):
    (tmp_path / "workers").write_text("3\n")
    assert WorkerCount(tmp_path / "workers", 2).take() is None
