"""What is said on the wire; each message says who sends it to whom."""
