"""Where rewards are computed. `base.Executor` is the seam; each other module is one way to do it."""
