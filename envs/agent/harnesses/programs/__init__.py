"""Programs that are agents of libraries. A harness copies one to the home directory of its episode and runs it."""
