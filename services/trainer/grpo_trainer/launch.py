"""`python -m grpo_trainer.launch`: what torchrun takes, with the exit status of the rank that failed first."""

import sys

from .ranks.launch import main

if __name__ == "__main__":
    sys.exit(main())
