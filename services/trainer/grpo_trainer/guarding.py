"""What the loop does when a rule of `guards` is broken and its action is `stop`."""

from .errors import GuardStop
from .journal import Journal


def obey_guards(journal: Journal, step: int) -> None:
    """Judge step `step`, whose updates are made. Raises GuardStop when a rule stops the run."""
    decisions = journal.judge(step)
    if decisions and decisions[-1].action == "stop":  # the strictest comes last
        rule, text = decisions[-1].rule, decisions[-1].text
        raise GuardStop(
            f"guards.{rule} stops the run after step {step}: {text}",
            hint=f"mend it, or set guards.{rule} to warn, then go on with --resume",
        )
