"""The stages of a step, in the order of the data: prompt → rollout → reward → advantage → loss → push."""
