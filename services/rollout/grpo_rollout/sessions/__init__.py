"""Sessions (`/v1/sessions`): an episode of several turns, recorded token by token.

chat_form.py   the canonical form of chat messages: what equals a recorded one, what cannot be rendered
template.py    render what is new behind a recorded turn, and nothing else
forest.py      the record: segments of token ids, turns, and the messages that lead to each place
"""
