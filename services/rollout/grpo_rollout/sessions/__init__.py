"""Sessions (`/v1/sessions`): an episode of several turns, recorded token by token.

In reading order:

    chat_form.py   the canonical form of chat messages: what equals a recorded one, what cannot be rendered
    template.py    render what is new behind a recorded turn, and nothing else
    probe.py       find out at the start what a chat template does to the turns of a session
    forest.py      the record: segments of token ids, turns, and the messages that lead to each place
    access.py      the two keys of a session, and which routes each opens
    session.py     one session: its record, its limits, and how it ended
    reading.py     read the text of a turn as a message, by the parsers that the server was started with
    pictures.py    the images that messages show: expand their places, stand beside the ids of a prompt
    wanted.py      what a request asks for
    prompts.py     where a request belongs, and what is new there
    turns.py       sample the turns of sessions in tasks of their own, and record them
    registry.py    the sessions of one server: open, find, expire, forget
    recorded.py    our renderer, engine client and parser, which stand in vLLM's serving objects
    chat.py        OpenAI's chat completions
    messages_form.py   the messages of an Anthropic request as chat messages
    messages.py    Anthropic's Messages
    responses_form.py  the items of a Responses request as chat messages
    responses.py   OpenAI's Responses
    build.py       put these parts together on top of a running engine
    api_errors.py    errors in the forms of the APIs that programs speak
    model_routes.py  the routes that programs call
    routes.py        those of the trainer
"""
