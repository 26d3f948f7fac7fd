"""What a learner measures of itself: metrics of a step, times, GPU peaks and profiles."""
