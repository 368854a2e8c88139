"""The built-in rewards, one small file each. A new file here is a new reward: nothing else has to name it."""
