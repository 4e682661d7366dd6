"""Search jobs: many programs searched and tuned in steps, on one machine or many, resumed after any interruption."""
